package sandboxcore_test

import (
	"testing"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore/backendtest"
)

// weakCaps are those of a backend that enforces nothing.
func weakCaps(*sandboxcore.Profile) sandboxcore.Capabilities {
	return sandboxcore.Capabilities{
		Isolation: sandboxcore.IsolationNone, Shell: true, Languages: []string{"python", "bash"}, Provisions: true, Attach: true,
		NetworkModes: []sandboxcore.NetworkMode{sandboxcore.NetworkAllow},
	}
}

func attachCaps(*sandboxcore.Profile) sandboxcore.Capabilities {
	return sandboxcore.Capabilities{Isolation: sandboxcore.IsolationNone, Languages: []string{"python"}, AttachesExternal: true, PrincipalUser: true, Stdin: true}
}

// fakeSettings has one setting of every kind.
func fakeSettings() []sandboxcore.Setting {
	return []sandboxcore.Setting{
		{Name: "image", Kind: sandboxcore.KindString, Default: "python:3.12-slim"},
		{Name: "pull_policy", Kind: sandboxcore.KindString, Default: "missing", OneOf: []string{"always", "missing", "never"}, Update: sandboxcore.UpdateRecorded},
		{Name: "pids_limit", Kind: sandboxcore.KindInt, Default: 256, Min: new(1.0), Max: new(4096.0)},
		{Name: "factor", Kind: sandboxcore.KindFloat},
		{Name: "init", Kind: sandboxcore.KindBool, Default: false},
		{Name: "caps", Kind: sandboxcore.KindStringList},
		{Name: "steps", Kind: sandboxcore.KindStringList, Ordered: true},
		{Name: "hints", Kind: sandboxcore.KindStringMap},
		{Name: "nested", Kind: sandboxcore.KindObject, Fields: []sandboxcore.Setting{{Name: "user", Kind: sandboxcore.KindString, Pattern: `^[a-z]+$`, PatternHint: "lower-case letters"}}},
		{Name: "attach_to", Kind: sandboxcore.KindString},
	}
}

// newRegistry has a strong backend (docker), a weak one (local_subprocess) and one that only attaches (ec2_ssm).
func newRegistry(t *testing.T, strong *backendtest.Fake) *sandboxcore.Registry {
	t.Helper()
	if strong == nil {
		strong = &backendtest.Fake{}
	}
	strong.Settings = fakeSettings()
	strong.Live = []string{"policy.cpu", "policy.memory_mb"}
	weak := &backendtest.Fake{Type: sandboxcore.BackendLocalSubprocess, Caps: weakCaps}
	attach := &backendtest.Fake{Type: sandboxcore.BackendEC2SSM, Caps: attachCaps, Settings: []sandboxcore.Setting{{Name: "attach_to", Kind: sandboxcore.KindString}}}
	return sandboxcore.NewRegistry(strong.Factory(), weak.Factory(), attach.Factory())
}

func dockerInput(change func(*sandboxcore.ProfileInput)) sandboxcore.ProfileInput {
	in := sandboxcore.ProfileInput{Name: "p", Type: "docker", Blocks: map[string]sandboxcore.Settings{"docker": {}}}
	if change != nil {
		change(&in)
	}
	return in
}

func mustResolve(t *testing.T, reg *sandboxcore.Registry, in sandboxcore.ProfileInput) *sandboxcore.Profile {
	t.Helper()
	p, err := reg.Resolve(in)
	if err != nil {
		t.Fatalf("resolve: %v", err)
	}
	return p
}

func mustSpec(t *testing.T, p *sandboxcore.Profile) string {
	t.Helper()
	s, err := sandboxcore.EncodeSpec(p)
	if err != nil {
		t.Fatalf("encode: %v", err)
	}
	return s
}
