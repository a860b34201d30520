package local

import (
	"os"
	"testing"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/backends/workspace/workspacetest"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/testenv"
)

func TestMain(m *testing.M) { os.Exit(workspacetest.Main(m, Factory())) }

func TestSuite(t *testing.T) {
	testenv.Require(t, testenv.Local)
	workspacetest.Suite(t, Factory())
}

func TestSuiteUnprivileged(t *testing.T) {
	testenv.Require(t, testenv.Local)
	if testenv.RerunUnprivileged(t) {
		return
	}
	workspacetest.Suite(t, Factory())
}

func TestTimeouts(t *testing.T) {
	testenv.Require(t, testenv.Local)
	workspacetest.Timeouts(t, Factory(), false)
}

func TestTimeoutsUnprivileged(t *testing.T) {
	testenv.Require(t, testenv.Local)
	if testenv.RerunUnprivileged(t) {
		return
	}
	workspacetest.Timeouts(t, Factory(), false)
}

func BenchmarkRun(b *testing.B) {
	testenv.Require(b, testenv.Local)
	workspacetest.Benchmark(b, Factory())
}
