package workspacetest

import (
	"strings"
	"testing"
	"time"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// Timeouts shows what the end of a run means: whatever the code did to get away, nothing of it is alive when the run
// has returned, within the timeout, the grace period and a margin; and another run in the same sandbox goes on.
//
// isolated: the run has a pid namespace and a limit of processes of its own, so that worse code can be tried.
func Timeouts(t *testing.T, factory sandboxcore.Factory, isolated bool) {
	const fork = `
import os, sys, time, signal
N = sys.argv[1] if len(sys.argv) > 1 else os.environ["N"]
def sleeper(clear=False):
    os.execve("/bin/sleep", ["sleep", N], {} if clear else dict(os.environ))
`
	rows := []struct {
		name, code string
		isolated   bool
		// lost: the supervisor itself is attacked, so the outcome may be unknown instead of a timeout.
		lost bool
	}{
		{name: "forked children", code: fork + `
for i in range(20):
    if os.fork() == 0: sleeper()
sleeper()`},
		{name: "new sessions", code: fork + `
for i in range(5):
    if os.fork() == 0:
        os.setsid(); sleeper()
time.sleep(600)`},
		{name: "double fork", code: fork + `
for i in range(5):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0: sleeper()
        os._exit(0)
time.sleep(600)`},
		{name: "cleared environment", code: fork + `
for i in range(5):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0: sleeper(clear=True)
        os._exit(0)
time.sleep(600)`},
		{name: "ignored signals", code: fork + `
for s in range(1, 65):
    try: signal.signal(s, signal.SIG_IGN)
    except (OSError, ValueError): pass
for i in range(5):
    if os.fork() == 0: sleeper()
while True: time.sleep(1)`},
		{name: "stopped children", code: fork + `
for i in range(5):
    pid = os.fork()
    if pid == 0: sleeper()
    time.sleep(0.05); os.kill(pid, signal.SIGSTOP)
time.sleep(600)`},
		{name: "children that change their pid all the time", code: fork + `
for i in range(30):
    if os.fork() == 0:
        os.setsid()
        end = time.time() + 60
        while time.time() < end:
            try:
                if os.fork() > 0: os._exit(0)
            except BlockingIOError: pass  # at the pids limit while the dead wait to be reaped
        os._exit(0)
sleeper()`},
		{name: "code that kills its supervisor", lost: true, code: fork + `
if os.fork() == 0:
    os.setsid(); sleeper()
for s in (signal.SIGTERM, signal.SIGSTOP, signal.SIGKILL):
    try: os.kill(os.getppid(), s)
    except OSError: pass
sleeper()`},
		{name: "fork bomb at the pids limit", isolated: true, code: fork + `
end = time.time() + 60
def child():
    while time.time() < end:
        try:
            if os.fork() == 0: return child()
        except OSError: time.sleep(0.01)
child()`},
		{name: "code that kills everything it can", isolated: true, lost: true, code: fork + `
if os.fork() == 0:
    os.setsid(); sleeper()
time.sleep(0.2)
assert os.getpid() < 1000
os.kill(1, signal.SIGKILL); os.kill(1, signal.SIGSTOP)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
try: os.kill(-1, signal.SIGTERM)
except OSError: pass
sleeper()`},
	}
	for _, row := range rows {
		if row.isolated && !isolated {
			continue
		}
		t.Run(row.name, func(t *testing.T) {
			k := New(t, factory)
			sb := k.Sandbox(t, sandboxcore.Policy{})
			// The neighbour starts before and ends after the run: it waits for a file that only comes then.
			neighbour := make(chan Outcome, 1)
			go func() {
				// It starts no process: under a shared limit of processes it could not.
				neighbour <- Python(sb, `
import os, time
open("neighbour-runs", "w").close()
while not os.path.exists("neighbour-may-end"): time.sleep(0.05)
print("untouched")`)
			}()
			exists := func(name string) bool { _, _, err := sb.ReadFile(t.Context(), name, 1); return err == nil }
			Eventually(t, "the neighbour runs", func() bool { return exists("neighbour-runs") })

			n := Number()
			const timeout, grace = 1200 * time.Millisecond, 300 * time.Millisecond
			started := time.Now()
			o := Run(t.Context(), sb, sandboxcore.RunRequest{
				Kind: sandboxcore.RunCode, Language: "python", Text: []byte(row.code), Env: map[string]string{"N": n}, Timeout: timeout, Grace: grace,
			})
			took := time.Since(started)
			if !row.lost || o.Err == nil {
				WantCode(t, o.Err, sandboxcore.CodeTimeout)
			} else if !sandboxcore.IsCode(o.Err, sandboxcore.CodeTimeout) {
				WantCode(t, o.Err, sandboxcore.CodeUnknownOutcome)
			}
			if o.Stderr != "" && !strings.Contains(row.name, "bomb") {
				t.Errorf("the code itself failed: %s", o.Stderr)
			}
			if took > timeout+grace+5*time.Second {
				t.Errorf("it took %v", took)
			}
			if pids := Processes(n); len(pids) > 0 {
				t.Errorf("left: %v", pids)
			}
			if err := sb.WriteFile(t.Context(), "neighbour-may-end", nil, 0o644); err != nil {
				t.Error(err)
			}
			(<-neighbour).Want(t, "untouched")
		})
	}
}
