package runhelper

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/testenv"
)

// sleeper is shell text that sleeps under a mark, in a process whose command line shows it.
func sleeper(mark string) string { return fmt.Sprintf("sh -c 'sleep 1000; : %s'", mark) }

// trees are shell texts that leave processes behind; each prints ready when they run.
func trees(mark string) map[string]string {
	s := sleeper(mark)
	return map[string]string{
		"child":           s + " &",
		"grandchildren":   "sh -c \"" + s + " & " + s + " & wait\" & ",
		"new session":     "setsid " + s + " &",
		"double fork":     "(setsid sh -c \"" + s + " & \" &) ; ",
		"cleared env":     "env -i " + s + " & (env -i setsid /bin/" + s + " &)",
		"ignores signals": "(trap '' TERM HUP INT; " + s + ") & ",
		"stopped":         "setsid sh -c 'kill -STOP $$; : " + mark + "' & ",
		"no descriptors":  s + " <&- >&- 2>&- &",
		"orphan chain":    "( ( ( " + s + " & ) & ) & ) ; ",
	}
}

func TestLeftoversDieWithTheRun(t *testing.T) {
	t.Parallel()
	bothModes(t, func(t *testing.T, mode string) {
		for name, tree := range trees("THE-MARK") {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				mark := marker(t)
				dir := t.TempDir()
				req := sh("%s\nwhile [ ! -e %s/go ]; do sleep 0.01; done; echo done; exit 7", strings.ReplaceAll(tree, "THE-MARK", mark), dir)
				go func() {
					for len(marked(mark)) == 0 {
						time.Sleep(5 * time.Millisecond)
					}
					_ = os.WriteFile(dir+"/go", nil, 0o600)
				}()
				o := mustRun(t, mode, req)
				if o.out != "done\n" || o.ExitCode != 7 || o.LeftoversKilled == 0 || o.Incomplete {
					t.Errorf("%+v", o)
				}
				noneLeft(t, mark)
			})
		}
	})
}

func TestBackgroundDoesNotHoldTheResult(t *testing.T) {
	t.Parallel()
	bothModes(t, func(t *testing.T, mode string) {
		began := time.Now()
		o := mustRun(t, mode, sh("sleep 5 & echo ok"))
		if d := time.Since(began); o.out != "ok\n" || d > time.Second {
			t.Errorf("%q after %v", o.out, d)
		}
		if o.LeftoversKilled != 1 {
			t.Errorf("%d left-overs", o.LeftoversKilled)
		}
	})
}

func TestLastWordsOfABackgroundProcess(t *testing.T) {
	t.Parallel()
	need(t, "bash")
	// The usual way to log: bash does not wait for tee.
	for range 20 {
		o := mustRun(t, "run", BashRequest([]byte("exec > >(cat)\necho one; echo two")))
		if o.out != "one\ntwo\n" {
			t.Fatalf("%q", o.out)
		}
	}
}

func TestFloodingLeftover(t *testing.T) {
	t.Parallel()
	bothModes(t, func(t *testing.T, mode string) {
		began := time.Now()
		if o := mustRun(t, mode, sh("yes & (setsid yes &) ; exit 4")); o.ExitCode != 4 {
			t.Errorf("%+v", o.Result)
		}
		if d := time.Since(began); d > 5*time.Second {
			t.Errorf("took %v", d)
		}
	})
}

func TestTimeout(t *testing.T) {
	t.Parallel()
	bothModes(t, func(t *testing.T, mode string) {
		for _, c := range []struct {
			name, script string
			grace        time.Duration
			min, max     time.Duration
			signal, code int
			out          string
		}{
			{"dies of TERM", "sleep 1000", 5 * time.Second, 0, 2 * time.Second, 15, 143, ""},
			{"handles TERM", "trap 'echo bye; exit 9' TERM; while :; do sleep 0.02; done", 5 * time.Second, 0, 2 * time.Second, 0, 9, "bye\n"},
			{"ignores TERM", "trap '' TERM; while :; do sleep 0.02; done", 400 * time.Millisecond, 400 * time.Millisecond, 3 * time.Second, 9, 137, ""},
			{"no grace", "trap 'echo bye; exit 9' TERM; while :; do sleep 0.02; done", 0, 0, 2 * time.Second, 9, 137, ""},
			{"stopped", "kill -STOP $$", 300 * time.Millisecond, 0, 3 * time.Second, 15, 143, ""},
			{"TERM ends main, child ignores it", "(trap '' TERM; sleep 1000) & sleep 1000", 5 * time.Second, 0, 2 * time.Second, 15, 143, ""},
		} {
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				mark := marker(t)
				req := sh("(%s) & %s", sleeper(mark), c.script)
				req.Timeout, req.Grace = 300*time.Millisecond, c.grace
				began := time.Now()
				o := mustRun(t, mode, req)
				d := time.Since(began)
				if !o.TimedOut || o.Killed || o.Signal != c.signal || o.ExitCode != c.code || o.out != c.out {
					t.Errorf("%+v", o)
				}
				if d < 300*time.Millisecond+c.min || d > c.max {
					t.Errorf("took %v", d)
				}
				noneLeft(t, mark)
			})
		}
	})
}

func TestTimeoutNotReached(t *testing.T) {
	t.Parallel()
	req := sh("echo fine")
	req.Timeout, req.Grace = time.Hour, time.Minute
	if o := mustRun(t, "run", req); o.TimedOut || o.out != "fine\n" {
		t.Errorf("%+v", o)
	}
}

func TestTimeoutWhileFlooding(t *testing.T) {
	t.Parallel()
	bothModes(t, func(t *testing.T, mode string) {
		req := sh("trap '' TERM; yes & yes >&2 & yes")
		req.Timeout, req.Grace = 300*time.Millisecond, 200*time.Millisecond
		var n slowWriter
		began := time.Now()
		res, err := Run(testContext(t), start(t, mode).Conn, req, &n, io.Discard)
		if err != nil || !res.TimedOut || n.n == 0 {
			t.Errorf("%+v %v", res, err)
		}
		if d := time.Since(began); d > 5*time.Second {
			t.Errorf("took %v", d)
		}
	})
}

// A client that stops reading must not keep the tree alive beyond timeout and grace.
func TestTimeoutWhileNobodyReads(t *testing.T) {
	t.Parallel()
	bothModes(t, func(t *testing.T, mode string) {
		mark := marker(t)
		p := start(t, mode)
		req := sh("yes & %s & trap '' TERM; yes; : ", sleeper(mark))
		req.Timeout, req.Grace = 300*time.Millisecond, 200*time.Millisecond
		setup, err := req.encode()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.Control.Write(appendFrame(setup, 'G')); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the tree runs", func() bool { return len(marked(mark)) > 0 })
		began := time.Now()
		eventually(t, "the tree is dead", func() bool { return len(marked(mark)) == 0 })
		if d := time.Since(began); d > 5*time.Second {
			t.Errorf("took %v", d)
		}
		eventually(t, "the helper is gone", func() bool { return !fileExists(fmt.Sprintf("/proc/%d", p.cmd.Process.Pid)) })
		_ = p.close()
	})
}

func TestControlClosedInMidRun(t *testing.T) {
	t.Parallel()
	bothModes(t, func(t *testing.T, mode string) {
		for name, tree := range trees("THE-MARK") {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				mark := marker(t)
				p := start(t, mode)
				go func() {
					eventually(t, "the tree runs", func() bool { return len(marked(mark)) > 0 })
					_ = p.Control.Close()
				}()
				began := time.Now()
				_, err := Run(testContext(t), p.Conn, sh("%s\ntrap '' TERM; while :; do sleep 0.05; done", strings.ReplaceAll(tree, "THE-MARK", mark)), nil, nil)
				if !errors.Is(err, ErrStreamBroken) {
					t.Errorf("%v", err)
				}
				if d := time.Since(began); d > 10*time.Second {
					t.Errorf("took %v", d)
				}
				noneLeft(t, mark)
			})
		}
	})
}

func TestCancel(t *testing.T) {
	t.Parallel()
	bothModes(t, func(t *testing.T, mode string) {
		for _, c := range []struct {
			name, script string
			grace        time.Duration
			signal, code int
		}{
			{"TERM", "sleep 1000", time.Minute, 15, 143},
			{"TERM handled", "trap 'exit 5' TERM; while :; do sleep 0.02; done", time.Minute, 0, 5},
			{"KILL after grace", "trap '' TERM; while :; do sleep 0.02; done", 300 * time.Millisecond, 9, 137},
			{"KILL at once", "trap '' TERM; while :; do sleep 0.02; done", 0, 9, 137},
		} {
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				mark := marker(t)
				ctx, cancel := context.WithCancel(testContext(t))
				defer cancel()
				go func() {
					eventually(t, "the tree runs", func() bool { return len(marked(mark)) > 0 })
					cancel()
				}()
				req := sh("trap '' INT; (trap '' TERM; %s) & %s", sleeper(mark), c.script)
				req.Grace = c.grace
				_, err := Run(ctx, start(t, mode).Conn, req, nil, nil)
				var ce *CancelledError
				if !errors.As(err, &ce) || !errors.Is(err, context.Canceled) || !ce.Confirmed || !ce.Ended {
					t.Fatalf("%v", err)
				}
				if !ce.Result.Killed || ce.Result.TimedOut || ce.Result.Signal != c.signal || ce.Result.ExitCode != c.code {
					t.Errorf("%+v", ce.Result)
				}
				noneLeft(t, mark)
			})
		}
	})
}

func TestCancelledBefore(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	p := start(t, "run")
	cancel()
	_, err := Run(ctx, p.Conn, sh("touch %s/ran", dir), nil, nil)
	if !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	var ce *CancelledError
	if errors.As(err, &ce) && ce.Confirmed && !ce.Ended && fileExists(dir+"/ran") {
		t.Error("it ran nevertheless")
	}
}

// killer is code that kills or stops its supervisor: parent, and everything called akrun above it.
func killer(mark, signal string) string {
	return fmt.Sprintf("%s & setsid %s & while [ $(cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' ' | grep -c .) -lt 1 ]; do :; done\n"+
		"kill -%s $PPID; sleep 1000; : %s", sleeper(mark), sleeper(mark), signal, mark)
}

func TestSupervisorKilledByTheCode(t *testing.T) {
	t.Parallel()
	for _, sig := range []string{"KILL", "STOP", "TERM"} {
		t.Run(sig, func(t *testing.T) {
			t.Parallel()
			for i := range 5 {
				mark := marker(t) + strconv.Itoa(i) + "."
				began := time.Now()
				res, err := Run(testContext(t), start(t, "guard").Conn, sh("echo before; %s", killer(mark, sig)), nil, nil)
				if !errors.Is(err, ErrSupervisorLost) || !res.SupervisorLost || res.ExitCode == 0 {
					t.Errorf("%+v %v", res, err)
				}
				if d := time.Since(began); d > 8*time.Second {
					t.Errorf("took %v", d)
				}
				noneLeft(t, mark)
			}
		})
	}
	t.Run("without guard", func(t *testing.T) {
		t.Parallel()
		mark := marker(t)
		_, err := Run(testContext(t), start(t, "run").Conn, sh("%s", killer(mark, "KILL")), nil, nil)
		var se *StreamError
		if !errors.As(err, &se) || se.NothingRan || se.Ended {
			t.Errorf("%v", err)
		}
		// They survive: this is what guard and init are for. Their groups, because each has a child without a mark.
		for _, pid := range marked(mark) {
			if group, err := syscall.Getpgid(pid); err == nil && group > 1 && group != syscall.Getpgrp() {
				_ = syscall.Kill(-group, syscall.SIGKILL)
			}
		}
	})
}

// The supervisor dies while a frame is half written: the guard completes it from the shared memory.
func TestSupervisorKilledWhileFlooding(t *testing.T) {
	t.Parallel()
	lost := 0
	for i := range 10 {
		mark := marker(t) + strconv.Itoa(i) + "."
		w := &checkWriter{}
		_, err := Run(testContext(t), start(t, "guard").Conn, sh("yes abcdefg & %s & sleep 0.1; kill -KILL $PPID; : %s", sleeper(mark), mark), w, nil)
		if !errors.Is(err, ErrSupervisorLost) && !errors.Is(err, ErrStreamBroken) {
			t.Errorf("%v", err)
		}
		if errors.Is(err, ErrSupervisorLost) {
			lost++
		}
		if w.bad {
			t.Error("the output holds bytes that the program did not write")
		}
		noneLeft(t, mark)
	}
	if lost == 0 {
		t.Error("the guard never managed to report")
	}
}

// checkWriter expects the output of "yes abcdefg".
type checkWriter struct {
	n   int
	bad bool
}

func (w *checkWriter) Write(p []byte) (int, error) {
	for _, c := range p {
		if c != "abcdefg\n"[w.n%8] {
			w.bad = true
		}
		w.n++
	}
	return len(p), nil
}

func TestGuardKilled(t *testing.T) {
	t.Parallel()
	mark := marker(t)
	p := start(t, "guard")
	go func() {
		eventually(t, "the tree runs", func() bool { return len(marked(mark)) > 0 })
		_ = p.cmd.Process.Kill()
	}()
	res, err := Run(testContext(t), p.Conn, sh("%s & %s", sleeper(mark), sleeper(mark)), nil, nil)
	if !errors.Is(err, ErrSupervisorLost) || res.ExitCode == 0 {
		t.Errorf("%+v %v", res, err)
	}
	eventually(t, "nothing is left", func() bool { return len(marked(mark)) == 0 })
}

func TestNeighbourIsUntouched(t *testing.T) {
	t.Parallel()
	bothModes(t, func(t *testing.T, mode string) {
		dir := t.TempDir()
		mark := marker(t)
		type end struct {
			output
			err error
		}
		neighbour := make(chan end, 1)
		go func() {
			// Runs from before the other one's start until after its end, with a tree of the same kind.
			o, err := run(t, mode, sh("setsid sleep 1003 & touch %s/up; while [ ! -e %s/over ]; do sleep 0.01; done; kill -0 $! && echo child alive; exit 11", dir, dir))
			neighbour <- end{o, err}
		}()
		eventually(t, "the neighbour runs", func() bool { return fileExists(dir + "/up") })
		req := sh("setsid %s & trap '' TERM; while :; do sleep 0.02; done", sleeper(mark))
		req.Timeout, req.Grace = 300*time.Millisecond, 200*time.Millisecond
		if o := mustRun(t, mode, req); !o.TimedOut {
			t.Errorf("%+v", o)
		}
		noneLeft(t, mark)
		select {
		case e := <-neighbour:
			t.Fatalf("the neighbour ended early: %+v", e)
		default:
		}
		if err := os.WriteFile(dir+"/over", nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if e := <-neighbour; e.err != nil || e.ExitCode != 11 || e.out != "child alive\n" {
			t.Errorf("%+v", e)
		}
	})
}

func TestKeepBackground(t *testing.T) {
	t.Parallel()
	bothModes(t, func(t *testing.T, mode string) {
		dir := t.TempDir()
		// The process that stays writes to its stdout, which must not kill it.
		req := sh("sh -c 'while [ -d %s ] && [ ! -e %s/stop ]; do echo noise; echo noise >&2; sleep 0.01; touch %s/alive; done; touch %s/stopped' & echo main; exit 2", dir, dir, dir, dir)
		req.KeepBackground = true
		p := start(t, mode)
		began := time.Now()
		res, err := Run(testContext(t), p.Conn, req, nil, nil)
		if err != nil || res.ExitCode != 2 || !res.Background || res.LeftoversKilled != 0 {
			t.Fatalf("%+v %v", res, err)
		}
		if d := time.Since(began); d > 5*time.Second {
			t.Errorf("took %v", d)
		}
		eventually(t, "the background process has begun", func() bool { return fileExists(dir + "/alive") })
		_ = os.Remove(dir + "/alive")
		eventually(t, "it is still alive", func() bool { return fileExists(dir + "/alive") })
		if err := os.WriteFile(dir+"/stop", nil, 0o600); err != nil {
			t.Fatal(err)
		}
		eventually(t, "it stopped by itself", func() bool { return fileExists(dir + "/stopped") })
		eventually(t, "its supervisor went with it", func() bool { return !fileExists(fmt.Sprintf("/proc/%d", p.cmd.Process.Pid)) })
	})
}

func TestKeepBackgroundTerminated(t *testing.T) {
	t.Parallel()
	bothModes(t, func(t *testing.T, mode string) {
		mark := marker(t)
		req := sh("%s & (setsid %s &)", sleeper(mark), sleeper(mark))
		req.KeepBackground = true
		p := start(t, mode)
		if res, err := Run(testContext(t), p.Conn, req, nil, nil); err != nil || !res.Background {
			t.Fatalf("%+v %v", res, err)
		}
		eventually(t, "both run", func() bool { return len(marked(mark)) >= 2 })
		_ = p.cmd.Process.Signal(syscall.SIGTERM)
		eventually(t, "SIGTERM ends it", func() bool { return len(marked(mark)) == 0 })
		eventually(t, "the helper is gone", func() bool { return !fileExists(fmt.Sprintf("/proc/%d", p.cmd.Process.Pid)) })
	})
}

func TestKeepBackgroundWithNothingLeft(t *testing.T) {
	t.Parallel()
	req := sh("echo x")
	req.KeepBackground = true
	if o := mustRun(t, "guard", req); o.Background || o.out != "x\n" {
		t.Errorf("%+v", o)
	}
}

// A process whose first thread has ended looks like a zombie but runs on.
func TestThreads(t *testing.T) {
	t.Parallel()
	need(t, "python3")
	bothModes(t, func(t *testing.T, mode string) {
		mark := marker(t)
		dir := t.TempDir()
		code := fmt.Sprintf(`
import os, threading, time, ctypes
if os.fork() == 0:
    os.setsid()
    def work():
        while True:
            time.sleep(0.01)
            open(%q, "w").close()
    for _ in range(5):
        threading.Thread(target=work).start()
    ctypes.CDLL(None).pthread_exit(None)  # %s
while not os.path.exists(%q):
    time.sleep(0.01)
`, dir+"/beat", mark, dir+"/beat")
		o := mustRun(t, mode, PythonRequest([]byte(code)))
		if o.LeftoversKilled != 1 {
			t.Errorf("%+v", o)
		}
		_ = os.Remove(dir + "/beat")
		time.Sleep(100 * time.Millisecond)
		if fileExists(dir + "/beat") {
			t.Error("its threads survived")
		}
	})
}

// pidsCgroup makes a cgroup with a limit on the number of processes, or returns "" where that is not possible.
func pidsCgroup(t testing.TB, limit int) string {
	t.Helper()
	for _, root := range []string{"/sys/fs/cgroup/pids", "/sys/fs/cgroup"} {
		dir := filepath.Join(root, fmt.Sprintf("akrun-test-%d-%d", os.Getpid(), time.Now().UnixNano()))
		if os.Mkdir(dir, 0o755) != nil {
			continue
		}
		t.Cleanup(func() {
			for range 200 { // EBUSY while the last processes are taken apart
				if err := os.Remove(dir); err == nil || errors.Is(err, os.ErrNotExist) {
					return
				}
				time.Sleep(10 * time.Millisecond)
			}
		})
		if os.WriteFile(dir+"/pids.max", []byte(strconv.Itoa(limit)), 0o600) == nil {
			return dir
		}
	}
	return ""
}

func TestForkBomb(t *testing.T) {
	dir := pidsCgroup(t, 128)
	if dir == "" {
		testenv.Skip(t, testenv.Cgroup, "no writable pids cgroup, and a fork bomb needs a limit", "run the tests as root on a machine with a writable pids controller")
	}
	need(t, "python3")
	// Every process forks as fast as it can, in sessions of its own, and leaves its parent.
	bomb := func(mark string) string {
		return fmt.Sprintf(`python3 -c '
import os, signal
for s in (1, 2, 15): signal.signal(s, signal.SIG_IGN)
while True:
    try:
        if os.fork() == 0: os.setsid()
    except OSError: pass
# %s'`, mark)
	}
	bothModes := func(f func(t *testing.T, mode string)) {
		for _, mode := range modes {
			t.Run(mode, func(t *testing.T) { f(t, mode) })
		}
	}
	start := func(t *testing.T, mode string) *proc {
		p := start(t, mode)
		if err := os.WriteFile(dir+"/cgroup.procs", []byte(strconv.Itoa(p.cmd.Process.Pid)), 0o600); err != nil {
			t.Fatal(err)
		}
		if mode == "guard" { // the supervisor may have been forked before the move
			eventually(t, "the supervisor is in the cgroup", func() bool {
				kids, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", p.cmd.Process.Pid, p.cmd.Process.Pid))
				pid := strings.TrimSpace(string(kids))
				return pid != "" && os.WriteFile(dir+"/cgroup.procs", []byte(pid), 0o600) == nil
			})
		}
		return p
	}
	full := func() bool {
		b, _ := os.ReadFile(dir + "/pids.current")
		n, _ := strconv.Atoi(strings.TrimSpace(string(b)))
		return n >= 120
	}
	bothModes(func(t *testing.T, mode string) {
		t.Run("timeout", func(t *testing.T) {
			mark := marker(t)
			req := sh("%s", bomb(mark))
			req.Timeout, req.Grace = time.Second, 100*time.Millisecond
			began := time.Now()
			res, err := Run(testContext(t), start(t, mode).Conn, req, nil, nil)
			if err != nil || !res.TimedOut || res.Incomplete || res.LeftoversKilled < 50 {
				t.Errorf("%+v %v", res, err)
			}
			t.Logf("dead after %v, %d killed", time.Since(began), res.LeftoversKilled)
			noneLeft(t, mark)
		})
		t.Run("control closed at the limit", func(t *testing.T) {
			mark := marker(t)
			p := start(t, mode)
			go func() {
				eventually(t, "the limit is reached", full)
				_ = p.Control.Close()
			}()
			if _, err := Run(testContext(t), p.Conn, sh("%s", bomb(mark)), nil, nil); !errors.Is(err, ErrStreamBroken) {
				t.Error(err)
			}
			noneLeft(t, mark)
		})
		if mode != "guard" {
			return // nobody is left to end what the supervisor started
		}
		t.Run("bomb kills the supervisor", func(t *testing.T) {
			mark := marker(t)
			_, err := Run(testContext(t), start(t, mode).Conn, sh("s=$PPID; (%s) & while ! (:) 2>/dev/null; do :; done; sleep 0.5; kill -KILL $s", bomb(mark)), nil, nil)
			if !errors.Is(err, ErrSupervisorLost) && !errors.Is(err, ErrStreamBroken) {
				t.Error(err)
			}
			eventually(t, "nothing is left", func() bool { return len(marked(mark)) == 0 })
		})
	})
	t.Run("no process to be had", func(t *testing.T) {
		p := start(t, "run")
		if err := os.WriteFile(dir+"/pids.max", []byte("1"), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := Run(testContext(t), p.Conn, sh("echo no"), nil, nil)
		var se *StartError
		if !errors.As(err, &se) || se.Stage != "fork" || se.Errno != EAGAIN {
			t.Errorf("%v", err)
		}
	})
}

func TestOOM(t *testing.T) {
	need(t, "python3")
	base := "/sys/fs/cgroup/memory"
	limit := "memory.limit_in_bytes"
	if !fileExists(base + "/cgroup.procs") {
		base, limit = "/sys/fs/cgroup", "memory.max"
	}
	dir := filepath.Join(base, fmt.Sprintf("akrun-test-oom-%d", os.Getpid()))
	if err := os.Mkdir(dir, 0o755); err != nil {
		testenv.Skip(t, testenv.Cgroup, "no writable memory cgroup: "+err.Error(), "run the tests as root on a machine with a writable memory controller")
	}
	t.Cleanup(func() {
		eventually(t, "the cgroup goes away", func() bool { return os.Remove(dir) == nil })
	})
	if err := os.WriteFile(dir+"/"+limit, []byte("67108864"), 0o600); err != nil {
		testenv.Skip(t, testenv.Cgroup, "no memory limit: "+err.Error(), "run the tests as root on a machine with a writable memory controller")
	}
	in := func(p *proc) *Conn {
		if err := os.WriteFile(dir+"/cgroup.procs", []byte(strconv.Itoa(p.cmd.Process.Pid)), 0o600); err != nil {
			t.Fatal(err)
		}
		return p.Conn
	}
	eat := []byte("b = []\nwhile True: b.append(bytearray(1 << 20))\n")
	res, err := Run(testContext(t), in(start(t, "run")), PythonRequest(eat), nil, nil)
	if err != nil || !res.OOMKilled || res.OOMKills < 1 || res.Signal != 9 {
		t.Errorf("%+v %v", res, err)
	}
	res, err = Run(testContext(t), in(start(t, "run")), sh("kill -KILL $$"), nil, nil)
	if err != nil || res.OOMKilled || res.OOMKills != 0 || res.Signal != 9 {
		t.Errorf("an ordinary kill: %+v %v", res, err)
	}
	res, err = Run(testContext(t), in(start(t, "run")), sh("python3 -c 'b = []\nwhile True: b.append(bytearray(1 << 20))'; exit 3"), nil, nil)
	if err != nil || res.OOMKilled || res.OOMKills < 1 || res.ExitCode != 3 {
		t.Errorf("a child only: %+v %v", res, err)
	}
}

func TestStartProcessFails(t *testing.T) {
	t.Parallel()
	if _, err := StartProcess(t.Context(), "/nonexistent", nil, nil); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	// A wrapper that fails before there is a helper, as bwrap does where it may not make a namespace.
	conn, err := StartProcess(t.Context(), "/bin/sh", []string{"-c", "echo no namespace for you >&2; echo junk; exit 1"}, func(*exec.Cmd) {})
	if err != nil {
		t.Fatal(err)
	}
	_, err = Run(testContext(t), conn, sh("true"), nil, nil)
	var se *StreamError
	if !errors.As(err, &se) || !se.NothingRan || !strings.Contains(se.Notes, "no namespace for you") || !strings.Contains(se.Notes, "junk") {
		t.Errorf("%v", err)
	}
}
