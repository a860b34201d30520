//go:build linux

package ec2ssm

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// TestEnvOfAnyName: no variable of a run changes how often it runs, or takes its mark away.
func TestEnvOfAnyName(t *testing.T) {
	m := newPlace(t).on(t.Context())
	names := []string{"step", "py", "id", "d", "p", "u", "as", "c", "w", "x", "s", "b", "n", "m"}
	for _, value := range []string{"3", "check", "run", "none"} {
		for kind, req := range map[string]sandboxcore.RunRequest{
			"script":  script(""),
			"command": {Kind: sandboxcore.RunCommand, Timeout: 30 * time.Second},
			"python":  {Kind: sandboxcore.RunCode, Language: "python", Timeout: 30 * time.Second},
		} {
			counter := filepath.Join(t.TempDir(), "count")
			show := "echo once >>" + counter + "; printf '%s ' \"$" + strings.Join(names, "\" \"$") + "\" \"$AGENTKERNEL_RUN\""
			switch kind {
			case "script":
				req.Text = []byte(show)
			case "command":
				req.Argv = []string{"sh", "-c", show}
			default:
				req.Text = []byte("import os\nopen('" + counter + "', 'a').write('once\\n')\n" +
					"print(*[os.environ.get(n) for n in '" + strings.Join(names, " ") + " AGENTKERNEL_RUN'.split()], end=' ')")
			}
			req.Env = map[string]string{"AGENTKERNEL_RUN": value}
			for _, n := range names {
				req.Env[n] = value
			}
			o := m.try(t.Context(), req)
			values := strings.Fields(o.stdout)
			if o.err != nil || o.ExitCode != 0 || len(values) != len(names)+1 {
				t.Errorf("%s with %q: %+v", kind, value, o)
				continue
			}
			for i, n := range names {
				if values[i] != value {
					t.Errorf("%s: %s is %q, want %q", kind, n, values[i], value)
				}
			}
			if mark := values[len(names)]; len(mark) != 32 || !strings.HasPrefix(mark, testID()[:8]) {
				t.Errorf("%s: the mark of the run is %q", kind, mark)
			}
			if count, err := exec.CommandContext(t.Context(), "cat", counter).Output(); err != nil || string(count) != "once\n" {
				t.Errorf("%s with %q ran: %q %v", kind, value, count, err)
			}
		}
	}
	nothingLeft(t)
}

// TestNameOfAProcess: a process of the run that calls itself like a line about another process brings no harm to that one.
func TestNameOfAProcess(t *testing.T) {
	m := newPlace(t).on(t.Context())
	victim := exec.CommandContext(t.Context(), "sleep", "300")
	victim.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := victim.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = victim.Wait()
	}()
	defer func() {
		_ = victim.Process.Kill()
		<-ended
	}()
	ready := filepath.Join(t.TempDir(), "ready")
	// One that has lost its mark is found by its session. The name is all that a process can choose freely of what /proc says of it.
	o := m.try(t.Context(), script(fmt.Sprintf(`( printf '\n%d (' >/proc/self/comm; : >%s; sleep 301; : ) & q=$!; env -i /bin/sleep 302 &
i=0; while [ ! -e %s ] && [ $i -lt 200 ]; do sleep 0.02; i=$((i+1)); done; head -n 2 /proc/$q/comm | wc -l`, victim.Process.Pid, ready, ready)))
	if o.err != nil || o.LeftoversKilled != 3 || strings.TrimSpace(o.stdout) != "2" {
		t.Errorf("%+v", o)
	}
	select {
	case <-ended:
		t.Error("a process that is none of the run's was ended")
	case <-time.After(100 * time.Millisecond):
	}
	nothingLeft(t)
}
