package runhelper

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/testenv"
)

// TestMain also plays the provider process of TestClientProcessKilled.
func TestMain(m *testing.M) {
	if os.Getenv("AKRUN_TEST_CLIENT") != "" {
		clientProcess()
		return
	}
	code := m.Run()
	if extracted.dir != "" {
		_ = os.RemoveAll(extracted.dir)
	}
	os.Exit(code)
}

var extracted struct {
	once sync.Once
	dir  string
	path string
	err  error
}

// helperPath returns the helper of this machine, or the one that AKRUN_TEST_BINARY names (an other
// architecture's, say, through binfmt).
func helperPath(t testing.TB) string {
	t.Helper()
	if p := os.Getenv("AKRUN_TEST_BINARY"); p != "" {
		return p
	}
	extracted.once.Do(func() {
		if extracted.dir, extracted.err = os.MkdirTemp("", "akrun-test-"); extracted.err == nil {
			extracted.err = os.Chmod(extracted.dir, 0o755)
		}
		if extracted.err == nil {
			extracted.path, extracted.err = Extract(extracted.dir)
		}
	})
	if extracted.err != nil {
		t.Fatal(extracted.err)
	}
	return extracted.path
}

// proc is a helper process under test.
type proc struct {
	*Conn
	cmd *exec.Cmd
}

func start(t testing.TB, mode string, setup ...func(*exec.Cmd)) *proc {
	t.Helper()
	p := &proc{}
	conn, err := StartProcess(t.Context(), helperPath(t), []string{mode}, func(c *exec.Cmd) {
		p.cmd = c
		for _, f := range setup {
			f(c)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	p.Conn = conn
	return p
}

func testContext(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	t.Cleanup(cancel)
	return ctx
}

type output struct {
	Result
	out, err string
}

func run(t testing.TB, mode string, req *Request) (output, error) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	res, err := Run(testContext(t), start(t, mode).Conn, req, &stdout, &stderr)
	return output{res, stdout.String(), stderr.String()}, err
}

func mustRun(t testing.TB, mode string, req *Request) output {
	t.Helper()
	o, err := run(t, mode, req)
	if err != nil {
		t.Fatalf("run: %v (stderr %q)", err, o.err)
	}
	return o
}

func sh(format string, a ...any) *Request {
	return ShellRequest([]byte(fmt.Sprintf(format, a...)))
}

// eventually waits for a condition of the outside world, with a generous limit.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

// marker is a name that a test gives to its processes as an argument, so that it can find them again whatever
// they did to their environment, session and parents.
func marker(t testing.TB) string {
	// The end keeps the mark of one test from being found in that of another one.
	return fmt.Sprintf("akrun-mark-%d-%s.end", os.Getpid(), strings.NewReplacer("/", "-", " ", "-", "#", "-").Replace(t.Name()))
}

// marked lists the living processes whose command line holds the mark.
func marked(mark string) (pids []int) {
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, d := range dirs {
		cmdline, err := os.ReadFile(d + "/cmdline")
		if err != nil || !bytes.Contains(cmdline, []byte(mark)) {
			continue
		}
		pid, _ := strconv.Atoi(filepath.Base(d))
		if pid != os.Getpid() && state(pid) != "Z" {
			pids = append(pids, pid)
		}
	}
	return pids
}

func state(pid int) string {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return ""
	}
	rest := string(b[bytes.LastIndexByte(b, ')')+2:])
	return rest[:1]
}

func noneLeft(t testing.TB, mark string) {
	t.Helper()
	// The kernel may still be taking a killed process apart, but it no longer has a command line then.
	if left := marked(mark); len(left) > 0 {
		for _, pid := range left {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		t.Errorf("processes survived: %v", left)
	}
}

// must is for the steps that only prepare a test.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func fileExists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func needRoot(t testing.TB) {
	t.Helper()
	testenv.Require(t, testenv.Root)
}

func need(t testing.TB, program string) {
	t.Helper()
	if _, err := exec.LookPath(program); err != nil {
		testenv.Skip(t, testenv.Local, "no "+program+" here", "apt-get install python3 strace util-linux qemu-user-static")
	}
}
