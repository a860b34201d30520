package runhelper

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/testenv"
)

// container is `akrun init` as PID 1 of a pid namespace, as an engine would start it.
type container struct {
	cmd *exec.Cmd
	pid int // of init, seen from here
}

func startContainer(t *testing.T, args ...string) *container {
	t.Helper()
	return startContainerAs(t, append([]string{"init"}, args...)...)
}

// startContainerAs starts another mode of the helper as PID 1.
func startContainerAs(t *testing.T, args ...string) *container {
	t.Helper()
	needRoot(t)
	need(t, "unshare")
	need(t, "nsenter")
	c := &container{cmd: exec.Command("unshare", append([]string{"--pid", "--fork", "--mount-proc", helperPath(t)}, args...)...)}
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if c.pid != 0 {
			_ = syscall.Kill(c.pid, syscall.SIGKILL)
		}
		_ = c.cmd.Wait()
	})
	eventually(t, "init runs", func() bool {
		kids, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", c.cmd.Process.Pid, c.cmd.Process.Pid))
		c.pid, _ = strconv.Atoi(strings.TrimSpace(string(kids)))
		comm, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", c.pid))
		return strings.HasPrefix(string(comm), "akrun")
	})
	return c
}

// exec starts a process in the container the way an engine does: its parent is outside.
func (c *container) exec(t *testing.T, args ...string) (*Conn, *exec.Cmd) {
	t.Helper()
	var entered *exec.Cmd
	conn, err := StartProcess(t.Context(), "nsenter", append([]string{"--target", strconv.Itoa(c.pid), "--pid", "--mount"}, args...),
		func(cmd *exec.Cmd) { entered = cmd })
	if err != nil {
		t.Fatal(err)
	}
	return conn, entered
}

func (c *container) run(t *testing.T, req *Request) (output, error) {
	t.Helper()
	var out, errs strings.Builder
	conn, _ := c.exec(t, helperPath(t), "run")
	res, err := Run(testContext(t), conn, req, &out, &errs)
	return output{res, out.String(), errs.String()}, err
}

func TestInitKillsOrphansOnly(t *testing.T) {
	t.Parallel()
	for _, sig := range []string{"KILL", "STOP"} {
		t.Run(sig, func(t *testing.T) {
			t.Parallel()
			c := startContainer(t)
			dir := t.TempDir()
			mark := marker(t)
			neighbour := make(chan error, 1)
			go func() {
				o, err := c.run(t, sh("setsid sleep 1003 & touch %s/up; while [ ! -e %s/over ]; do sleep 0.01; done; kill -0 $! && echo child alive", dir, dir))
				if err == nil && o.out != "child alive\n" {
					err = fmt.Errorf("%+v", o)
				}
				neighbour <- err
			}()
			eventually(t, "the neighbour runs", func() bool { return fileExists(dir + "/up") })
			req := sh("%s & (env -i setsid /bin/%s &) ; kill -%s $PPID; sleep 1000; : %s", sleeper(mark), sleeper(mark), sig, mark)
			conn, nsenter := c.exec(t, helperPath(t), "run")
			began := time.Now()
			ran := make(chan error, 1)
			go func() {
				_, err := Run(testContext(t), conn, req, nil, nil)
				ran <- err
			}()
			eventually(t, "the code runs", func() bool { return len(marked(mark)) > 0 })
			eventually(t, "the orphans are dead", func() bool { return len(marked(mark)) == 0 })
			if d := time.Since(began); d > 6*time.Second {
				t.Errorf("took %v", d)
			}
			_ = nsenter.Process.Signal(syscall.SIGCONT) // it stops when its child does, which an engine would not
			if err := <-ran; !errors.Is(err, ErrStreamBroken) {
				t.Error(err)
			}
			select {
			case err := <-neighbour:
				t.Fatalf("the neighbour ended early: %v", err)
			default:
			}
			must(t, os.WriteFile(dir+"/over", nil, 0o600))
			if err := <-neighbour; err != nil {
				t.Error(err)
			}
			if state(c.pid) == "" {
				t.Error("init is gone")
			}
		})
	}
}

func TestInitReapsAndKillsAnyOrphan(t *testing.T) {
	t.Parallel()
	c := startContainer(t)
	mark := marker(t)
	// Not through a supervisor at all.
	conn, _ := c.exec(t, "sh", "-c", fmt.Sprintf("for i in 1 2 3; do (setsid %s &); done; for i in 1 2 3 4 5; do (true &); done", sleeper(mark)))
	defer func() { _ = conn.close() }()
	eventually(t, "the orphans are there or dead already", func() bool { return len(marked(mark)) <= 3 })
	eventually(t, "the orphans are dead", func() bool { return len(marked(mark)) == 0 })
	eventually(t, "nothing is left to reap", func() bool {
		kids, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", c.pid, c.pid))
		return err == nil && len(kids) == 0
	})
}

func TestInitEnds(t *testing.T) {
	t.Parallel()
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		c := startContainer(t)
		mark := marker(t)
		conn, _ := c.exec(t, helperPath(t), "run")
		done := make(chan error, 1)
		go func() {
			_, err := Run(testContext(t), conn, sh("%s", sleeper(mark)), nil, nil)
			done <- err
		}()
		eventually(t, "a run is there", func() bool { return len(marked(mark)) > 0 })
		_ = syscall.Kill(c.pid, sig)
		if err := c.cmd.Wait(); err != nil {
			t.Errorf("%v: %v", sig, err)
		}
		if err := <-done; !errors.Is(err, ErrStreamBroken) {
			t.Error(err)
		}
		noneLeft(t, mark)
	}
}

func TestInitLifetime(t *testing.T) {
	t.Parallel()
	began := time.Now()
	c := startContainer(t, "--lifetime=1")
	if err := c.cmd.Wait(); err != nil {
		t.Error(err)
	}
	if d := time.Since(began); d < time.Second || d > 5*time.Second {
		t.Errorf("lived %v", d)
	}
	for _, bad := range []string{"--lifetime=", "--lifetime=0", "--lifetime=x", "--lifetime=1s", "--lifetime=99999999999999999999", "--other"} {
		err := exec.Command(helperPath(t), "init", bad).Run()
		var ee *exec.ExitError
		if !errors.As(err, &ee) || ee.ExitCode() != 2 {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

func TestUsage(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{}, {"help"}, {"run", "x", "y"}, {"guard", "x"}} {
		var ee *exec.ExitError
		if err := exec.Command(helperPath(t), args...).Run(); !errors.As(err, &ee) || ee.ExitCode() != 2 {
			t.Errorf("%v: %v", args, err)
		}
	}
}

// pidOne lists ways to start the helper as PID 1 of a namespace of its own.
func pidOne(t *testing.T) map[string]func() *Conn {
	helper := helperPath(t)
	wrap := func(name string, args ...string) func() *Conn {
		return func() *Conn {
			need(t, name)
			conn, err := StartProcess(t.Context(), name, append(args, helper, "run"), nil)
			if err != nil {
				t.Fatal(err)
			}
			return conn
		}
	}
	ways := map[string]func() *Conn{}
	if os.Geteuid() == 0 {
		ways["unshare"] = wrap("unshare", "--pid", "--fork", "--mount-proc")
		// /proc of another pid namespace names other processes: it must not be used.
		ways["foreign proc"] = wrap("unshare", "--pid", "--fork")
	}
	bwrap := []string{"--unshare-user", "--unshare-pid", "--as-pid-1", "--die-with-parent", "--ro-bind", "/", "/", "--dev", "/dev"}
	if exec.Command("bwrap", append(bwrap, "true")...).Run() == nil {
		ways["bwrap"] = wrap("bwrap", append(bwrap, "--proc", "/proc")...)
		ways["bwrap without proc"] = wrap("bwrap", append(bwrap, "--tmpfs", "/proc")...)
	}
	return ways
}

func TestRunAsPIDOne(t *testing.T) {
	t.Parallel()
	for name, begin := range pidOne(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			mark := marker(t)
			var out strings.Builder
			res, err := Run(testContext(t), begin(), &Request{Program: []string{"sh"}, Args: []string{
				"-c",
				fmt.Sprintf("echo $PPID; %s & (setsid %s &); (trap '' TERM; exec setsid %s) & exit 3", sleeper(mark), sleeper(mark), sleeper(mark)),
			}}, &out, nil)
			if err != nil || res.ExitCode != 3 || out.String() != "1\n" || res.Incomplete || res.LeftoversKilled == 0 {
				t.Errorf("%+v %q %v", res, out.String(), err)
			}
			noneLeft(t, mark)

			req := &Request{
				Program: []string{"sh"}, Args: []string{"-c", fmt.Sprintf("trap '' TERM; setsid %s & while :; do sleep 0.02; done", sleeper(mark))},
				Timeout: 300 * time.Millisecond, Grace: 200 * time.Millisecond,
			}
			res, err = Run(testContext(t), begin(), req, nil, nil)
			if err != nil || !res.TimedOut || res.Signal != 9 {
				t.Errorf("%+v %v", res, err)
			}
			noneLeft(t, mark)

			conn := begin()
			go func() {
				eventually(t, "the tree runs", func() bool { return len(marked(mark)) > 0 })
				_ = conn.Control.Close()
			}()
			req.Timeout = 0
			if _, err = Run(testContext(t), conn, req, nil, nil); !errors.Is(err, ErrStreamBroken) {
				t.Error(err)
			}
			noneLeft(t, mark)
		})
	}
}

// Without a /proc of its own and not as PID 1, the helper cannot find left-overs: it has to say so, and must
// not touch anything else.
func TestForeignProcIsNotTrusted(t *testing.T) {
	t.Parallel()
	needRoot(t)
	need(t, "unshare")
	conn, err := StartProcess(t.Context(), "unshare", []string{"--pid", "--fork", "sh", "-c", helperPath(t) + " run; exit $?"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	mark := marker(t)
	res, err := Run(testContext(t), conn, &Request{Program: []string{"sh"}, Args: []string{"-c", "(setsid " + sleeper(mark) + " &); exit 3"}}, nil, nil)
	if err != nil || res.ExitCode != 3 || !res.Incomplete {
		t.Errorf("%+v %v", res, err)
	}
	eventually(t, "the namespace takes the rest with it", func() bool { return len(marked(mark)) == 0 })
}

// The worst case in one: a fork bomb at the pids limit that kills its supervisor, with nobody but PID 1 left.
func TestInitEndsAForkBombWithoutSupervisor(t *testing.T) {
	dir := pidsCgroup(t, 128)
	if dir == "" {
		testenv.Skip(t, testenv.Cgroup, "no writable pids cgroup, and a fork bomb needs a limit", "run the tests as root on a machine with a writable pids controller")
	}
	need(t, "python3")
	c := startContainer(t)
	mark := marker(t)
	up := t.TempDir() + "/up"
	neighbour := make(chan error, 1)
	go func() {
		o, err := c.run(t, sh("touch %s; while [ -e %s ]; do sleep 0.01; done; echo untouched", up, up))
		if err == nil && o.out != "untouched\n" {
			err = fmt.Errorf("%+v", o)
		}
		neighbour <- err
	}()
	eventually(t, "the neighbour runs", func() bool { return fileExists(up) })
	conn, _ := c.exec(t, "sh", "-c", "echo 0 > "+dir+"/cgroup.procs; exec "+helperPath(t)+" run")
	bomb := fmt.Sprintf(`
import os, signal
boss = os.getppid()
for s in (1, 2, 15): signal.signal(s, signal.SIG_IGN)
n = 0
while True: # %s
    n += 1
    try:
        if os.fork() == 0: os.setsid()
    except OSError:
        if n > 20 and boss:
            os.kill(boss, 9)
            boss = 0
`, mark)
	_, err := Run(testContext(t), conn, &Request{Program: []string{"python3"}, Args: []string{"-c", bomb}}, nil, nil)
	if !errors.Is(err, ErrStreamBroken) {
		t.Error(err)
	}
	began := time.Now()
	eventually(t, "the bomb is dead", func() bool { return len(marked(mark)) == 0 })
	t.Logf("dead after %v", time.Since(began))
	must(t, os.Remove(up))
	if err := <-neighbour; err != nil {
		t.Error(err)
	}
}
