package runhelper

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

var modes = []string{"run", "guard"}

func bothModes(t *testing.T, f func(t *testing.T, mode string)) {
	for _, mode := range modes {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			f(t, mode)
		})
	}
}

func TestRunBasics(t *testing.T) {
	t.Parallel()
	bothModes(t, func(t *testing.T, mode string) {
		o := mustRun(t, mode, sh("echo out; echo err >&2; exit 3"))
		if o.ExitCode != 3 || o.Signal != 0 || o.out != "out\n" || o.err != "err\n" || o.Program != "sh" {
			t.Errorf("%+v", o)
		}
		if o.TimedOut || o.Killed || o.OOMKilled || o.SupervisorLost || o.Incomplete || o.Background || o.LeftoversKilled != 0 {
			t.Errorf("flags of an ordinary end: %+v", o.Result)
		}
	})
}

func TestExitCodes(t *testing.T) {
	t.Parallel()
	for code := range 256 {
		if o := mustRun(t, "run", sh("exit %d", code)); o.ExitCode != code || o.Signal != 0 {
			t.Errorf("exit %d: %+v", code, o.Result)
		}
	}
}

func TestSignals(t *testing.T) {
	t.Parallel()
	for _, sig := range []int{1, 2, 3, 6, 9, 10, 13, 14, 15, 34, 64} {
		o := mustRun(t, "run", sh("ulimit -c unlimited 2>/dev/null; kill -%d $$; sleep 10", sig))
		if o.Signal != sig || o.ExitCode != 128+sig || o.Killed || o.OOMKilled {
			t.Errorf("signal %d: %+v", sig, o.Result)
		}
	}
}

func TestChildSetup(t *testing.T) {
	t.Parallel()
	need(t, "python3")
	o := mustRun(t, "run", PythonRequest([]byte(`
import os, signal, resource
print(os.getsid(0) == os.getpid(), os.getpgid(0) == os.getpid())
print([int(s) for s in range(1, 65) if s not in (9, 19, 32, 33) and signal.getsignal(s) is signal.SIG_IGN and s not in (13, 25)])
print(signal.pthread_sigmask(signal.SIG_BLOCK, []))
print(resource.getrlimit(resource.RLIMIT_CORE))
print(sorted(int(f) for f in os.listdir("/proc/self/fd"))[:4])
print(os.readlink("/proc/self/fd/0"))
print(len(os.listdir("/proc/self/fd")))
`)))
	want := "True True\n[]\nset()\n(0, 0)\n[0, 1, 2, 3]\n/dev/null\n5\n"
	if o.out != want {
		t.Errorf("got %q, want %q (stderr %q)", o.out, want, o.err)
	}
}

func TestEnvironment(t *testing.T) {
	t.Parallel()
	t.Run("laid over", func(t *testing.T) {
		o := mustRun(t, "run", &Request{Program: []string{"/usr/bin/env"}, Env: []string{"HOME=/nowhere", "A=1", "A=2", "EMPTY=", "EQ=a=b"}})
		for _, want := range []string{"HOME=/nowhere\n", "A=2\n", "EMPTY=\n", "EQ=a=b\n", "PATH="} {
			if strings.Count("\n"+o.out, "\n"+want) != 1 {
				t.Errorf("%q not there once in %q", want, o.out)
			}
		}
		if strings.Contains(o.out, "A=1") {
			t.Error("the first of two entries is there too")
		}
	})
	t.Run("clean", func(t *testing.T) {
		o := mustRun(t, "run", &Request{Program: []string{"/usr/bin/env"}, ClearEnv: true, Env: []string{"X=\xff\n1"}})
		if o.out != "X=\xff\n1\n" {
			t.Errorf("%q", o.out)
		}
	})
	t.Run("PATH of the run", func(t *testing.T) {
		dir := t.TempDir()
		if err := os.WriteFile(dir+"/only-here", []byte("#!/bin/sh\necho found\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		o := mustRun(t, "run", &Request{Program: []string{"only-here"}, ClearEnv: true, Env: []string{"PATH=/nonexistent:" + dir}})
		if o.out != "found\n" {
			t.Errorf("%+v", o)
		}
	})
	t.Run("default PATH", func(t *testing.T) {
		if o := mustRun(t, "run", &Request{Program: []string{"true"}, ClearEnv: true}); o.ExitCode != 0 {
			t.Errorf("%+v", o)
		}
	})
	t.Run("large", func(t *testing.T) {
		big := strings.Repeat("x", 120<<10)
		req := sh(`printf %%s "${#BIG} ${#1} ${#2}"`)
		req.Env = []string{"BIG=" + big}
		req.Args = append(req.Args, big, big[:1000])
		if o := mustRun(t, "run", req); o.out != "122880 122880 1000" {
			t.Errorf("%q", o.out)
		}
	})
}

func TestWorkingDirectory(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	req := sh("pwd; echo x > here")
	req.Dir = dir
	if o := mustRun(t, "run", req); o.out != dir+"\n" || !fileExists(dir+"/here") {
		t.Errorf("%+v", o)
	}
}

func TestStartErrors(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) string {
		p := filepath.Join(dir, name)
		if err := os.WriteFile(p, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		return p
	}
	for _, c := range []struct {
		name  string
		req   *Request
		errno Errno
		stage string
		is    error
	}{
		{"no such file", &Request{Program: []string{"/nonexistent/program"}}, ENOENT, "exec", fs.ErrNotExist},
		{"not in PATH", &Request{Program: []string{"akrun-no-such-program"}}, ENOENT, "exec", syscall.ENOENT},
		{"not executable", &Request{Program: []string{write("plain", "x", 0o644)}}, EACCES, "exec", fs.ErrPermission},
		{"directory", &Request{Program: []string{dir}}, EACCES, "exec", fs.ErrPermission},
		{"not executable in PATH", &Request{Program: []string{"plain"}, Env: []string{"PATH=" + dir}}, EACCES, "exec", fs.ErrPermission},
		{"format", &Request{Program: []string{write("garbage", "\x00\x01garbage", 0o755)}}, ENOEXEC, "exec", syscall.ENOEXEC},
		{"interpreter", &Request{Program: []string{write("script", "#!/nonexistent/sh\n", 0o755)}}, ENOENT, "interpreter", fs.ErrNotExist},
		{"directory missing", &Request{Program: []string{"true"}, Dir: "/nonexistent"}, ENOENT, "chdir", fs.ErrNotExist},
		{"directory is a file", &Request{Program: []string{"true"}, Dir: "/etc/passwd"}, ENOTDIR, "chdir", syscall.ENOTDIR},
		{"too long", &Request{Program: []string{"true"}, Args: many(130000, 40)}, E2BIG, "exec", syscall.E2BIG},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, mode := range modes {
				_, err := run(t, mode, c.req)
				var se *StartError
				if !errors.As(err, &se) || se.Errno != c.errno || se.Stage != c.stage || !errors.Is(err, c.is) {
					t.Errorf("%s: %v (%+v), want %v at %s", mode, err, se, c.errno, c.stage)
				}
			}
		})
	}
}

func many(size, n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = strings.Repeat("a", size)
	}
	return out
}

func TestProgramAlternatives(t *testing.T) {
	t.Parallel()
	o := mustRun(t, "run", &Request{Program: []string{"akrun-no-1", "/akrun/no-2", "sh", "bash"}, Args: []string{"-c", "echo $0"}})
	if o.Program != "sh" || o.out != "sh\n" {
		t.Errorf("%+v", o)
	}
	_, err := run(t, "run", &Request{Program: []string{"akrun-no-1", "akrun-no-2"}})
	var se *StartError
	if !errors.As(err, &se) || se.Program != "akrun-no-1" || se.Errno != ENOENT {
		t.Errorf("%v", err)
	}
	// Found but broken is not the same as not found.
	_, err = run(t, "run", &Request{Program: []string{"akrun-no-1", "/etc/passwd", "sh"}})
	if !errors.As(err, &se) || se.Program != "/etc/passwd" || se.Errno != EACCES {
		t.Errorf("%v", err)
	}
}

func TestCode(t *testing.T) {
	t.Parallel()
	t.Run("python", func(t *testing.T) {
		need(t, "python3")
		t.Parallel()
		o := mustRun(t, "run", PythonRequest([]byte("import sys\nprint(__name__, sys.argv, repr(sys.path[0]), sorted(k for k in globals() if not k.startswith('__')))\n")))
		if o.out != "__main__ ['-c'] '' ['sys']\n" {
			t.Errorf("%q %q", o.out, o.err)
		}
	})
	t.Run("python traceback", func(t *testing.T) {
		need(t, "python3")
		t.Parallel()
		o := mustRun(t, "run", PythonRequest([]byte("def f():\n    return 1 / 0  # the very line\nf()\n")))
		if o.ExitCode != 1 || !strings.Contains(o.err, `File "/proc/self/fd/3", line 2, in f`) || !strings.Contains(o.err, "the very line") {
			t.Errorf("%q", o.err)
		}
	})
	t.Run("python encodings", func(t *testing.T) {
		need(t, "python3")
		t.Parallel()
		o := mustRun(t, "run", PythonRequest([]byte("# -*- coding: latin-1 -*-\nprint(ascii('\xe9'))\n")))
		if o.out != "'\\xe9'\n" {
			t.Errorf("%q %q", o.out, o.err)
		}
		if o := mustRun(t, "run", PythonRequest(nil)); o.ExitCode != 0 {
			t.Errorf("empty code: %+v", o)
		}
	})
	t.Run("python large", func(t *testing.T) {
		need(t, "python3")
		t.Parallel()
		code := append([]byte("x = '"), bytes.Repeat([]byte("y"), 3<<19)...)
		code = append(code, []byte("'\nimport sys\nprint(len(x), len(sys.stdin.read()))\n")...)
		req := PythonRequest(code)
		req.Stdin = strings.NewReader("still free")
		if o := mustRun(t, "run", req); o.out != "1572864 10\n" {
			t.Errorf("%q %q", o.out, o.err)
		}
	})
	for _, shell := range []string{"sh", "bash"} {
		t.Run(shell, func(t *testing.T) {
			need(t, shell)
			t.Parallel()
			build := ShellRequest
			if shell == "bash" {
				build = BashRequest
			}
			code := append([]byte("cat; printf '%s' '"), bytes.Repeat([]byte("\xff\xfe\x80z"), 3<<17)...)
			code = append(code, []byte("' | wc -c; printf '\xc3\x28'\n")...)
			req := build(code)
			req.Stdin = strings.NewReader("in\n")
			if o := mustRun(t, "run", req); strings.ReplaceAll(o.out, " ", "") != "in\n1572864\n\xc3\x28" {
				t.Errorf("%q %q", o.out, o.err)
			}
		})
	}
}

func TestNULRefused(t *testing.T) {
	t.Parallel()
	for _, req := range []*Request{
		{Program: []string{"tr\x00ue"}},
		{Program: []string{"true"}, Args: []string{"a\x00b"}},
		{Program: []string{"true"}, Env: []string{"A=a\x00b"}},
		{Program: []string{"true"}, Dir: "/\x00"},
		{Program: []string{"true"}, Env: []string{"novalue"}},
		{Program: []string{"true"}, Args: []string{strings.Repeat("a", maxString+1)}},
		{Program: []string{"true"}, Timeout: -1},
		{},
	} {
		_, err := run(t, "run", req)
		if _, ok := errors.AsType[*RequestError](err); !ok {
			t.Errorf("%.60v: %v", req, err)
		}
	}
}

// pattern is binary output of any length whose hash can be computed without the run.
const pattern64 = `
import sys, hashlib
b = bytes(range(256)) * 4096
for i in range(64):
    sys.stdout.buffer.write(b)
`

func TestLargeBinaryOutput(t *testing.T) {
	t.Parallel()
	need(t, "python3")
	bothModes(t, func(t *testing.T, mode string) {
		got := sha256.New()
		res, err := Run(testContext(t), start(t, mode).Conn, PythonRequest([]byte(pattern64)), got, nil)
		if err != nil || res.ExitCode != 0 {
			t.Fatal(res, err)
		}
		want := sha256.New()
		b := make([]byte, 1<<20)
		for i := range b {
			b[i] = byte(i)
		}
		for range 64 {
			want.Write(b)
		}
		if !bytes.Equal(got.Sum(nil), want.Sum(nil)) {
			t.Error("64 MiB arrived changed")
		}
	})
}

func TestInterleavedStreams(t *testing.T) {
	t.Parallel()
	o := mustRun(t, "run", sh(`i=0; while [ $i -lt 2000 ]; do printf 'o%%d\n' $i; printf 'e%%d\n' $i >&2; i=$((i+1)); done`))
	var out, errs strings.Builder
	for i := range 2000 {
		fmt.Fprintf(&out, "o%d\n", i)
		fmt.Fprintf(&errs, "e%d\n", i)
	}
	if o.out != out.String() || o.err != errs.String() {
		t.Error("streams mixed or cut")
	}
}

// slowWriter takes its time for each write, and can hold the first one until it is told to go on.
type slowWriter struct {
	gate <-chan struct{}
	n    int64
}

func (w *slowWriter) Write(p []byte) (int, error) {
	if w.gate != nil {
		<-w.gate
	}
	w.n += int64(len(p))
	return len(p), nil
}

func TestSlowReader(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	gate := make(chan struct{})
	w := &slowWriter{gate: gate}
	done := make(chan error, 1)
	go func() {
		_, err := Run(testContext(t), start(t, "run").Conn,
			sh("head -c 8388608 /dev/zero; touch %s/written; echo end >&2", dir), w, io.Discard)
		done <- err
	}()
	// While nobody reads, the program must be held back by its pipe: nothing in between buffers 8 MiB.
	time.Sleep(300 * time.Millisecond)
	if fileExists(dir + "/written") {
		t.Error("the helper or the client buffered 8 MiB")
	}
	close(gate)
	if err := <-done; err != nil || w.n != 8<<20 {
		t.Errorf("%d bytes, %v", w.n, err)
	}
}

func TestStdin(t *testing.T) {
	t.Parallel()
	bothModes(t, func(t *testing.T, mode string) {
		big := bytes.Repeat([]byte("0123456789abcdef"), 1<<19) // 8 MiB
		for _, c := range []struct {
			name, script, want string
			stdin              io.Reader
		}{
			{"none", "cat; echo end", "end\n", nil},
			{"empty", "cat; echo end", "end\n", strings.NewReader("")},
			{"large", "wc -c | tr -d ' '", "8388608\n", bytes.NewReader(big)},
			{"closed by the child", "exec 0<&-; echo ok", "ok\n", bytes.NewReader(big)},
			{"never read", "echo ok", "ok\n", bytes.NewReader(big)},
			{"partly read", "head -c 3; echo", "012\n", bytes.NewReader(big)},
			{"reader that never ends", "echo ok", "ok\n", neverReader{t.Context().Done()}},
		} {
			t.Run(c.name, func(t *testing.T) {
				req := sh("%s", c.script)
				req.Stdin = c.stdin
				if o := mustRun(t, mode, req); o.out != c.want {
					t.Errorf("%q, want %q", o.out, c.want)
				}
			})
		}
		t.Run("echo back", func(t *testing.T) {
			req := &Request{Program: []string{"cat"}, Stdin: bytes.NewReader(big)}
			if o := mustRun(t, mode, req); o.out != string(big) {
				t.Errorf("%d bytes came back", len(o.out))
			}
		})
	})
}

// neverReader blocks as long as its test, or for ever.
type neverReader struct{ end <-chan struct{} }

func (r neverReader) Read([]byte) (int, error) {
	<-r.end
	return 0, io.EOF
}

func TestStdinNeverReadIsKilled(t *testing.T) {
	t.Parallel()
	bothModes(t, func(t *testing.T, mode string) {
		mark := marker(t)
		ctx, cancel := context.WithCancel(testContext(t))
		defer cancel()
		ready := &waitWriter{want: "ready", seen: make(chan struct{})}
		go func() {
			<-ready.seen
			cancel()
		}()
		req := sh("echo ready; sleep 1000; : %s", mark)
		req.Args = append(req.Args, mark)
		req.Stdin = zeroReader{}
		began := time.Now()
		_, err := Run(ctx, start(t, mode).Conn, req, ready, nil)
		var ce *CancelledError
		if !errors.As(err, &ce) || !ce.Confirmed || !ce.Ended || !ce.Result.Killed || !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
		if d := time.Since(began); d > 5*time.Second {
			t.Errorf("took %v", d)
		}
		noneLeft(t, mark)
	})
}

type zeroReader struct{}

func (zeroReader) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// waitWriter closes seen when the text has come.
type waitWriter struct {
	buf  bytes.Buffer
	want string
	seen chan struct{}
	done bool
}

func (w *waitWriter) Write(p []byte) (int, error) {
	w.buf.Write(p)
	if !w.done && strings.Contains(w.buf.String(), w.want) {
		w.done = true
		close(w.seen)
	}
	return len(p), nil
}

func TestManyConcurrentRuns(t *testing.T) {
	t.Parallel()
	for i := range 16 {
		t.Run(strconv.Itoa(i), func(t *testing.T) {
			t.Parallel()
			if o := mustRun(t, "run", sh("echo %d", i)); o.out != fmt.Sprintf("%d\n", i) {
				t.Errorf("%+v", o)
			}
		})
	}
}
