package docker

import (
	"testing"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// TestProcessOfTheShell: what a container prints for a process id never makes a signal go to its first process, to every
// process, or to the sender.
func TestProcessOfTheShell(t *testing.T) {
	for line, want := range map[string]string{
		"P77\n": "77", "P2\n": "2", "P1\n": "", "P0\n": "", "P01\n": "", "P00\n": "", "P-1\n": "", "P\n": "", "P7 8\n": "", "Px\n": "", "7\n": "", "P77": "", "P99999999999999999999\n": "",
	} {
		f := &firstLine{}
		if _, err := f.Write([]byte(line)); err != nil {
			t.Fatal(err)
		}
		if got := f.pid(); got != want {
			t.Errorf("%q: %q, want %q", line, got, want)
		}
	}
}

// TestVariablesOfTheAttachedShell: the two names by which a request reaches the shell are nobody else's.
func TestVariablesOfTheAttachedShell(t *testing.T) {
	a := &attached{id: "abc"}
	for _, name := range []string{"AGENTKERNEL_DIR", "AGENTKERNEL_TEXT"} {
		_, err := a.shellOptions(sandboxcore.RunRequest{Kind: sandboxcore.RunCommand, Argv: []string{"env"}, Env: map[string]string{name: "/tmp"}})
		refused(t, err, sandboxcore.CodeValue, name)
	}
	if _, err := a.shellOptions(sandboxcore.RunRequest{Kind: sandboxcore.RunCommand, Argv: []string{"env"}, Env: map[string]string{"AGENTKERNEL_X": "/tmp"}}); err != nil {
		t.Error(err)
	}
}
