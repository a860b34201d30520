//go:build linux && (amd64 || arm64)

package bubblewrap_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/backends/bubblewrap"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore/backendtest"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/testenv"
)

func TestContract(t *testing.T) {
	testenv.Require(t, testenv.Bubblewrap)
	contract(t)
}

func TestContractUnprivileged(t *testing.T) {
	testenv.Require(t, testenv.Bubblewrap)
	if testenv.RerunUnprivileged(t) {
		return
	}
	contract(t)
}

func contract(t *testing.T) {
	dir := t.TempDir()
	for _, d := range []string{dir, filepath.Dir(dir)} { // root's sandboxes run as other users, who have to pass
		if err := os.Chmod(d, 0o711); err != nil {
			t.Fatal(err)
		}
	}
	backendtest.Run(t, backendtest.Target{
		Factory:  bubblewrap.Factory(),
		Provider: sandboxcore.Settings{"data_dir": filepath.Join(dir, "data")},
		Getenv:   os.Getenv,
	})
}
