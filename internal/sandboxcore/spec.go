package sandboxcore

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
)

// SpecVersion is the version of the canonical spec that this provider writes and reads.
const SpecVersion = 1

// MaxSpecBytes bounds the text of a spec: it has to fit into labels and annotations.
const MaxSpecBytes = 64 << 10

// FormatNumber writes a number the way specs and messages show it: without exponent, without trailing zeros.
func FormatNumber(f float64) string { return strconv.FormatFloat(f, 'f', -1, 64) }

// EncodeSpec gives the canonical JSON text of a resolved profile: sorted keys, no white space, only what differs from
// the frozen defaults of spec version 1, and "v": 1.
func EncodeSpec(p *Profile) (string, error) {
	m := map[string]any{"v": json.Number(strconv.Itoa(SpecVersion)), "name": p.Name, "type": string(p.Type)}
	put(m, "environment", string(p.Environment), string(DefaultEnvironment))
	put(m, "scope", string(p.Scope), string(DefaultScope))
	putNumber(m, "idle_timeout", p.IdleTimeout, DefaultIdleTimeout)
	if p.Identity != DefaultIdentity {
		m["identity"] = map[string]any{"mode": string(p.Identity)}
	}
	pol := map[string]any{}
	put(pol, "network_egress", string(p.Policy.NetworkEgress), string(DefaultNetworkEgress))
	putList(pol, "network_allow", p.Policy.NetworkAllow)
	putList(pol, "fs_allow_read", p.Policy.FSAllowRead)
	putList(pol, "fs_allow_write", p.Policy.FSAllowWrite)
	if p.Policy.CPU != nil {
		pol["cpu"] = *p.Policy.CPU
	}
	if p.Policy.MemoryMB != nil {
		pol["memory_mb"] = float64(*p.Policy.MemoryMB)
	}
	putNumber(pol, "timeout", p.Policy.Timeout, DefaultTimeout)
	if !p.Policy.Strict {
		pol["strict"] = false
	}
	put(pol, "min_isolation", string(p.Policy.MinIsolation), "")
	if len(pol) > 0 {
		m["policy"] = pol
	}
	if len(p.Settings) > 0 {
		m[string(p.Type)] = map[string]any(p.Settings)
	}
	text, err := canonicalJSON(m)
	if err == nil && len(text) > MaxSpecBytes {
		err = profileError(p, CodeValue, nil, fmt.Sprintf("its spec has %d bytes, more than %d.", len(text), MaxSpecBytes),
			"Shorten its lists: name directories instead of each path in them, and networks instead of each address.")
	}
	return text, err
}

func put(m map[string]any, key, v, def string) {
	if v != def {
		m[key] = v
	}
}

func putNumber(m map[string]any, key string, v, def float64) {
	if v != def {
		m[key] = v
	}
}

func putList(m map[string]any, key string, v []string) {
	if len(v) > 0 {
		m[key] = anyList(v)
	}
}

func canonicalJSON(m map[string]any) (string, error) {
	v, err := numbersToText(m)
	if err != nil {
		return "", err
	}
	// encoding/json sorts the keys of maps and writes <, > and & as escapes, as jsonencode of Terraform does: a spec in
	// generated configuration is the same text.
	text, err := json.Marshal(v)
	return string(text), err
}

// numbersToText replaces floats by their shortest text, so that 2 is "2" and never "2.0" or "2e+00".
func numbersToText(v any) (any, error) {
	switch x := v.(type) {
	case float64:
		if math.IsNaN(x) || math.IsInf(x, 0) {
			return nil, errors.New("a number of the spec is not finite")
		}
		return json.Number(FormatNumber(x)), nil
	case map[string]any:
		out := make(map[string]any, len(x))
		for k, e := range x {
			c, err := numbersToText(e)
			if err != nil {
				return nil, err
			}
			out[k] = c
		}
		return out, nil
	case Settings:
		return numbersToText(map[string]any(x))
	case []any:
		out := make([]any, len(x))
		for i, e := range x {
			c, err := numbersToText(e)
			if err != nil {
				return nil, err
			}
			out[i] = c
		}
		return out, nil
	}
	return v, nil
}

// wireSpec is the JSON form of a spec. Unknown keys are refused, so that a spec of a newer provider is never half read.
type wireSpec struct {
	V           *int     `json:"v"`
	Name        string   `json:"name"`
	Type        string   `json:"type"`
	Environment *string  `json:"environment"`
	Scope       *string  `json:"scope"`
	IdleTimeout *float64 `json:"idle_timeout"`
	Identity    *struct {
		Mode *string `json:"mode"`
	} `json:"identity"`
	Policy *struct {
		NetworkEgress *string  `json:"network_egress"`
		NetworkAllow  []string `json:"network_allow"`
		FSAllowRead   []string `json:"fs_allow_read"`
		FSAllowWrite  []string `json:"fs_allow_write"`
		CPU           *float64 `json:"cpu"`
		MemoryMB      *int64   `json:"memory_mb"`
		Timeout       *float64 `json:"timeout"`
		Strict        *bool    `json:"strict"`
		MinIsolation  *string  `json:"min_isolation"`
	} `json:"policy"`
}

// ParseSpec reads a canonical spec. Text that does not parse, has unknown keys, is of a newer version, names values out
// of range, or is not the canonical text of what it says, is refused with CodeSpec.
func (reg *Registry) ParseSpec(spec string) (*Profile, error) {
	bad := func(said string, err error) error {
		return &Error{
			Code: CodeSpec, Attempted: "the spec was refused", Said: said, Err: err,
			Next: "Take the spec from agentkernel_profile (resource or data source) and do not edit it.",
		}
	}
	if len(spec) > MaxSpecBytes {
		return nil, bad(fmt.Sprintf("it has more than %d bytes.", MaxSpecBytes), nil)
	}
	var head struct {
		V *int `json:"v"`
	}
	if err := json.Unmarshal([]byte(spec), &head); err != nil {
		return nil, bad("it is not the JSON text of a spec.", jsonCause(err))
	}
	if head.V == nil {
		return nil, bad("it has no version \"v\".", nil)
	}
	if *head.V > SpecVersion {
		return nil, &Error{
			Code: CodeSpec, Attempted: "the spec was refused", Said: fmt.Sprintf("it has version %d, and this provider reads up to %d.", *head.V, SpecVersion),
			Next: "Use a newer provider, at least the release that wrote the spec; nothing of it was read.",
		}
	}
	if *head.V != SpecVersion {
		return nil, bad(fmt.Sprintf("there is no spec version %d.", *head.V), nil)
	}
	var raw map[string]json.RawMessage
	if err := json.Unmarshal([]byte(spec), &raw); err != nil {
		return nil, bad("it is not the JSON text of a spec.", jsonCause(err))
	}
	blocks := map[string]Settings{}
	rest := make(map[string]json.RawMessage, len(raw))
	for k, v := range raw {
		if _, ok := reg.Factory(BackendType(k)); !ok {
			rest[k] = v
			continue
		}
		var s Settings
		if err := json.Unmarshal(v, &s); err != nil {
			return nil, bad("its settings cannot be read.", jsonCause(err))
		}
		blocks[k] = s
	}
	text, err := json.Marshal(rest)
	if err != nil {
		return nil, bad("it is not the JSON text of a spec.", jsonCause(err))
	}
	var w wireSpec
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&w); err != nil {
		return nil, bad("it has keys or values that this provider does not know.", jsonCause(err))
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, bad("text follows the spec.", nil)
	}
	in := ProfileInput{Name: w.Name, Type: w.Type, Environment: w.Environment, Scope: w.Scope, IdleTimeout: w.IdleTimeout, Blocks: blocks, parsed: true}
	if _, ok := blocks[w.Type]; !ok {
		blocks[w.Type] = Settings{} // an empty block has nothing that differs from the defaults
	}
	if w.Identity != nil {
		in.Identity = w.Identity.Mode
	}
	if w.Policy != nil {
		in.Policy = PolicyInput{
			NetworkEgress: w.Policy.NetworkEgress, NetworkAllow: w.Policy.NetworkAllow,
			FSAllowRead: w.Policy.FSAllowRead, FSAllowWrite: w.Policy.FSAllowWrite,
			CPU: w.Policy.CPU, MemoryMB: w.Policy.MemoryMB, Timeout: w.Policy.Timeout, Strict: w.Policy.Strict, MinIsolation: w.Policy.MinIsolation,
		}
	}
	p, err := reg.Resolve(in)
	if err != nil {
		if IsCode(err, CodeUnknownType) {
			return nil, err
		}
		return nil, bad("it says what no profile can say.", err)
	}
	canonical, err := EncodeSpec(p)
	if err != nil {
		return nil, bad("it cannot be written back.", err)
	}
	if canonical != spec {
		return nil, bad("it is not in canonical form (it was edited, or written by hand).", nil)
	}
	return p, nil
}

// jsonCause keeps the position of a JSON error without echoing the text, which may be anything.
func jsonCause(err error) error {
	if s, ok := errors.AsType[*json.SyntaxError](err); ok {
		return fmt.Errorf("syntax error at byte %d", s.Offset)
	}
	return errors.New(Printable(err.Error()))
}

// SpecChange says what the difference between two specs means for a sandbox that exists. Each list has spec paths such
// as "policy.cpu".
type SpecChange struct {
	Recorded []string // only the record changes
	Live     []string // the backend changes it in place
	Replace  []string // the sandbox has to be replaced
}

// Empty reports whether the specs were equal.
func (c SpecChange) Empty() bool { return len(c.Recorded)+len(c.Live)+len(c.Replace) == 0 }

// recordedOnly are the paths of a spec that no sandbox depends on.
var recordedOnly = []string{"name", "scope", "idle_timeout", "policy.strict", "policy.timeout", "policy.min_isolation"}

// DiffProfiles compares two profiles path by path. live are the backend's LiveFields.
func (reg *Registry) DiffProfiles(from, to *Profile, live []string) SpecChange {
	var c SpecChange
	a, b := flatProfile(from), flatProfile(to)
	keys := sortedUnique(append(sortedKeys(a), sortedKeys(b)...))
	for _, k := range keys {
		if a[k] == b[k] {
			continue
		}
		switch {
		case slices.Contains(recordedOnly, k), reg.settingMode(to.Type, k) == UpdateRecorded:
			c.Recorded = append(c.Recorded, k)
		case slices.Contains(live, k), reg.settingMode(to.Type, k) == UpdateLive:
			c.Live = append(c.Live, k)
		default:
			c.Replace = append(c.Replace, k)
		}
	}
	return c
}

func (reg *Registry) settingMode(t BackendType, key string) UpdateMode {
	name, ok := strings.CutPrefix(key, string(t)+".")
	if !ok {
		return UpdateReplace
	}
	f, _ := reg.Factory(t)
	for _, s := range f.Settings {
		if s.Name == name {
			return s.Update
		}
	}
	return UpdateReplace
}

// flatProfile gives the profile as path -> canonical text; a setting is one path, however deep it is.
func flatProfile(p *Profile) map[string]string {
	out := map[string]string{
		"name": p.Name, "type": string(p.Type), "environment": string(p.Environment), "scope": string(p.Scope),
		"idle_timeout": FormatNumber(p.IdleTimeout), "identity.mode": string(p.Identity),
		"policy.network_egress": string(p.Policy.NetworkEgress), "policy.network_allow": strings.Join(p.Policy.NetworkAllow, "\n"),
		"policy.fs_allow_read": strings.Join(p.Policy.FSAllowRead, "\n"), "policy.fs_allow_write": strings.Join(p.Policy.FSAllowWrite, "\n"),
		"policy.timeout": FormatNumber(p.Policy.Timeout), "policy.strict": strconv.FormatBool(p.Policy.Strict),
		"policy.min_isolation": string(p.Policy.MinIsolation),
	}
	if p.Policy.CPU != nil {
		out["policy.cpu"] = FormatNumber(*p.Policy.CPU)
	}
	if p.Policy.MemoryMB != nil {
		out["policy.memory_mb"] = strconv.FormatInt(*p.Policy.MemoryMB, 10)
	}
	for k, v := range p.Settings {
		text, err := canonicalJSON(map[string]any{"v": v})
		if err != nil {
			text = fmt.Sprint(v)
		}
		out[string(p.Type)+"."+k] = text
	}
	return out
}
