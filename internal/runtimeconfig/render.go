package runtimeconfig

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// Options are the keys of the section beside the profiles, under their names in Agent Kernel; nil is unset, and Agent
// Kernel's default holds.
type Options struct {
	Enabled *bool // nil: true
	// Agents that get the tools: nil is all of them, an empty list none.
	Agents             *[]string
	DefaultProfile     *string
	PrincipalResolver  *string
	ToolOutputMaxChars *int64
	Broker             Broker
	// APIKeyEnv are names of environment variables with API keys, by backend type.
	APIKeyEnv map[string]string
}

// Broker is how runs reach the backend in Agent Kernel.
type Broker struct {
	Flavor                *string
	WaitTimeout           *float64
	WaitPollInterval      *float64
	InlinePayloadMaxBytes *int64
	ResponseTTL           *float64
	SweepInterval         *float64
	WorkerTimeoutCeiling  *float64
}

// Result is the section in three forms.
type Result struct {
	YAML, JSON string
	Env        map[string]string
	// Omitted are the paths of what Agent Kernel has no key for, below the section, sorted.
	Omitted []string
	// Warnings are about what Agent Kernel has a key for and does not do.
	Warnings []Warning
}

// Warning is about one dimension of one profile.
type Warning struct {
	Profile   string
	Dimension string // such as "policy.network_allow"
	Said      string
}

// fileReference is text that Agent Kernel replaces by the content of a file when it reads its configuration.
const fileReference = "<file:"

// variableName is stricter than a shell: an API key that is pasted by mistake has small letters or dashes.
var variableName = regexp.MustCompile(`^[A-Z_][A-Z0-9_]{0,127}$`)

// Render writes profiles. The error is Violations with every fault found.
func Render(profiles []*sandboxcore.Profile, o Options) (Result, error) {
	r := &renderer{options: o}
	sorted := slices.Clone(profiles)
	slices.SortStableFunc(sorted, func(a, b *sandboxcore.Profile) int { return strings.Compare(a.Name, b.Name) })
	var list object
	for i, p := range sorted {
		if i > 0 && sorted[i-1].Name == p.Name {
			r.refuse("profiles", fmt.Sprintf("two profiles have the name %q.", p.Name), "Give each profile a name of its own.")
			continue
		}
		if b, ok := known[p.Type]; ok {
			list.put(p.Name, r.profile(p, b))
			r.judge(p, b)
			continue
		}
		r.omitted = append(r.omitted, path(p, ""))
		r.warn(p, "type", fmt.Sprintf("Agent Kernel has no backend %q. The profile is left out.", p.Type))
	}
	section := r.section(list)
	if len(r.violations) > 0 {
		return Result{}, r.violations
	}
	return r.write(section)
}

type renderer struct {
	options    Options
	omitted    []string
	warnings   []Warning
	violations sandboxcore.Violations
}

func (r *renderer) refuse(attribute, said, next string) {
	r.violations = append(r.violations, &sandboxcore.Error{
		Code: sandboxcore.CodeValue, Attempted: "the configuration of the runtime was not written", Said: said, Next: next, Attribute: []string{attribute},
	})
}

func (r *renderer) warn(p *sandboxcore.Profile, dimension, said string) {
	r.warnings = append(r.warnings, Warning{Profile: p.Name, Dimension: dimension, Said: said})
}

// path is where something of a profile stands in the section.
func path(p *sandboxcore.Profile, below string) string {
	return strings.TrimSuffix("profiles."+p.Name+"."+below, ".")
}

// section gives the keys beside the profiles, and the profiles last.
func (r *renderer) section(list object) object {
	o := r.options
	var s object
	s.put("enabled", o.Enabled == nil || *o.Enabled)
	if o.Agents != nil {
		s.put("agents", anyList(*o.Agents))
	}
	if name, ok := r.defaultProfile(list); ok {
		s.put("default_profile", name)
	}
	if o.PrincipalResolver != nil {
		s.put("principal_resolver", *o.PrincipalResolver)
	}
	if o.ToolOutputMaxChars != nil {
		s.put("tool_output_max_chars", float64(*o.ToolOutputMaxChars))
	}
	if b := o.Broker.object(); len(b) > 0 {
		s.put("broker", b)
	}
	for _, m := range s { // each profile is looked at for itself
		if holds(m.value, fileReference) {
			r.refuse(m.key, fmt.Sprintf("it has a text with %q in it, which Agent Kernel would replace by the content of a file.", fileReference+"…>"), "Change the text.")
		}
	}
	s.put("profiles", list)
	for _, kind := range slices.Sorted(maps.Keys(o.APIKeyEnv)) {
		if !slices.Contains(APIKeyBackends(), sandboxcore.BackendType(kind)) {
			r.refuse("api_key_env", fmt.Sprintf("Agent Kernel knows no API key of the backend %s.", sandboxcore.Quoted(kind)), "Use the keys daytona and e2b.")
		}
		// The value is not shown: it may be a key that was pasted by mistake.
		if !variableName.MatchString(o.APIKeyEnv[kind]) {
			r.refuse("api_key_env", fmt.Sprintf("what stands for %s is no name of an environment variable.", sandboxcore.Quoted(kind)),
				"Write the name of the variable that holds the key, in capital letters, never the key.")
		}
	}
	return s
}

// defaultProfile is the profile that a run without one uses. Agent Kernel looks for one that is called "default".
func (r *renderer) defaultProfile(list object) (string, bool) {
	names := make([]string, len(list))
	for i, m := range list {
		names[i] = m.key
	}
	switch want := r.options.DefaultProfile; {
	case want != nil && !slices.Contains(names, *want):
		r.refuse("default_profile", fmt.Sprintf("no profile with the name %s is written.", sandboxcore.Quoted(*want)),
			"Name one of the profiles whose backend Agent Kernel has: "+quoted(names)+".")
	case want != nil:
		return *want, true
	case len(names) == 1:
		return names[0], true
	case slices.Contains(names, "default"):
		return "default", true
	case len(names) > 1:
		r.refuse("default_profile", "there are several profiles and none is called \"default\".", "Set default_profile to one of "+quoted(names)+".")
	}
	return "", false
}

func quoted(names []string) string {
	out := make([]string, len(names))
	for i, n := range names {
		out[i] = fmt.Sprintf("%q", n)
	}
	return strings.Join(out, ", ")
}

func (b Broker) object() object {
	var o object
	if b.Flavor != nil {
		o.put("flavor", *b.Flavor)
	}
	whole := func(n *int64) *float64 {
		if n == nil {
			return nil
		}
		return new(float64(*n))
	}
	for _, n := range []struct {
		key   string
		value *float64
	}{
		{"wait_timeout", b.WaitTimeout},
		{"wait_poll_interval", b.WaitPollInterval},
		{"inline_payload_max_bytes", whole(b.InlinePayloadMaxBytes)},
		{"response_ttl", b.ResponseTTL},
		{"sweep_interval", b.SweepInterval},
		{"worker_timeout_ceiling", b.WorkerTimeoutCeiling},
	} {
		if n.value != nil {
			o.put(n.key, *n.value)
		}
	}
	return o
}

func (r *renderer) profile(p *sandboxcore.Profile, b backend) object {
	var o object
	o.put("type", string(p.Type))
	o.put("scope", string(p.Scope))
	o.put("environment", string(p.Environment))
	o.put("idle_timeout", p.IdleTimeout)
	o.put("identity", object{{"mode", string(p.Identity)}})
	o.put("policy", r.policy(p))
	o.put(string(p.Type), r.block(p, b))
	if holds(o, fileReference) {
		r.refuse("profiles", fmt.Sprintf("the profile %q has a text with %q in it, which Agent Kernel would replace by the content of a file.", p.Name, fileReference+"…>"),
			"Change the text in the profile.")
	}
	return o
}

func (r *renderer) policy(p *sandboxcore.Profile) object {
	var o object
	o.put("network_egress", string(p.Policy.NetworkEgress))
	for _, l := range []struct {
		key  string
		list []string
	}{{"network_allow", p.Policy.NetworkAllow}, {"fs_allow_read", p.Policy.FSAllowRead}, {"fs_allow_write", p.Policy.FSAllowWrite}} {
		if len(l.list) > 0 {
			o.put(l.key, anyList(l.list))
		}
	}
	if p.Policy.CPU != nil {
		o.put("cpu", *p.Policy.CPU)
	}
	if p.Policy.MemoryMB != nil {
		o.put("memory_mb", float64(*p.Policy.MemoryMB))
	}
	o.put("timeout", p.Policy.Timeout)
	o.put("strict", p.Policy.Strict)
	if p.Policy.MinIsolation != "" {
		r.omitted = append(r.omitted, path(p, "policy.min_isolation"))
	}
	return o
}

// block is the backend's block, which has to be there even when it is empty.
func (r *renderer) block(p *sandboxcore.Profile, b backend) object {
	o := object{}
	written := map[string]bool{}
	for _, k := range b.keys {
		written[k.name] = true
		v, set := p.Settings[k.name]
		switch name, named := r.options.APIKeyEnv[string(p.Type)]; {
		case k.apiKeyEnv && named:
			v = name
		case !set && k.def == nil:
			continue
		case !set:
			v = k.def
		}
		if set && k.convert != nil {
			var left []string
			v, left = k.convert(v)
			for _, l := range left {
				r.omitted = append(r.omitted, path(p, strings.TrimSuffix(string(p.Type)+"."+k.name+"."+l, ".")))
			}
			if v == nil {
				continue
			}
		}
		o.put(k.name, v)
	}
	for _, name := range slices.Sorted(maps.Keys(p.Settings)) {
		if !written[name] {
			r.omitted = append(r.omitted, path(p, string(p.Type)+"."+name))
		}
	}
	return o
}

// write gives the section in its three forms.
func (r *renderer) write(section object) (Result, error) {
	out := Result{Warnings: r.warnings, Omitted: r.omitted, Env: map[string]string{}}
	slices.Sort(out.Omitted)
	root := object{{"sandbox", section}}
	var err error
	if out.YAML, err = yamlText(root); err != nil {
		return Result{}, err
	}
	if out.JSON, err = jsonText(root); err != nil {
		return Result{}, err
	}
	return out, variables(out.Env, "AK_SANDBOX", section)
}

// variables gives the section as environment variables. Agent Kernel matches their names without regard to case and
// splits them at double underscores, so that not every name of a profile could stand in one: the profiles are one
// variable with JSON in it. Lists are JSON too.
func variables(to map[string]string, name string, section object) error {
	for _, m := range section {
		at := name + "__" + strings.ToUpper(m.key)
		switch v := m.value.(type) {
		case object:
			if m.key != "profiles" {
				if err := variables(to, at, v); err != nil {
					return err
				}
				continue
			}
			text, err := jsonText(v)
			if err != nil {
				return err
			}
			to[at] = text
		case string:
			to[at] = v
		default:
			text, err := jsonText(v)
			if err != nil {
				return err
			}
			to[at] = text
		}
	}
	return nil
}

// holds reports whether a text anywhere in v, names included, contains part.
func holds(v any, part string) bool {
	switch x := v.(type) {
	case string:
		return strings.Contains(x, part)
	case object:
		return slices.ContainsFunc(x, func(m member) bool { return strings.Contains(m.key, part) || holds(m.value, part) })
	case []any:
		return slices.ContainsFunc(x, func(e any) bool { return holds(e, part) })
	case map[string]any:
		for k, e := range x {
			if strings.Contains(k, part) || holds(e, part) {
				return true
			}
		}
	}
	return false
}

func anyList(in []string) []any {
	out := make([]any, len(in))
	for i, s := range in {
		out[i] = s
	}
	return out
}
