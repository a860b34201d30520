package docker

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

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

// TestEventsOfTheAttachedShell: whoever reads the engine's events sees the words of a command, as the documentation says, and
// nothing of code, environment and standard input.
func TestEventsOfTheAttachedShell(t *testing.T) {
	e := engine(t)
	id := somebodys(t, e, func(_ *container.Config, h *container.HostConfig) { h.ReadonlyRootfs = true })
	a := attachIt(t, e, attachedProfile(id))
	from := time.Now()
	for _, req := range []sandboxcore.RunRequest{
		{Kind: sandboxcore.RunCommand, Argv: []string{"echo", "word-of-the-command"}},
		{Kind: sandboxcore.RunScript, Text: []byte("echo canary-code; cat")},
		{Kind: sandboxcore.RunCode, Language: "python", Text: []byte("print('canary-code')")},
	} {
		req.Timeout, req.Env, req.Stdin = time.Minute, map[string]string{"V": "canary-variable"}, []byte("canary-input")
		if o := execute(t.Context(), a, req); o.err != nil || o.ExitCode != 0 {
			t.Fatalf("%+v", o)
		}
	}
	r := e.cli.Events(t.Context(), client.EventsListOptions{
		Since: from.Format(time.RFC3339Nano), Until: time.Now().Format(time.RFC3339Nano), Filters: make(client.Filters).Add("container", id),
	})
	var seen strings.Builder
	for more := true; more; {
		select {
		case m := <-r.Messages:
			fmt.Fprintf(&seen, "%s %v\n", m.Action, m.Actor.Attributes)
		case err := <-r.Err:
			_, more = err, false // the end of the answer
		}
	}
	if !strings.Contains(seen.String(), "word-of-the-command") || strings.Contains(seen.String(), "canary") {
		t.Errorf("%s", seen.String())
	}
}
