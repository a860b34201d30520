package provider_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/backends"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/protocoltest"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/provider"
)

// TestPluginIsNotThisMachine: no isolation is promised for a plugin, but its code does not run where Terraform does.
func TestPluginIsNotThisMachine(t *testing.T) {
	manifest := filepath.Join(t.TempDir(), "abx-provider.toml")
	text := `manifest_version = 1
provider.id = "acme-boxes"
compat.protocol = "e2b-rest/1"
runtime.kind = "rest"
endpoint.base_url = "https://api.acme.example"
features.supported = ["sandbox.lifecycle", "exec.run", "files.rw"]
security.network = ["api.acme.example"]
`
	if err := os.WriteFile(manifest, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	s := protocoltest.New(t, provider.New("test", backends.Registry(), provider.WithGetenv(func(string) string { return "" })))
	noErrors(t, s.Configure(config{"plugin": config{"manifest": manifest}}))
	p := s.Plan(tProfile, protocoltest.State{}, config{"name": "p", "type": "plugin", "plugin": config{"manifest": manifest, "auto_pause": false}})
	noErrors(t, p.Diags)
	if w := p.Diags.Warnings(); !w.Has("No Isolation", `"p"`, "manifest") || w.Has("this machine") || w.Has("memory of the provider") {
		t.Error(w)
	}
}
