package workspacetest

import (
	"os/exec"
	"testing"
	"time"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// Benchmark compares a run of /bin/true in a sandbox with a bare child process, in turns.
func Benchmark(b *testing.B, factory sandboxcore.Factory) {
	k := New(b, factory)
	sb := k.Sandbox(b, sandboxcore.Policy{})
	var bare, ours time.Duration
	for b.Loop() {
		started := time.Now()
		if err := exec.Command("/bin/true").Run(); err != nil {
			b.Fatal(err)
		}
		middle := time.Now()
		o := Run(b.Context(), sb, sandboxcore.RunRequest{Kind: sandboxcore.RunCommand, Argv: []string{"/bin/true"}})
		if o.Err != nil || o.ExitCode != 0 {
			b.Fatalf("%+v", o)
		}
		bare += middle.Sub(started)
		ours += time.Since(middle)
	}
	b.ReportMetric(float64(ours)/float64(bare), "ratio")
	b.ReportMetric(float64(ours.Microseconds())/1000/float64(b.N), "ms/run")
	b.ReportMetric(float64(bare.Microseconds())/1000/float64(b.N), "ms/bare")
}
