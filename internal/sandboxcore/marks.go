package sandboxcore

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Keys under which the marks of a managed sandbox travel with the object: as labels on Docker, as annotations and
// labels on Kubernetes, in the marker file of local workspaces.
const (
	MarkManaged     = "agentkernel.io/managed"     // always "true"
	MarkKind        = "agentkernel.io/kind"        // "sandbox", or what else the provider keeps ("helper", "workspace")
	MarkName        = "agentkernel.io/name"        // the user's name of it
	MarkSpec        = "agentkernel.io/spec"        // canonical spec
	MarkFingerprint = "agentkernel.io/fingerprint" // sha256 of the spec, hex
	MarkArgs        = "agentkernel.io/args"        // CreateArgs as JSON
	MarkCreated     = "agentkernel.io/created-at"  // RFC 3339, UTC, by the provider's clock
	MarkRequest     = "agentkernel.io/request"     // random id of the create call
)

// Marks are what a managed object carries so that it is recognised as ours, listed and imported. They hold no secret.
type Marks struct {
	Name    string
	Spec    string
	Args    CreateArgs
	Created time.Time
	Request string
}

// Encode gives the marks as key -> value.
func (m Marks) Encode() (map[string]string, error) {
	args, err := json.Marshal(m.Args)
	if err != nil {
		return nil, fmt.Errorf("encode the create-time arguments: %w", err)
	}
	return map[string]string{
		MarkManaged:     "true",
		MarkKind:        "sandbox",
		MarkName:        m.Name,
		MarkSpec:        m.Spec,
		MarkFingerprint: Fingerprint(m.Spec),
		MarkArgs:        string(args),
		MarkCreated:     m.Created.UTC().Format(time.RFC3339Nano),
		MarkRequest:     m.Request,
	}, nil
}

// DecodeMarks reads marks back; extra keys are ignored. An object without our marks, or with marks that do not fit
// together (a spec whose fingerprint is another), gives an Error with CodeNotOurs for object.
func DecodeMarks(object string, kv map[string]string) (Marks, error) {
	notOurs := func(said string) error {
		return &Error{
			Code: CodeNotOurs, Attempted: "the object was refused", Object: object, Said: said,
			Next: "Only objects that this provider created can be used as managed sandboxes; it never touches others.",
		}
	}
	if kv[MarkManaged] != "true" || kv[MarkKind] != "sandbox" {
		return Marks{}, notOurs("it does not carry the mark " + MarkManaged + " of this provider.")
	}
	m := Marks{Name: kv[MarkName], Spec: kv[MarkSpec], Request: kv[MarkRequest]}
	if m.Spec == "" || !strings.EqualFold(kv[MarkFingerprint], Fingerprint(m.Spec)) {
		return Marks{}, notOurs("the spec in its marks does not have the fingerprint that stands beside it.")
	}
	if a := kv[MarkArgs]; a != "" {
		if err := json.Unmarshal([]byte(a), &m.Args); err != nil {
			return Marks{}, notOurs("the create-time arguments in its marks cannot be read: " + err.Error() + ".")
		}
	}
	if c := kv[MarkCreated]; c != "" {
		t, err := time.Parse(time.RFC3339Nano, c)
		if err != nil {
			return Marks{}, notOurs("the creation time in its marks cannot be read.")
		}
		m.Created = t
	}
	return m, nil
}

// CheckMarks refuses, before an object is taken into a state, marks that this provider cannot have written: whoever may
// write to the backend may have put anything there, and Terraform prints what stands in a state. Values of the environment
// are as free as a configuration is.
func CheckMarks(object string, m Marks) error {
	bad := ""
	found := checkArguments(m.Name, m.Args.Labels, m.Args.Packages)
	switch {
	case len(found) > 0 && len(found[0].Attribute) > 0:
		bad = found[0].Attribute[0]
	case slices.ContainsFunc(sortedKeys(m.Args.Env), func(name string) bool { return !isOneLine(name) }) || CheckEnv("env", m.Args.Env) != nil:
		bad = "env"
	case !isDuration(m.Args.MaxLifetime):
		bad = "max_lifetime"
	case slices.ContainsFunc(sortedKeys(m.Args.Timeouts), func(name string) bool { return !isDuration(m.Args.Timeouts[name]) }):
		bad = "timeouts"
	default:
		args := m.Args
		args.Env = nil
		text, err := json.Marshal(args)
		var v any
		if err == nil {
			err = json.Unmarshal(text, &v)
		}
		if err == nil && isClean(v) {
			return nil
		}
		bad = "arguments"
	}
	return &Error{
		Code: CodeNotOurs, Attempted: "the object was refused", Object: object,
		Said: fmt.Sprintf("its marks have %s that no configuration of this provider can have.", bad), Next: "Somebody else wrote them. Remove the object by hand if it is not in use.",
	}
}

func isDuration(s string) bool {
	_, err := time.ParseDuration(s)
	return s == "" || err == nil
}

// isClean reports whether no text in what was decoded from JSON has anything hidden in it.
func isClean(v any) bool {
	switch x := v.(type) {
	case string:
		return Clean(x) == x
	case []any:
		return !slices.ContainsFunc(x, func(e any) bool { return !isClean(e) })
	case map[string]any:
		for k, e := range x {
			if !isOneLine(k) || !isClean(e) {
				return false
			}
		}
	}
	return true
}
