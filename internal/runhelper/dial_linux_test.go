package runhelper

import (
	"context"
	"encoding/hex"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// helperExit runs a mode of the helper to its end and gives its exit status. The word of a status 0 has to be there, and
// of no other.
func helperExit(ctx context.Context, t *testing.T, args ...string) int {
	t.Helper()
	cmd := exec.CommandContext(ctx, helperPath(t), args...)
	out, err := cmd.Output()
	if err != nil && cmd.ProcessState == nil {
		t.Error(err)
		return -1
	}
	code := cmd.ProcessState.ExitCode()
	if (code == 0) != (string(out) == "dialing\nok\n") {
		t.Errorf("%q: status %d with the word %q", args, code, out)
	}
	return code
}

func TestDialTellsOpenFromClosed(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	host := hex.EncodeToString(net.IPv4(127, 0, 0, 1).To4())
	dial := func(want, milliseconds string) int {
		return helperExit(t.Context(), t, "dial", want, host, port, milliseconds)
	}
	if got := dial("open", "5000"); got != 0 {
		t.Errorf("an open address: %d", got)
	}
	if got := dial("closed", "300"); got != 1 {
		t.Errorf("an open address counts as closed: %d", got)
	}
	_ = l.Close()
	if got := dial("closed", "5000"); got != 0 {
		t.Errorf("a closed address: %d", got)
	}
	if got := dial("open", "300"); got != 1 {
		t.Errorf("a closed address counts as open: %d", got)
	}
	for _, bad := range [][]string{
		{"dial"},
		{"dial", "closed", "7f0000", "1", "1"},
		{"dial", "closed", "7f00000g", "1", "1"},
		{"dial", "closed", host, "0", "1"},
		{"dial", "closed", host, "65536", "1"},
		{"dial", "closed", host, "99999999999999999999", "1"},
		{"dial", "shut", host, "1", "1"},
		{"listen"},
		{"listen", "0"},
		{"listen", "x"},
		{"gate"},
		{"gate", "a", "b"},
	} {
		if got := helperExit(t.Context(), t, bad...); got != 2 {
			t.Errorf("%q: %d", bad, got)
		}
	}
}

// An address becomes unreachable while it is watched: the wait ends then, not before.
func TestDialWaitsForTheChange(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	seen := make(chan struct{})
	go func() {
		defer close(seen)
		for range 3 {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_ = c.Close()
		}
	}()
	done := make(chan int, 1)
	_, port, _ := net.SplitHostPort(l.Addr().String())
	go func() { done <- helperExit(t.Context(), t, "dial", "closed", "7f000001", port, "20000") }()
	<-seen
	select {
	case got := <-done:
		t.Fatalf("it ended with %d while the address was open", got)
	default:
	}
	_ = l.Close()
	if got := <-done; got != 0 {
		t.Errorf("got %d", got)
	}
}

// A network that is being set up refuses for a moment what it will let through: a burst of failures is not closed.
func TestDialIsNotTakenInByAMoment(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := l.Addr().String()
	_, port, _ := net.SplitHostPort(at)
	_ = l.Close()
	type end struct {
		code int
		at   time.Time
	}
	done := make(chan end, 1)
	go func() {
		code := helperExit(t.Context(), t, "dial", "closed", "7f000001", port, "30000")
		done <- end{code, time.Now()}
	}()
	moment := time.NewTimer(700 * time.Millisecond) // far more than a few attempts take, and less than what counts
	defer moment.Stop()
	<-moment.C
	if l, err = net.Listen("tcp4", at); err != nil {
		t.Fatal(err)
	}
	_ = l.(*net.TCPListener).SetDeadline(time.Now().Add(10 * time.Second)) //nolint:forcetypeassert // a test
	c, err := l.Accept()
	if err != nil {
		t.Fatalf("nobody dials any more: %v", err)
	}
	_ = c.Close()
	_ = l.Close()
	closed := time.Now()
	if got := <-done; got.code != 0 || got.at.Sub(closed) < 1900*time.Millisecond {
		t.Errorf("ended with %d after %s", got.code, got.at.Sub(closed))
	}
}

// A failure that the network is not the reason of is neither open nor closed.
func TestDialCannotTell(t *testing.T) {
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), "sh", "-c", `ulimit -n 3; exec "$0" dial closed 7f000001 1 300`, helperPath(t))
	out, err := cmd.Output()
	if cmd.ProcessState == nil || cmd.ProcessState.ExitCode() != 4 || string(out) != "dialing\n" {
		t.Errorf("without a socket: %q, %v", out, err)
	}
}

// The gate opens when the file is there and its writer has gone, and not before.
func TestGateWaitsForFileAndWriter(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "env")
	c := startContainerAs(t, "gate", file)
	conn, _ := c.exec(t, helperPath(t), "run")
	if _, err := Upload(t.Context(), conn, file, 0o600, strings.NewReader("A=b\x00"), nil); err != nil {
		t.Fatalf("the writer was not left to answer: %v", err)
	}
	if err := c.cmd.Wait(); err != nil {
		t.Errorf("it did not end well: %v", err)
	}
	c.pid = 0

	told := startContainerAs(t, "gate", file+".never")
	if err := syscall.Kill(told.pid, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	_ = told.cmd.Wait()
	if got := told.cmd.ProcessState.ExitCode(); got != 143 {
		t.Errorf("told to end it ended with %d", got)
	}
	told.pid = 0
}

func TestListenTakesConnectionsUntilTold(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(l.Addr().String())
	_ = l.Close()
	cmd := exec.CommandContext(t.Context(), helperPath(t), "listen", port)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it listens", func() bool {
		c, err := net.DialTimeout("tcp4", "127.0.0.1:"+port, time.Second)
		if err != nil {
			return false
		}
		_ = c.Close()
		return true
	})
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}

func TestRunTakesTheEnvironmentOfAFile(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "env")
	if err := os.WriteFile(file, []byte("FROM_FILE=a b\nc\x00OVER_PROCESS=file\x00OVER_RUN=file\x00EMPTY=\x00"), 0o600); err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) (string, error) {
		conn, err := StartProcess(t.Context(), helperPath(t), args, func(c *exec.Cmd) {
			c.Env = []string{"PATH=" + os.Getenv("PATH"), "OVER_PROCESS=process", "OVER_PROCESSES=other"}
		})
		if err != nil {
			t.Fatal(err)
		}
		req := ShellRequest([]byte(`printf '%s|' "$FROM_FILE" "$OVER_PROCESS" "$OVER_PROCESSES" "$OVER_RUN" "${EMPTY-unset}"`))
		req.Env = []string{"OVER_RUN=run"}
		var out strings.Builder
		_, err = Run(t.Context(), conn, req, &out, nil)
		return out.String(), err
	}
	if got, err := run("run", file); err != nil || got != "a b\nc|file|other|run||" {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := run("run", file+".missing"); err == nil {
		t.Error("a run without the file of its environment started")
	}
}

// A pod that ends because it is told to must not look like one that succeeded.
func TestPodEndsWithAStatus(t *testing.T) {
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), helperPath(t), "pod")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it takes the signal", func() bool {
		status, err := os.ReadFile("/proc/" + strconv.Itoa(cmd.Process.Pid) + "/status")
		return err == nil && strings.Contains(string(status), "SigBlk:\t0000000000014002")
	})
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if got := cmd.ProcessState.ExitCode(); got != 143 {
		t.Errorf("ended with %d", got)
	}
}
