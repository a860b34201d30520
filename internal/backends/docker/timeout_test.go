package docker

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/testenv"
)

// hard is what code does to survive its timeout. Each says "up" when everything is set up; processes are called
// "survivor" so that they can be counted.
var hard = map[string]string{
	"forked children": `
import os,time,sys
for _ in range(5):
    if os.fork()==0: name(); time.sleep(300)
`,
	"new sessions": `
import os,time
for _ in range(3):
    if os.fork()==0: os.setsid(); name(); time.sleep(300)
`,
	"double fork": `
import os,time
for _ in range(3):
    if os.fork()==0:
        os.setsid()
        if os.fork()==0: name(); time.sleep(300)
        os._exit(0)
`,
	"cleared environment": `
import os,time
if os.fork()==0:
    os.setsid()
    os.execve("/usr/bin/python3",["survivor","-c","open('/proc/self/comm','w').write('survivor')\nimport time;time.sleep(300)"],{})
`,
	"ignored signals": `
import os,time,signal
for s in range(1,65):
    try: signal.signal(s,signal.SIG_IGN)
    except (OSError,ValueError): pass
`,
	"fork bomb at the process limit": `
import os
def bomb():
    name()
    while True:
        try:
            if os.fork()==0: os.setsid()
        except OSError: pass
if os.fork()==0: bomb()
`,
	"kills its supervisor": `
import os,signal
if os.fork()==0:
    os.setsid(); name(); time.sleep(300)
time.sleep(0.2)
os.kill(os.getppid(),signal.SIGKILL)
`,
	"stops its supervisor": `
import os,signal
if os.fork()==0:
    os.setsid(); name(); time.sleep(300)
time.sleep(0.2)
if os.getppid()!=1: os.kill(os.getppid(),signal.SIGSTOP)
`,
}

const hardProlog = "import time\ndef name(): open('/proc/self/comm','w').write('survivor')\nname()\n"

const hardEpilog = "\nwhile True: time.sleep(1)\n"

// Whatever code does, its timeout ends it, nothing of it survives, and a run beside it that provably overlaps goes on.
func TestTimeoutKillsEverything(t *testing.T) {
	e := engine(t)
	for what, code := range hard {
		t.Run(what, func(t *testing.T) {
			s := create(t, e, profile("python", settings(keyPidsLimit, 128.0)))
			neighbour := startNeighbour(t, s)
			begin := time.Now()
			o := execute(t.Context(), s, sandboxcore.RunRequest{
				Kind: sandboxcore.RunCode, Language: "python", Text: []byte(hardProlog + code + hardEpilog), Timeout: 2 * time.Second, Grace: 500 * time.Millisecond,
			})
			took := time.Since(begin)
			switch what {
			case "kills its supervisor":
				// Nobody is left to tell how it ended. That is no exit status.
				refused(t, o.err, sandboxcore.CodeUnknownOutcome)
			case "stops its supervisor":
				if c := sandboxcore.CodeOf(o.err); c != sandboxcore.CodeUnknownOutcome && c != sandboxcore.CodeTimeout {
					t.Errorf("%v", o.err)
				}
			default:
				refused(t, o.err, sandboxcore.CodeTimeout, "2s")
			}
			if took > 12*time.Second {
				t.Errorf("it took %s", took)
			}
			waitNone(t, s, 5*time.Second)
			neighbour.finish(t)
		})
	}
}

// waitNone fails when processes called survivor are left after a time.
func waitNone(t *testing.T, s sandboxcore.Environment, limit time.Duration) {
	t.Helper()
	var got string
	for until := time.Now().Add(limit); time.Now().Before(until); {
		got = strings.TrimSpace(shell(t, s, countProcesses("survivor")).ok(t))
		if got == "0" {
			return
		}
	}
	t.Errorf("%s processes survive", got)
}

// neighbour is a run in the same sandbox that must not notice anything.
type neighbour struct {
	s    *sandbox
	done chan outcome
}

func startNeighbour(t *testing.T, s *sandbox) *neighbour {
	t.Helper()
	n := &neighbour{s: s, done: make(chan outcome, 1)}
	w := &signalWriter{first: make(chan struct{})}
	go func() {
		res, err := s.Run(context.WithoutCancel(t.Context()), sandboxcore.RunRequest{
			// It forks nothing: at the limit of processes it could not.
			Kind: sandboxcore.RunCode, Language: "python", Timeout: 2 * time.Minute,
			Text: []byte("import os,sys,time\nprint('up',flush=True)\nwhile not os.path.exists('done'): time.sleep(0.05)\nsys.exit(7)"),
		}, w, nil)
		n.done <- outcome{RunResult: res, err: err}
	}()
	select {
	case <-w.first:
	case <-time.After(time.Minute):
		t.Fatal("the neighbour does not start")
	}
	return n
}

func (n *neighbour) finish(t *testing.T) {
	t.Helper()
	select {
	case o := <-n.done:
		t.Errorf("the neighbour was disturbed: exit %d, %v", o.ExitCode, o.err)
		return
	default:
	}
	if err := n.s.WriteFile(context.WithoutCancel(t.Context()), "done", nil, 0o600); err != nil {
		t.Error(err)
		return
	}
	if o := <-n.done; o.err != nil || o.ExitCode != 7 {
		t.Errorf("the neighbour ended with %d, %v", o.ExitCode, o.err)
	}
}

func TestCancelledRunIsKilled(t *testing.T) {
	e := engine(t)
	s := create(t, e, profile("python"))
	n := startNeighbour(t, s)
	ctx, cancel := context.WithCancel(t.Context())
	w := &signalWriter{first: make(chan struct{})}
	go func() { <-w.first; cancel() }()
	begin := time.Now()
	_, err := s.Run(ctx, sandboxcore.RunRequest{
		Kind: sandboxcore.RunCode, Language: "python", Text: []byte(hardProlog + hard["double fork"] + "print('up',flush=True)" + hardEpilog), Timeout: time.Minute, Grace: 200 * time.Millisecond,
	}, w, nil)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	refused(t, err, sandboxcore.CodeUnknownOutcome, "Every process of it was ended")
	if time.Since(begin) > 10*time.Second {
		t.Errorf("it took %s", time.Since(begin))
	}
	waitNone(t, s, time.Second)
	n.finish(t)
}

func TestCancelledBeforeStart(t *testing.T) {
	e := engine(t)
	s := create(t, e, profile("python"))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := s.Run(ctx, sandboxcore.RunRequest{Argv: []string{"touch", "ran"}, Timeout: time.Minute}, nil, nil)
	if !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if _, _, err := s.ReadFile(t.Context(), "ran", 1); !isMissing(err) {
		t.Error("it ran")
	}
}

// A provider that dies without a word takes its run with it, and nothing else.
func TestProviderKilledInMidRun(t *testing.T) {
	if id := os.Getenv("AGENTKERNEL_TEST_VICTIM"); id != "" {
		e := dial(t, nil, os.Getenv)
		s, err := e.Find(t.Context(), id, true)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = s.Run(t.Context(), sandboxcore.RunRequest{
			Kind: sandboxcore.RunCode, Language: "python", Text: []byte(hardProlog + hard["double fork"] + "open('/workspace/up','w')" + hardEpilog), Timeout: 5 * time.Minute,
		}, nil, nil)
		return
	}
	testenv.Require(t, "docker")
	e := engine(t)
	s := create(t, e, profile("python"))
	n := startNeighbour(t, s)
	cmd := exec.Command(os.Args[0], "-test.run=^TestProviderKilledInMidRun$")
	cmd.Env = append(os.Environ(), "AGENTKERNEL_TEST_VICTIM="+s.info.NativeID)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for until := time.Now().Add(time.Minute); ; {
		if _, _, err := s.ReadFile(t.Context(), "up", 1); err == nil {
			break
		}
		if time.Now().After(until) {
			t.Fatal("the run does not start")
		}
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	waitNone(t, s, 10*time.Second)
	n.finish(t)
}
