package runhelper

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"time"
)

// Extract writes the helper for this machine into dir, if it is not there already, and returns its path. The
// name holds the digest, so versions do not collide and concurrent calls agree. dir is made with mode 0700
// if it does not exist; it must not be writable for the code that runs.
func Extract(dir string) (string, error) {
	b, name, err := binaryOf(runtime.GOARCH)
	if err != nil {
		return "", &UnsupportedPlatformError{OS: runtime.GOOS, Arch: runtime.GOARCH}
	}
	digest := digests()[name]
	path := filepath.Join(dir, "akrun-"+digest)
	if intact(path, digest) {
		return path, nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("extracting the run helper: %w", err)
	}
	if err := writeExecutable(dir, path, b); err != nil {
		return "", fmt.Errorf("extracting the run helper: %w", err)
	}
	return path, nil
}

func intact(path, digest string) bool {
	st, err := os.Lstat(path)
	if err != nil || !st.Mode().IsRegular() || st.Mode().Perm() != 0o755 {
		return false
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return false
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:]) == digest
}

func writeExecutable(dir, path string, b []byte) error {
	// A child that is forked while the file is open for writing holds it open until its exec, and in that time
	// an exec of the file gives ETXTBSY. No fork of this process can happen while the lock is held.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	f, err := os.CreateTemp(dir, ".akrun-*")
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	err = errors.Join(err, f.Chmod(0o755), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		err = errors.Join(err, os.Remove(f.Name()))
	}
	return err
}

// Times for a local helper to go after its streams were closed: it kills its tree first.
var (
	processWait     = 12 * time.Second
	processKillWait = 5 * time.Second
)

// StartProcess starts a helper (path with "run" or "guard" in args), or a program that becomes one (bwrap), as
// a child process of this one, in a session of its own. setup may change the command before it starts, except
// for its three streams. ctx only prevents the start. Closing the Conn waits until the process has ended, at
// most 17 s; a run that keeps background processes keeps its helper too, which is then not waited for.
func StartProcess(ctx context.Context, path string, args []string, setup func(*exec.Cmd)) (*Conn, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	inR, inW, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("starting the run helper: %w", err)
	}
	outR, outW, err := os.Pipe()
	if err != nil {
		_ = inR.Close() // never used
		_ = inW.Close() // never used
		return nil, fmt.Errorf("starting the run helper: %w", err)
	}
	notes := &tail{}
	cmd, err := startRetry(func() *exec.Cmd {
		// Not CommandContext: a kill of the helper would leave its run to others.
		cmd := exec.Command(path, args...) //nolint:noctx // see above; the path comes from the backend
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if setup != nil {
			setup(cmd)
		}
		cmd.Stdin, cmd.Stdout, cmd.Stderr = inR, outW, notes
		cmd.WaitDelay = time.Second
		return cmd
	})
	_ = inR.Close()  // the child has its own copy
	_ = outW.Close() // the child has its own copy
	if err != nil {
		_ = inW.Close()  // never used
		_ = outR.Close() // never used
		return nil, fmt.Errorf("starting the run helper: %w", err)
	}
	p := &process{cmd: cmd, in: inW, out: outR, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		_ = cmd.Wait() // the frames tell how the run ended
	}()
	return &Conn{
		Control: inW,
		Frames:  outR,
		Close:   p.close,
		detach:  func() { p.detached = true },
		notes:   notes.String,
	}, nil
}

// startRetry starts a command again while the program is still open for writing in a child that some other
// part of this process has just forked.
func startRetry(build func() *exec.Cmd) (*exec.Cmd, error) {
	for try := 0; ; try++ {
		cmd := build()
		err := cmd.Start()
		if err == nil || !errors.Is(err, syscall.ETXTBSY) || try == 10 {
			return cmd, err
		}
		time.Sleep(time.Duration(try+1) * time.Millisecond)
	}
}

type process struct {
	cmd      *exec.Cmd
	in, out  *os.File
	done     chan struct{}
	detached bool
}

func (p *process) close() error {
	err := errors.Join(ignoreClosed(p.in.Close()), ignoreClosed(p.out.Close()))
	if p.detached || wait(p.done, processWait) {
		return err
	}
	// The helper hangs (it was stopped, for example). A guard's or sandbox's death takes the rest with it.
	err = errors.Join(err, errors.New("the run helper did not end by itself and was killed"), p.cmd.Process.Kill())
	wait(p.done, processKillWait)
	return err
}

func wait(done <-chan struct{}, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-done:
		return true
	case <-t.C:
		return false
	}
}

func ignoreClosed(err error) error {
	if errors.Is(err, fs.ErrClosed) {
		return nil
	}
	return err
}

// tail keeps the first 2 KiB and the last 2 KiB that are written to it, which need not be text.
type tail struct {
	mu          sync.Mutex
	first, last []byte
}

func (t *tail) Write(p []byte) (int, error) {
	const keep = 2 << 10
	t.mu.Lock()
	defer t.mu.Unlock()
	n := len(p)
	if room := keep - len(t.first); room > 0 {
		k := min(room, len(p))
		t.first = append(t.first, p[:k]...)
		p = p[k:]
	}
	t.last = append(t.last, p[max(0, len(p)-keep):]...)
	if len(t.last) > keep {
		t.last = append([]byte(nil), t.last[len(t.last)-keep:]...)
	}
	return n, nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(bytes.Join([][]byte{t.first, t.last}, nil))
}
