//go:build linux

package ec2ssm

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/ssmpeer"
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

// countedRun carries its input in pieces, its output in pages and leaves a process; it counts how often it really ran. fault is
// asked before each call, n counts them from 1.
func countedRun(ctx context.Context, t *testing.T, p *place, m *machine, mark string, fault func(action string, n int) *ssmpeer.Fault) (o outcome, ran, calls int) {
	t.Helper()
	counter := filepath.Join(t.TempDir(), "count")
	req := script("export " + mark + "; echo once >>" + counter + "; setsid sleep 306 & cat >/dev/null; head -c 60000 /dev/zero")
	req.Stdin = make([]byte, 60_000)
	p.peer.Lock()
	p.peer.Fault = func(action string, _ int) *ssmpeer.Fault { // the lock is held
		calls++
		return fault(action, calls)
	}
	p.peer.Unlock()
	o = m.try(ctx, req)
	content, err := os.ReadFile(counter) // #nosec G304 -- of this test
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	p.peer.Lock()
	defer p.peer.Unlock()
	return o, strings.Count(string(content), "once"), calls
}

// judgeRun holds what a run told against what was seen of it.
func judgeRun(t *testing.T, name string, o outcome, ran int, mark string) {
	t.Helper()
	if ran > 1 {
		t.Errorf("%s: it ran %d times", name, ran)
	}
	if o.err == nil && (ran != 1 || int64(len(o.stdout))+o.StdoutLost != 60_000) {
		t.Errorf("%s: ran %d times, %d bytes here, %d lost", name, ran, len(o.stdout), o.StdoutLost)
	}
	if o.err != nil && ran > 0 && strings.Contains(o.err.Error(), "Nothing ran") {
		t.Errorf("%s: it ran, and %v", name, o.err)
	}
	if o.err != nil && sandboxcore.CodeOf(o.err) == "" {
		t.Errorf("%s: %v", name, o.err)
	}
	if alive := ssmpeer.Marked(mark); len(alive) != 0 && (o.err == nil || !strings.Contains(o.err.Error(), "could not be confirmed")) {
		t.Errorf("%s: alive %v, %v", name, alive, o.err)
	}
}

// TestCancelInEachPhase: whenever a run is cancelled, nothing of it stays on the machine, it ran at most once, and "nothing
// ran" is only said where nothing did.
func TestCancelInEachPhase(t *testing.T) {
	p := newPlace(t)
	m := p.on(t.Context())
	mark := "ANCHOR_OF_TEST=" + newRunID()
	never := func(string, int) *ssmpeer.Fault { return nil }
	o, ran, calls := countedRun(t.Context(), t, p, m, mark, never)
	if o.err != nil || ran != 1 || len(o.stdout) != 60_000 || calls < 10 {
		t.Fatalf("%v, ran %d times, %d bytes, %d calls", o.err, ran, len(o.stdout), calls)
	}
	for at := 1; at <= calls; at++ {
		ctx, cancel := context.WithCancel(t.Context())
		o, ran, _ := countedRun(ctx, t, p, m, mark, func(_ string, n int) *ssmpeer.Fault {
			if n == at {
				cancel()
			}
			return nil
		})
		cancel()
		judgeRun(t, fmt.Sprintf("cancelled at %d", at), o, ran, mark)
		if o.err != nil {
			refused(t, o.err, sandboxcore.CodeUnknownOutcome)
		}
	}
	nothingLeft(t)
}

// TestFaultInEachCall: the same for whatever one call may come to.
func TestFaultInEachCall(t *testing.T) {
	p := newPlace(t)
	m := p.on(t.Context())
	mark := "ANCHOR_OF_TEST=" + newRunID()
	for name, fault := range map[string]ssmpeer.Fault{
		"throttled": {Code: "ThrottlingException"}, "denied": {Code: "AccessDeniedException", Status: 403}, "dropped before": {Drop: true},
	} {
		for at := 1; at <= 20; at++ {
			o, ran, calls := countedRun(t.Context(), t, p, m, mark, func(_ string, n int) *ssmpeer.Fault {
				if n == at {
					return &fault
				}
				return nil
			})
			judgeRun(t, fmt.Sprintf("%s at %d", name, at), o, ran, mark)
			if name == "throttled" && o.err != nil {
				t.Errorf("throttled at %d: %v", at, o.err)
			}
			if calls < at {
				break
			}
		}
	}
	nothingLeft(t)
}

// TestManyAtOnce: runs and files on one machine do not get into each other's way.
func TestManyAtOnce(t *testing.T) {
	p := newPlace(t)
	m := p.on(t.Context())
	dir := t.TempDir()
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			file, content := filepath.Join(dir, fmt.Sprint(i)), noise(40_000+i)
			if err := m.WriteFile(t.Context(), file, content, 0o600); err != nil {
				t.Error(err)
			}
			req := script(fmt.Sprintf("echo %d; setsid sleep 307 & cat %s", i, file))
			if i%2 == 1 {
				req.Text = append(req.Text, "; sleep 308"...)
				req.Timeout = time.Second
			}
			o := m.try(t.Context(), req)
			if want := fmt.Sprintf("%d\n%s", i, content); o.stdout != want || (o.err == nil) != (i%2 == 0) {
				t.Errorf("%d: %d bytes, want %d, %v", i, len(o.stdout), len(want), o.err)
			}
			if back, _, err := m.ReadFile(t.Context(), file, 1<<20); err != nil || !bytes.Equal(back, content) {
				t.Errorf("%d: %v", i, err)
			}
		})
	}
	all.Wait()
	nothingLeft(t)
}

// TestAnswerThatRepeatsTheRun: what a run carried stands in no error, whatever AWS repeats of it.
func TestAnswerThatRepeatsTheRun(t *testing.T) {
	p := newPlace(t)
	b := p.bind(p.spec(with(keyAllowSecrets, true)), sandboxcore.DefaultPrincipal())
	p.machine.Script = func([]string) []ssmpeer.State { return []ssmpeer.State{{Status: "InProgress"}} } // nobody sees it end
	text := base64.StdEncoding.EncodeToString([]byte("T='canary-token'; export T " + strings.Repeat("# more of it\n", 20)))
	digest := sandboxcore.FileDigest([]byte("canary-token")) // as a file's, from which a weak secret can be guessed
	for _, action := range []string{"ssm:SendCommand", "ssm:GetCommandInvocation"} {
		p.peer.Lock()
		p.peer.Fault = func(a string, _ int) *ssmpeer.Fault {
			if a == action {
				return &ssmpeer.Fault{Code: "ValidationException", Message: "Value '{commands=[printf %s '" + text + "' >>x; [ $s = " + digest + " ]]}' at 'parameters' failed"}
			}
			return nil
		}
		p.peer.Unlock()
		_, err := p.run(t.Context(), sandboxcore.ExecRequest{Binding: &b, Kind: sandboxcore.RunScript, Text: []byte("true"), SecretEnv: map[string]string{"T": "token"}})
		if sandboxcore.CodeOf(err) == "" || !strings.Contains(err.Error(), "at 'parameters' failed") {
			t.Fatalf("%v", err)
		}
		if strings.Contains(err.Error(), digest[:12]) {
			t.Errorf("%s: a digest of it stands in the error: %v", action, err)
		}
		for i := range len(text) - 12 {
			if strings.Contains(err.Error(), text[i:i+12]) {
				t.Fatalf("%s: a part of the run stands in the error: %v", action, err)
			}
		}
	}
}
