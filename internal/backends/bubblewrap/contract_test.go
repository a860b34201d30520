//go:build linux

package bubblewrap_test

import (
	"os"
	"testing"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/backends/bubblewrap"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore/backendtest"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/testenv"
)

func TestContract(t *testing.T) {
	testenv.Require(t, "bubblewrap")
	backendtest.Run(t, backendtest.Target{
		Factory:  bubblewrap.Factory(),
		Provider: sandboxcore.Settings{"data_dir": passable(t)},
		Getenv:   os.Getenv,
	})
}

// passable makes a data directory that the users of sandboxes may enter; t.TempDir lies below one that they may not.
func passable(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "agentkernel-contract-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	if err := os.Chmod(dir, 0o711); err != nil { // #nosec G302 -- entered, not listed, by other users
		t.Fatal(err)
	}
	return dir
}

// The same as an ordinary user, for whom bubblewrap has neither its own uid nor control groups.
func TestContractUnprivileged(t *testing.T) {
	testenv.Require(t, "bubblewrap", "unprivileged")
	if testenv.RerunUnprivileged(t) {
		return
	}
	backendtest.Run(t, backendtest.Target{
		Factory:  bubblewrap.Factory(),
		Provider: sandboxcore.Settings{"data_dir": t.TempDir()},
		Getenv:   os.Getenv,
	})
}
