package provider_test

import (
	"strings"
	"testing"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/protocoltest"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/provider"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore/backendtest"
)

type config = protocoltest.Config

const (
	tProfile = "agentkernel_profile"
	tSandbox = "agentkernel_sandbox"
	tExec    = "agentkernel_exec"
)

var fakeSettings = []sandboxcore.Setting{
	{Name: "image", Kind: sandboxcore.KindString, Default: "python", Description: "Image."},
	{Name: "pull_policy", Kind: sandboxcore.KindString, OneOf: []string{"always", "missing"}, Update: sandboxcore.UpdateRecorded, Description: "When to pull."},
	{Name: "size", Kind: sandboxcore.KindInt, Min: new(1.0), Max: new(9.0), Description: "Size."},
	{Name: "ratio", Kind: sandboxcore.KindFloat, Description: "Ratio."},
	{Name: "flag", Kind: sandboxcore.KindBool, Default: true, Description: "Flag."},
	{Name: "caps", Kind: sandboxcore.KindStringList, Pattern: "^[A-Z]+$", Description: "List."},
	{Name: "extra", Kind: sandboxcore.KindStringMap, Description: "Map."},
	{Name: "nested", Kind: sandboxcore.KindObject, Description: "Object.", Fields: []sandboxcore.Setting{
		{Name: "deep", Kind: sandboxcore.KindString, Description: "Deep."},
	}},
	{Name: "attach_to", Kind: sandboxcore.KindString, Description: "Target."},
}

// newFake is a fake backend with every kind of setting.
func newFake() *backendtest.Fake {
	return &backendtest.Fake{
		Settings: fakeSettings, Live: []string{"policy.cpu", "policy.memory_mb"},
		ProviderSettings: []sandboxcore.Setting{
			{Name: "host", Kind: sandboxcore.KindString, Description: "Address."},
			{Name: "token", Kind: sandboxcore.KindString, Sensitive: true, Description: "Credential."},
		},
	}
}

// newServer starts a provider on the fake and configures it.
func newServer(t *testing.T, fake *backendtest.Fake, cfg config) *protocoltest.Server {
	t.Helper()
	s := unconfigured(t, fake)
	if d := s.Configure(cfg); d.HasError() {
		t.Fatalf("configure: %s", d)
	}
	return s
}

func unconfigured(t *testing.T, fake *backendtest.Fake) *protocoltest.Server {
	t.Helper()
	weak := &backendtest.Fake{Type: sandboxcore.BackendLocalSubprocess, Caps: func(*sandboxcore.Profile) sandboxcore.Capabilities {
		return sandboxcore.Capabilities{Isolation: sandboxcore.IsolationNone, Shell: true, Languages: []string{"python", "bash"}, Provisions: true, Attach: true}
	}, Settings: []sandboxcore.Setting{}}
	reg := sandboxcore.NewRegistry(fake.Factory(), weak.Factory())
	return protocoltest.New(t, provider.New("test", reg, provider.WithGetenv(func(string) string { return "" })))
}

// profile makes the spec of a profile on the fake.
func profile(t *testing.T, s *protocoltest.Server, changes config) string {
	t.Helper()
	state := s.MustApply(tProfile, protocoltest.State{}, config{"name": "p", "type": "docker", "docker": config{}}.With(changes))
	spec, _ := state.Get("spec").(string)
	if spec == "" {
		t.Fatalf("no spec: %s", state.JSON())
	}
	return spec
}

func binding(state protocoltest.State) any { return state.Get("binding") }

func wantError(t *testing.T, d protocoltest.Diags, texts ...string) {
	t.Helper()
	if !d.Errors().Has(texts...) {
		t.Errorf("no error with %q among:\n%s", strings.Join(texts, "; "), d)
	}
}

func noErrors(t *testing.T, d protocoltest.Diags) {
	t.Helper()
	if d.HasError() {
		t.Fatalf("errors:\n%s", d)
	}
}
