package runhelper

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/testenv"
)

// In most containers the helper has no privilege at all.
func TestAsOrdinaryUser(t *testing.T) {
	t.Parallel()
	needRoot(t)
	bothModes(t, func(t *testing.T, mode string) {
		as := func(c *exec.Cmd) {
			c.SysProcAttr.Credential = &syscall.Credential{Uid: 65534, Gid: 65534}
			c.Dir = "/"
			c.Env = []string{"PATH=/usr/bin:/bin"}
		}
		var out bytes.Buffer
		mark := marker(t)
		req := sh("id -u; %s & (setsid %s &); (env -i setsid /bin/%s &); exit 3", sleeper(mark), sleeper(mark), sleeper(mark))
		res, err := Run(testContext(t), start(t, mode, as).Conn, req, &out, nil)
		if err != nil || res.ExitCode != 3 || out.String() != "65534\n" || res.LeftoversKilled == 0 || res.Incomplete {
			t.Errorf("%+v %q %v", res, out.String(), err)
		}
		noneLeft(t, mark)

		if path, err := exec.LookPath("/usr/bin/python3"); err == nil {
			req := PythonRequest([]byte("import os\nprint(os.getuid())\n1/0  # shown\n"))
			req.Program = []string{path}
			var out, errs bytes.Buffer
			res, err := Run(testContext(t), start(t, mode, as).Conn, req, &out, &errs)
			if err != nil || res.ExitCode != 1 || out.String() != "65534\n" || !strings.Contains(errs.String(), "# shown") {
				t.Errorf("%+v %q %q %v", res, out.String(), errs.String(), err)
			}
		}

		if mode == "guard" {
			_, err := Run(testContext(t), start(t, mode, as).Conn, sh("%s", killer(mark, "KILL")), nil, nil)
			if !errors.Is(err, ErrSupervisorLost) {
				t.Error(err)
			}
			noneLeft(t, mark)
		}
		// Nobody of the same user may look into the helper: it holds the run's environment.
		req = sh("cat /proc/$PPID/environ >/dev/null 2>&1 && echo readable; ls /proc/$PPID/fd >/dev/null 2>&1 && echo listable; exit 0")
		out.Reset()
		if _, err := Run(testContext(t), start(t, mode, as).Conn, req, &out, nil); err != nil || out.Len() > 0 {
			t.Errorf("the code reads its supervisor: %q %v", out.String(), err)
		}
	})
}

// Old kernels and strict seccomp profiles refuse the newer system calls.
func TestWithoutNewSystemCalls(t *testing.T) {
	t.Parallel()
	need(t, "strace")
	for _, errno := range []string{"ENOSYS", "EPERM"} {
		t.Run(errno, func(t *testing.T) {
			t.Parallel()
			calls := "memfd_create,close_range,pidfd_open,pidfd_send_signal"
			begin := func() *Conn {
				conn, err := StartProcess(t.Context(), "strace", []string{
					"-f", "-qq", "-o", "/dev/null", "-e", "trace=" + calls,
					"-e", "inject=" + calls + ":error=" + errno, helperPath(t), "run",
				}, nil)
				if err != nil {
					t.Fatal(err)
				}
				return conn
			}
			dir := t.TempDir()
			mark := marker(t)
			var out bytes.Buffer
			res, err := Run(testContext(t), begin(), sh("ls /proc/self/fd | wc -l; %s & (setsid sh -c \"%s & wait\" &); touch %s/x; exit 3", sleeper(mark), sleeper(mark), dir), &out, nil)
			if res.ExitCode == 0 && err != nil && !fileExists(dir+"/x") {
				testenv.Skip(t, testenv.Root, "strace does not work here: "+err.Error(), "run the tests as root, with ptrace allowed")
			}
			// 0, 1, 2, the code, the directory that ls reads; the shell may keep one of its own.
			if n := strings.TrimSpace(out.String()); err != nil || res.ExitCode != 3 || (n != "5" && n != "4") || res.LeftoversKilled == 0 {
				t.Errorf("%+v %q %v", res, out.String(), err)
			}
			noneLeft(t, mark)
		})
	}
}

// The kernel must be able to hand orphans to the helper; otherwise it refuses instead of losing them.
func TestWithoutSubreaper(t *testing.T) {
	t.Parallel()
	need(t, "strace")
	conn, err := StartProcess(t.Context(), "strace", []string{"-qq", "-o", "/dev/null", "-e", "inject=prctl:error=EINVAL", helperPath(t), "run"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	_, err = Run(testContext(t), conn, sh("echo no"), nil, nil)
	var se *StartError
	if errors.Is(err, ErrStreamBroken) {
		testenv.Skip(t, testenv.Root, "strace does not work here: "+err.Error(), "run the tests as root, with ptrace allowed")
	}
	if !errors.As(err, &se) || se.Stage != "subreaper" || se.Errno != EINVAL {
		t.Errorf("%v", err)
	}
}

// What a fork of this process left open must not get into the run.
func TestInheritedDescriptors(t *testing.T) {
	t.Parallel()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	var out bytes.Buffer
	for _, mode := range modes {
		p := start(t, mode, func(c *exec.Cmd) { c.ExtraFiles = []*os.File{w, w, w, w, w, w, w, w, w, w, w, w} })
		out.Reset()
		res, err := Run(testContext(t), p.Conn, &Request{Program: []string{"sh"}, Args: []string{"-c", "ls /proc/self/fd"}}, &out, nil)
		if err != nil || res.ExitCode != 0 || out.String() != "0\n1\n2\n3\n" { // 3 is the directory itself
			t.Errorf("%s: %q %v", mode, out.String(), err)
		}
	}
}

// The other architecture, emulated. The emulator knows no subreaper, so the helper is PID 1.
func TestARM64Emulated(t *testing.T) {
	t.Parallel()
	needRoot(t)
	need(t, "unshare")
	need(t, "qemu-aarch64-static")
	if runtime.GOARCH != "amd64" {
		testenv.Skip(t, testenv.ARM64, "what is emulated elsewhere runs here by itself, in every other test", "run it on amd64")
	}
	b, err := Binary("arm64")
	if err != nil {
		t.Fatal(err)
	}
	helper := filepath.Join(t.TempDir(), "akrun")
	if err := writeExecutable(filepath.Dir(helper), helper, b); err != nil {
		t.Fatal(err)
	}
	begin := func() *Conn {
		conn, err := StartProcess(t.Context(), "unshare", []string{"--pid", "--fork", "--mount-proc", "qemu-aarch64-static", helper, "run"}, nil)
		if err != nil {
			t.Fatal(err)
		}
		return conn
	}
	mark := marker(t)
	var out, errs bytes.Buffer
	req := sh("echo out; echo err >&2; cat; setsid %s & exit 3", sleeper(mark))
	req.Stdin = strings.NewReader(strings.Repeat("0123456789", 30000))
	res, err := Run(testContext(t), begin(), req, &out, &errs)
	if err != nil || res.ExitCode != 3 || out.Len() != 300004 || errs.String() != "err\n" || res.LeftoversKilled == 0 {
		t.Errorf("%+v %d %q %v", res, out.Len(), errs.String(), err)
	}
	req = sh("trap '' TERM; %s & while :; do sleep 0.05; done", sleeper(mark))
	req.Timeout, req.Grace = 300*time.Millisecond, 100*time.Millisecond
	if res, err := Run(testContext(t), begin(), req, nil, nil); err != nil || !res.TimedOut || res.Signal != 9 {
		t.Errorf("%+v %v", res, err)
	}
	noneLeft(t, mark)
	_, err = Run(testContext(t), begin(), &Request{Program: []string{"/nonexistent"}}, nil, nil)
	if !errors.Is(err, ENOENT) {
		t.Error(err)
	}
	path := filepath.Join(t.TempDir(), "a/b")
	if info, err := Upload(testContext(t), begin(), path, 0o640, strings.NewReader("content"), &FileOptions{MakeParents: true}); err != nil || info.Size != 7 || info.Perm() != 0o640 {
		t.Errorf("%+v %v", info, err)
	}
	must(t, os.Symlink("b", filepath.Dir(path)+"/l"))
	out.Reset()
	if info, err := Download(testContext(t), begin(), filepath.Dir(path)+"/l", 7, &out, nil); err != nil || out.String() != "content" || !info.IsRegular() {
		t.Errorf("%+v %q %v", info, out.String(), err)
	}
	if _, err := Download(testContext(t), begin(), filepath.Dir(path)+"/l", 7, &out, &FileOptions{NoFollow: true}); !errors.Is(err, ELOOP) {
		t.Error(err)
	}
	if _, err := Download(testContext(t), begin(), filepath.Dir(path), 7, &out, nil); !errors.Is(err, EISDIR) {
		t.Error(err)
	}
}
