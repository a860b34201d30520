package sandboxcore

import (
	"fmt"
	"math"
	"net/netip"
	"path"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Frozen defaults of spec version 1. They never change: a later default gets a new key or a new spec version.
const (
	DefaultEnvironment   = EnvironmentManaged
	DefaultScope         = ScopePerSession
	DefaultIdleTimeout   = 1800.0 // seconds
	DefaultIdentity      = IdentityAgent
	DefaultNetworkEgress = NetworkAllow
	DefaultTimeout       = 120.0 // seconds
	DefaultStrict        = true
)

// Limits of a policy's numbers.
const (
	MaxTimeout  = 7 * 24 * 3600.0 // seconds
	MaxCPU      = 1024.0          // cores
	MinCPU      = 0.01
	MaxMemoryMB = 16 << 20 // MiB: 16 TiB
	MinMemoryMB = 6        // MiB: the least that container engines accept
)

// MaxPathBytes is the longest path that is accepted anywhere: PATH_MAX of Linux.
const MaxPathBytes = 4096

// ProfileInput is a profile as a user wrote it: nil is unset. Blocks are the settings blocks that are present, by name,
// with the values that were set (unset keys absent).
type ProfileInput struct {
	Name        string
	Type        string
	Environment *string
	Scope       *string
	IdleTimeout *float64
	Identity    *string
	Policy      PolicyInput
	Blocks      map[string]Settings
	// parsed: it comes out of a spec, which has everything already.
	parsed bool
}

// PolicyInput is a policy as a user wrote it: nil is unset.
type PolicyInput struct {
	NetworkEgress *string
	NetworkAllow  []string
	FSAllowRead   []string
	FSAllowWrite  []string
	CPU           *float64
	MemoryMB      *int64
	Timeout       *float64
	Strict        *bool
	MinIsolation  *string
}

var profileNamePattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$`)

// ProfileNameHint says in words what a profile or sandbox name looks like.
const ProfileNameHint = "1 to 63 letters, digits, '.', '_' or '-', starting with a letter or digit"

// ValidName reports whether name can name a profile or a sandbox.
func ValidName(name string) bool { return profileNamePattern.MatchString(name) }

// resolver collects refusals while it reads a profile.
type resolver struct {
	object     string
	violations Violations
}

func (r *resolver) refuse(code Code, attr []string, said, next string) {
	r.violations = append(r.violations, &Error{
		Code: code, Attempted: "the profile was refused", Object: r.object, Said: said, Next: next, Attribute: attr,
	})
}

// Resolve checks a profile's configuration (step 1 of the gate) and fills in the defaults. The error is Violations with
// every fault found.
func (reg *Registry) Resolve(in ProfileInput) (*Profile, error) {
	r := &resolver{object: fmt.Sprintf("profile %q", in.Name)}
	if !ValidName(in.Name) {
		r.refuse(CodeValue, []string{"name"}, fmt.Sprintf("the name %s is not possible.", Quoted(in.Name)), "Use "+ProfileNameHint+".")
	}
	p := &Profile{
		Name: in.Name, Type: BackendType(in.Type),
		Environment: choose(r, []string{"environment"}, in.Environment, DefaultEnvironment, EnvironmentManaged, EnvironmentAttached),
		Scope:       choose(r, []string{"scope"}, in.Scope, DefaultScope, ScopePerSession, ScopePerCall, ScopePerRuntime),
		IdleTimeout: r.number([]string{"idle_timeout"}, in.IdleTimeout, DefaultIdleTimeout, 1, 30*24*3600, "seconds"),
		Identity:    choose(r, []string{"identity", "mode"}, in.Identity, DefaultIdentity, IdentityAgent, IdentityUser),
		Policy:      r.policy(in.Policy),
	}
	f, ok := reg.Factory(p.Type)
	if !ok {
		r.refuse(CodeUnknownType, []string{"type"}, fmt.Sprintf("there is no backend type %s.", Quoted(in.Type)), "Use one of "+quoteList(reg.Types())+".")
		return nil, r.violations
	}
	for _, name := range sortedKeys(in.Blocks) {
		if name != in.Type {
			r.refuse(CodeSettingsBlock, []string{name},
				fmt.Sprintf("the settings block %s does not belong to a profile of type %q.", Quoted(name), in.Type),
				fmt.Sprintf("Remove %s, or set type = %s.", Printable(name), Quoted(name)))
		}
	}
	block, ok := in.Blocks[in.Type]
	if !ok {
		r.refuse(CodeSettingsBlock, []string{in.Type}, "the settings block of the backend is missing.",
			fmt.Sprintf("Add %s = {}, with the settings you want.", in.Type))
	}
	p.Settings = r.settings([]string{in.Type}, f.Settings, block)
	if len(r.violations) > 0 {
		return nil, r.violations
	}
	if f.Complete != nil && !in.parsed {
		if err := f.Complete(p.Settings); err != nil {
			return nil, err
		}
	}
	return p, nil
}

func choose[T ~string](r *resolver, attr []string, in *string, def T, allowed ...T) T {
	if in == nil {
		return def
	}
	if slices.Contains(allowed, T(*in)) {
		return T(*in)
	}
	r.refuse(CodeValue, attr, fmt.Sprintf("%s is not a possible value.", Quoted(*in)), "Use one of "+quoteList(allowed)+".")
	return def
}

func (r *resolver) number(attr []string, in *float64, def, minimum, maximum float64, unit string) float64 {
	if in == nil {
		return def
	}
	if math.IsNaN(*in) || *in < minimum || *in > maximum {
		r.refuse(CodeValue, attr, fmt.Sprintf("%s is out of range.", FormatNumber(*in)),
			fmt.Sprintf("Use %s to %s %s.", FormatNumber(minimum), FormatNumber(maximum), unit))
		return def
	}
	return *in
}

func (r *resolver) policy(in PolicyInput) Policy {
	at := func(key string) []string { return []string{"policy", key} }
	p := Policy{
		NetworkEgress: choose(r, at("network_egress"), in.NetworkEgress, DefaultNetworkEgress, NetworkAllow, NetworkDeny, NetworkAllowlist),
		Timeout:       r.number(at("timeout"), in.Timeout, DefaultTimeout, 0.1, MaxTimeout, "seconds"),
		Strict:        in.Strict == nil || *in.Strict,
	}
	if in.CPU != nil {
		v := r.number(at("cpu"), in.CPU, 1, MinCPU, MaxCPU, "cores")
		p.CPU = &v
	}
	if in.MemoryMB != nil {
		f := float64(*in.MemoryMB)
		v := int64(r.number(at("memory_mb"), &f, MinMemoryMB, MinMemoryMB, MaxMemoryMB, "MiB"))
		p.MemoryMB = &v
	}
	if in.MinIsolation != nil {
		p.MinIsolation = choose(r, at("min_isolation"), in.MinIsolation, "", IsolationTiers()...)
	}
	for _, e := range in.NetworkAllow {
		c, err := CanonicalAllowEntry(e)
		if err != nil {
			r.refuse(CodeValue, at("network_allow"), err.Error()+".", "Write a CIDR such as 192.0.2.0/24 or a domain such as example.org or *.example.org.")
			continue
		}
		p.NetworkAllow = append(p.NetworkAllow, c)
	}
	p.NetworkAllow = sortedUnique(p.NetworkAllow)
	switch {
	case p.NetworkEgress == NetworkAllowlist && len(in.NetworkAllow) == 0:
		r.refuse(CodeValue, at("network_allow"), "network_egress is \"allowlist\" but the list has no entry.", "List what may be reached, or use network_egress = \"deny\".")
	case p.NetworkEgress != NetworkAllowlist && len(in.NetworkAllow) > 0:
		r.refuse(CodeValue, at("network_allow"), fmt.Sprintf("network_allow has entries but network_egress is %q.", p.NetworkEgress), "Set network_egress = \"allowlist\", or remove the entries.")
	}
	p.FSAllowRead = r.paths(at("fs_allow_read"), in.FSAllowRead)
	p.FSAllowWrite = r.paths(at("fs_allow_write"), in.FSAllowWrite)
	return p
}

func (r *resolver) paths(attr []string, in []string) []string {
	var out []string
	for _, s := range in {
		if err := CheckAbsolutePath(s); err != nil {
			r.refuse(CodeValue, attr, err.Error()+".", "Write an absolute path without \"..\".")
			continue
		}
		out = append(out, path.Clean(s))
	}
	return sortedUnique(out)
}

// CheckAbsolutePath refuses what is not an absolute path, has a ".." element, control characters or NUL, is not UTF-8,
// or is longer than 4096 bytes.
func CheckAbsolutePath(s string) error {
	switch {
	case !utf8.ValidString(s) || strings.ContainsFunc(s, unicode.IsControl):
		return fmt.Errorf("the path %s has bytes that a path cannot have here", Quoted(s))
	case len(s) > MaxPathBytes:
		return fmt.Errorf("a path is longer than %d bytes", MaxPathBytes)
	case !strings.HasPrefix(s, "/"):
		return fmt.Errorf("the path %s is not absolute", Quoted(s))
	case slices.Contains(strings.Split(s, "/"), ".."):
		return fmt.Errorf("the path %s has a \"..\" element", Quoted(s))
	}
	return nil
}

var domainLabel = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// CanonicalAllowEntry gives the canonical form of an allow-list entry: an IP address becomes a CIDR, a CIDR must not have
// host bits, a domain is lower case without a trailing dot and may start with "*.".
func CanonicalAllowEntry(s string) (string, error) {
	if a, err := netip.ParseAddr(s); err == nil && a.Zone() == "" {
		a = a.Unmap()
		return netip.PrefixFrom(a, a.BitLen()).String(), nil
	}
	if p, err := netip.ParsePrefix(s); err == nil {
		if p.Masked() != p {
			return "", fmt.Errorf("the entry %q has bits beyond its mask; the network is %s", s, p.Masked())
		}
		return p.String(), nil
	}
	d := strings.TrimSuffix(strings.ToLower(s), ".")
	labels := strings.Split(strings.TrimPrefix(d, "*."), ".")
	bad := len(d) > 253 || len(labels) < 2 || strings.Trim(labels[len(labels)-1], "0123456789") == ""
	for _, l := range labels {
		bad = bad || !domainLabel.MatchString(l)
	}
	if bad {
		return "", fmt.Errorf("the entry %s is neither a CIDR nor a domain", Quoted(s))
	}
	return d, nil
}

// AllowEntryKindOf tells the kind of a canonical entry.
func AllowEntryKindOf(entry string) AllowEntryKind {
	if strings.Contains(entry, "/") {
		return AllowEntryCIDR
	}
	return AllowEntryDomain
}

// settings checks values against the list of settings and gives the canonical ones: keys with their default dropped,
// lists without an order sorted.
func (r *resolver) settings(attr []string, known []Setting, in Settings) Settings {
	out := Settings{}
	for _, key := range sortedKeys(in) {
		v := in[key]
		at := append(slices.Clone(attr), key)
		i := slices.IndexFunc(known, func(s Setting) bool { return s.Name == key })
		if i < 0 {
			r.refuse(CodeValue, at, fmt.Sprintf("there is no setting %s.", Quoted(key)), "Remove it.")
			continue
		}
		if v == nil {
			continue
		}
		if c, ok := r.setting(at, known[i], v); ok && !isDefault(known[i], c) {
			out[key] = c
		}
	}
	return out
}

func isDefault(s Setting, v any) bool {
	switch x := v.(type) {
	case []any:
		return len(x) == 0 && s.Default == nil
	case map[string]any:
		return len(x) == 0 && s.Default == nil
	}
	return s.Default != nil && v == normalNumber(s.Default)
}

func normalNumber(v any) any {
	switch n := v.(type) {
	case int:
		return float64(n)
	case int64:
		return float64(n)
	}
	return v
}

func (r *resolver) setting(at []string, s Setting, v any) (any, bool) {
	wrong := func(want string) (any, bool) {
		r.refuse(CodeValue, at, "the value is of the wrong kind.", "Give "+want+".")
		return nil, false
	}
	switch s.Kind {
	case KindString:
		t, ok := v.(string)
		if !ok {
			return wrong("a string")
		}
		return t, r.text(at, s, t)
	case KindInt, KindFloat:
		n, ok := normalNumber(v).(float64)
		if !ok || math.IsNaN(n) || math.IsInf(n, 0) || (s.Kind == KindInt && n != math.Trunc(n)) {
			return wrong("a number" + map[bool]string{true: " without a fraction"}[s.Kind == KindInt])
		}
		if (s.Min != nil && n < *s.Min) || (s.Max != nil && n > *s.Max) {
			r.refuse(CodeValue, at, FormatNumber(n)+" is out of range.", "Use "+rangeHint(s)+".")
			return nil, false
		}
		return n, true
	case KindBool:
		if _, ok := v.(bool); !ok {
			return wrong("true or false")
		}
		return v, true
	case KindStringList:
		l, ok := v.([]any)
		if !ok {
			return wrong("a list of strings")
		}
		list := make([]string, 0, len(l))
		for _, e := range l {
			t, ok := e.(string)
			if !ok {
				return wrong("a list of strings")
			}
			if !r.text(at, s, t) {
				return nil, false
			}
			list = append(list, t)
		}
		if !s.Ordered {
			list = sortedUnique(list)
		}
		return anyList(list), true
	case KindStringMap:
		m, ok := v.(map[string]any)
		if !ok {
			return wrong("a map of strings")
		}
		for _, k := range sortedKeys(m) {
			t, ok := m[k].(string)
			if !ok {
				return wrong("a map of strings")
			}
			if !r.text(at, Setting{}, k) || !r.text(at, s, t) {
				return nil, false
			}
		}
		return m, true
	case KindObject:
		m, ok := v.(map[string]any)
		if !ok {
			return wrong("an object")
		}
		return map[string]any(r.settings(at, s.Fields, m)), true
	}
	return wrong("a known kind of value")
}

func (r *resolver) text(at []string, s Setting, t string) bool {
	switch {
	case strings.ContainsRune(t, 0) || !utf8.ValidString(t):
		r.refuse(CodeValue, at, "the value has a NUL byte or is not UTF-8.", "Write plain text.")
	case len(s.OneOf) > 0 && !slices.Contains(s.OneOf, t):
		r.refuse(CodeValue, at, fmt.Sprintf("%s is not a possible value.", Quoted(t)), "Use one of "+quoteList(s.OneOf)+".")
	case s.Pattern != "" && !regexp.MustCompile(s.Pattern).MatchString(t):
		hint := s.PatternHint
		if hint == "" {
			hint = "a text that matches " + s.Pattern
		}
		r.refuse(CodeValue, at, fmt.Sprintf("%s is not a possible value.", Quoted(t)), "Write "+hint+".")
	default:
		return true
	}
	return false
}

func rangeHint(s Setting) string {
	switch {
	case s.Min != nil && s.Max != nil:
		return FormatNumber(*s.Min) + " to " + FormatNumber(*s.Max)
	case s.Min != nil:
		return "at least " + FormatNumber(*s.Min)
	default:
		return "at most " + FormatNumber(*s.Max)
	}
}

func anyList(in []string) []any {
	out := make([]any, len(in))
	for i, s := range in {
		out[i] = s
	}
	return out
}

func sortedUnique(in []string) []string {
	out := slices.Clone(in)
	slices.Sort(out)
	return slices.Compact(out)
}

func sortedKeys[V any](m map[string]V) []string {
	out := make([]string, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

func quoteList[T ~string](in []T) string {
	out := make([]string, len(in))
	for i, s := range in {
		out[i] = fmt.Sprintf("%q", string(s))
	}
	return strings.Join(out, ", ")
}
