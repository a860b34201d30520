package sandboxcore

import (
	"fmt"
	"strings"
)

// SandboxID joins a backend type and a native id to the id that users see.
func SandboxID(t BackendType, nativeID string) string { return string(t) + "/" + nativeID }

// SplitID takes an id apart. The native id may hold further slashes.
func (reg *Registry) SplitID(id string) (BackendType, string, error) {
	t, native, ok := strings.Cut(id, "/")
	if _, known := reg.Factory(BackendType(t)); !ok || !known || native == "" || len(native) > 512 || !isOneLine(native) {
		return "", "", &Error{
			Code: CodeSpec, Attempted: "the id was refused", Object: Printable(id), Said: "it does not have the form <backend>/<native id>.",
			Next: "The backend is one of " + quoteList(reg.Types()) + "; for example docker/4f66ad9a0b2e….",
		}
	}
	return BackendType(t), native, nil
}

// CheckBinding refuses a binding whose parts do not fit together, and gives its profile and native id.
func (reg *Registry) CheckBinding(b Binding) (*Profile, string, error) {
	bad := func(attr, said string) error {
		return &Error{
			Code: CodeSpec, Attempted: "the binding was refused", Object: Printable(b.ID), Said: said,
			Next: "Take the binding as a whole from agentkernel_sandbox or agentkernel_attached_environment.", Attribute: []string{"binding", attr},
		}
	}
	p, err := reg.ParseSpec(b.Spec)
	if err != nil {
		return nil, "", err
	}
	if p.Type != b.Backend {
		return nil, "", bad("backend", fmt.Sprintf("its backend is %s but its spec is of type %q.", Quoted(string(b.Backend)), p.Type))
	}
	if p.Environment != b.Environment {
		return nil, "", bad("environment", fmt.Sprintf("its environment is %s but its spec says %q.", Quoted(string(b.Environment)), p.Environment))
	}
	t, native, err := reg.SplitID(b.ID)
	if err != nil {
		return nil, "", err
	}
	if t != b.Backend {
		return nil, "", bad("id", fmt.Sprintf("its id is of backend %q.", t))
	}
	if b.Endpoint == "" {
		return nil, "", bad("endpoint", "it names no endpoint.")
	}
	return p, native, nil
}
