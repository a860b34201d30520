//go:build linux && (amd64 || arm64)

package bubblewrap

import (
	"os"
	"testing"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/backends/workspace/workspacetest"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/testenv"
)

func TestMain(m *testing.M) { os.Exit(workspacetest.Main(m, Factory())) }

func TestSuite(t *testing.T) {
	testenv.Require(t, testenv.Bubblewrap)
	workspacetest.Suite(t, Factory())
}

func TestSuiteUnprivileged(t *testing.T) {
	testenv.Require(t, testenv.Bubblewrap)
	if testenv.RerunUnprivileged(t) {
		return
	}
	workspacetest.Suite(t, Factory())
}

func TestTimeouts(t *testing.T) {
	testenv.Require(t, testenv.Bubblewrap)
	workspacetest.Timeouts(t, Factory(), true)
}

func TestTimeoutsUnprivileged(t *testing.T) {
	testenv.Require(t, testenv.Bubblewrap)
	if testenv.RerunUnprivileged(t) {
		return
	}
	workspacetest.Timeouts(t, Factory(), true)
}
