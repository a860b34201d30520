package local_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/backends/local"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore/backendtest"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/testenv"
)

func TestContract(t *testing.T) {
	testenv.Require(t, "local")
	backendtest.Run(t, backendtest.Target{
		Factory:  local.Factory(),
		Provider: sandboxcore.Settings{"data_dir": t.TempDir()},
		Getenv:   os.Getenv,
	})
}

// A directory in the data directory that has no marker of ours is refused and stays.
func TestContractForeignDirectory(t *testing.T) {
	testenv.Require(t, "local")
	dir := t.TempDir()
	e, err := sandboxcore.NewEngine(sandboxcore.EngineConfig{
		Registry: sandboxcore.NewRegistry(local.Factory()), Getenv: os.Getenv,
		Provider: map[sandboxcore.BackendType]sandboxcore.Settings{sandboxcore.BackendLocalSubprocess: {"data_dir": dir}},
	})
	if err != nil {
		t.Fatal(err)
	}
	p, err := e.Registry().Resolve(sandboxcore.ProfileInput{Name: "p", Type: "local_subprocess", Blocks: map[string]sandboxcore.Settings{"local_subprocess": {}}})
	if err != nil {
		t.Fatal(err)
	}
	spec, err := sandboxcore.EncodeSpec(p)
	if err != nil {
		t.Fatal(err)
	}
	info, err := e.CreateSandbox(t.Context(), sandboxcore.SandboxRequest{Spec: spec, Name: "x", Principal: sandboxcore.DefaultPrincipal()}, func(sandboxcore.SandboxInfo) {})
	if err != nil {
		t.Fatal(err)
	}
	ref := sandboxcore.SandboxRef{Backend: sandboxcore.BackendLocalSubprocess, Endpoint: info.Endpoint, NativeID: info.NativeID}
	markers, err := filepath.Glob(filepath.Join(dir, "*", info.NativeID, "marker.json"))
	if err != nil || len(markers) != 1 {
		t.Fatalf("%v, %v", markers, err)
	}
	text, err := os.ReadFile(markers[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(markers[0]); err != nil {
		t.Fatal(err)
	}
	if err := e.DestroySandbox(t.Context(), ref); !sandboxcore.IsCode(err, sandboxcore.CodeNotOurs) {
		t.Errorf("got %v", err)
	}
	if _, err := os.Stat(filepath.Dir(markers[0])); err != nil {
		t.Errorf("the directory was touched: %v", err)
	}
	if err := os.WriteFile(markers[0], text, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := e.DestroySandbox(t.Context(), ref); err != nil {
		t.Error(err)
	}
}
