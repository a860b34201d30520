package backendtest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

func (s *suite) languages(t *testing.T) {
	if !slices.Contains(s.caps.Languages, "python") {
		t.Fatal("python is mandatory")
	}
	b := s.box(t, nil)
	programs := map[string]string{"python": "print('hello', end='')", "bash": "printf hello"}
	for _, lang := range s.caps.Languages {
		program, ok := programs[lang]
		if !ok {
			t.Fatalf("the suite has no program in %s", lang)
		}
		if got := b.must(t, program, func(r *sandboxcore.ExecRequest) { r.Language = lang }); got != "hello" {
			t.Errorf("%s printed %q", lang, got)
		}
	}
	_, err := b.python(t, "x", func(r *sandboxcore.ExecRequest) { r.Language = "klingon" })
	s.wantCode(t, err, sandboxcore.CodeLanguage)
	// A traceback shows the line, and imports come from the working directory as with python -c.
	res, err := b.python(t, "import sys\nassert sys.path[0] == '', sys.path\nassert __name__ == '__main__'\nraise ValueError('boom')", nil)
	s.wantCode(t, err, sandboxcore.CodeExitStatus)
	if !strings.Contains(res.Stderr.Text, "ValueError: boom") || !strings.Contains(res.Stderr.Text, "line 4") {
		t.Errorf("stderr %q", res.Stderr.Text)
	}
}

// honesty: what is declared works, what is not declared is refused.
func (s *suite) honesty(t *testing.T) {
	b := s.box(t, nil)
	script := func(r *sandboxcore.ExecRequest) { r.Kind = sandboxcore.RunScript }
	if s.caps.Shell {
		if got := b.must(t, "a=1; echo $((a+1)) | cat", script); got != "2\n" {
			t.Errorf("script printed %q", got)
		}
		res, err := b.python(t, "", func(r *sandboxcore.ExecRequest) {
			r.Kind, r.Text, r.Argv = sandboxcore.RunCommand, nil, []string{"python3", "-c", "import sys; print(sys.argv[1:])", "a b", "$HOME", "*", ""}
		})
		if err != nil || res.Stdout.Text != "['a b', '$HOME', '*', '']\n" {
			t.Errorf("command printed %q, %v", res.Stdout.Text, err)
		}
		_, err = b.python(t, "", func(r *sandboxcore.ExecRequest) {
			r.Kind, r.Text, r.Argv = sandboxcore.RunCommand, nil, []string{"no-such-program-" + token()}
		})
		s.wantCode(t, err, sandboxcore.CodeOperation) // told apart from a program that ends with 127
		_, err = b.python(t, "exit 127", script)
		s.wantCode(t, err, sandboxcore.CodeExitStatus)
	} else {
		_, err := b.python(t, "true", script)
		s.wantCode(t, err, sandboxcore.CodeOperation)
	}
	refused := func(declared bool, code sandboxcore.Code, change func(*sandboxcore.ExecRequest)) {
		t.Helper()
		if declared {
			return // its own test shows that it works
		}
		_, err := b.python(t, "print(1)", change)
		s.wantCode(t, err, code)
	}
	refused(s.caps.Stdin, sandboxcore.CodeOperation, func(r *sandboxcore.ExecRequest) { r.Stdin = []byte("x") })
	refused(s.caps.Files, sandboxcore.CodeOperation, func(r *sandboxcore.ExecRequest) { r.OutputFiles = []string{"x"} })
	refused(s.caps.KeepBackground, sandboxcore.CodeOperation, func(r *sandboxcore.ExecRequest) { r.KeepBackground = true })
	create := func(declared bool, code sandboxcore.Code, change func(*sandboxcore.SandboxRequest)) {
		t.Helper()
		if declared {
			return
		}
		req := sandboxcore.SandboxRequest{Spec: b.spec, Name: "refused", Principal: sandboxcore.DefaultPrincipal()}
		change(&req)
		_, err := b.engine.CreateSandbox(t.Context(), req, func(sandboxcore.SandboxInfo) { t.Error("it was created") })
		s.wantCode(t, err, code)
	}
	create(s.caps.PackageInstall, sandboxcore.CodeOperation, func(r *sandboxcore.SandboxRequest) { r.Packages = []string{"requests"} })
	create(s.caps.Pause, sandboxcore.CodeOperation, func(r *sandboxcore.SandboxRequest) { r.Paused = true })
	create(s.caps.MaxLifetime, sandboxcore.CodeLifetime, func(r *sandboxcore.SandboxRequest) { r.MaxLifetime = "1h" })
	if s.caps.KeepBackground {
		marker := "keep-" + token()
		b.must(t, "import subprocess\nsubprocess.Popen(['sleep','300'],stdout=subprocess.DEVNULL,stderr=subprocess.DEVNULL,env={'M':'x'},start_new_session=True)\n"+
			"subprocess.Popen(['python3','-c','import time; time.sleep(300) # "+marker+"'],stdin=subprocess.DEVNULL,stdout=subprocess.DEVNULL,stderr=subprocess.DEVNULL)",
			func(r *sandboxcore.ExecRequest) { r.KeepBackground = true })
		b.must(t, "print(1)", nil)
		if !s.target.Alive(t, marker) {
			t.Error("the process that was to be kept is gone")
		}
		if err := b.engine.DestroySandbox(t.Context(), b.ref()); err != nil {
			t.Error(err)
		}
		s.waitGone(t, marker, 5*time.Second)
	}
}

func (s *suite) programFailure(t *testing.T) {
	b := s.box(t, nil)
	res, err := b.python(t, "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)", nil)
	s.wantCode(t, err, sandboxcore.CodeExitStatus)
	var run *sandboxcore.RunError
	if !errors.As(err, &run) || run.ExitCode == nil || *run.ExitCode != 3 || !strings.Contains(run.StdoutTail, "out") || !strings.Contains(run.StderrTail, "err") {
		t.Errorf("%+v", run)
	}
	if res, err = b.python(t, "raise SystemExit(3)", func(r *sandboxcore.ExecRequest) { r.SuccessExitCodes = []int{3} }); err != nil || res.ExitCode != 3 {
		t.Errorf("exit %d, %v", res.ExitCode, err)
	}
	if res, err = b.python(t, "import os; os.kill(os.getpid(), 15)", func(r *sandboxcore.ExecRequest) { r.SuccessExitCodes = []int{143} }); err != nil || res.ExitCode != 143 {
		t.Errorf("a death by SIGTERM: exit %d, %v", res.ExitCode, err)
	}
	if res, err = b.python(t, "undefined_name", nil); err == nil || res.ExitCode != 1 {
		t.Errorf("exit %d, %v", res.ExitCode, err)
	}
}

func (s *suite) output(t *testing.T) {
	b := s.box(t, nil)
	res, err := b.python(t, "import os\nfor i in range(2000):\n os.write(1,b'o%d\\n'%i)\n os.write(2,b'e%d\\n'%i)", nil)
	if err != nil {
		t.Fatal(err)
	}
	var out, errs strings.Builder
	for i := range 2000 {
		fmt.Fprintf(&out, "o%d\n", i)
		fmt.Fprintf(&errs, "e%d\n", i)
	}
	if res.Stdout.Text != out.String() || (s.caps.SplitOutput && res.Stderr.Text != errs.String()) {
		t.Errorf("stdout %d bytes, stderr %d bytes; want %d and %d", len(res.Stdout.Text), len(res.Stderr.Text), out.Len(), errs.Len())
	}
	const size = 8 << 20
	res, err = b.python(t, "import os\nb=bytes(range(256))*4096\nfor i in range(8):\n os.write(1,b[:1000])\n n=1000\n while n<len(b): n+=os.write(1,b[n:])", nil)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.New()
	for range size / 256 {
		for i := range 256 {
			sum.Write([]byte{byte(i)})
		}
	}
	if want := hex.EncodeToString(sum.Sum(nil)); res.Stdout.SHA256 != want || res.Stdout.Bytes != size || !res.Stdout.Truncated {
		t.Errorf("8 MiB of bytes: %d bytes, sha256 %s, want %s", res.Stdout.Bytes, res.Stdout.SHA256, want)
	}
	if strings.ContainsAny(res.Stdout.Text, "\x00\x1b\r") {
		t.Error("control characters stayed in the text")
	}
}

func (s *suite) large(t *testing.T) {
	b := s.box(t, nil)
	code := "x='''" + strings.Repeat("0123456789abcdef", 65536) + "'''\nprint(len(x))"
	if got := b.must(t, code, nil); got != "1048576\n" {
		t.Errorf("code of a mebibyte printed %q", got)
	}
	if got := b.must(t, "# -*- coding: latin-1 -*-\nprint(ord('\xe4'))", nil); got != "228\n" {
		t.Errorf("code that is not UTF-8 printed %q", got)
	}
	if !s.caps.Stdin {
		return
	}
	data := strings.Repeat("line of input\n", 200_000)
	sum := sha256.Sum256([]byte(data))
	want := hex.EncodeToString(sum[:]) + "\n"
	if got := b.must(t, "import sys,hashlib;print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest())", func(r *sandboxcore.ExecRequest) { r.Stdin = []byte(data) }); got != want {
		t.Errorf("stdin of %d bytes: %q, want %q", len(data), got, want)
	}
	// A program that never reads its input ends all the same, and without input it sees the end at once.
	b.must(t, "print(1)", func(r *sandboxcore.ExecRequest) { r.Stdin = []byte(data) })
	if got := b.must(t, "import sys;print(repr(sys.stdin.read()))", nil); got != "''\n" {
		t.Errorf("no stdin: %q", got)
	}
}

func (s *suite) environment(t *testing.T) {
	b := s.box(t, func(r *sandboxcore.SandboxRequest) { r.Env = map[string]string{"KEEP": "sandbox", "OVER": "sandbox"} })
	got := b.must(t, "import os;print(os.environ['KEEP'],os.environ['OVER'],os.environ['RUN'],len(os.environ['SECRET']));print(os.environ['SECRET'])",
		func(r *sandboxcore.ExecRequest) {
			r.Env = map[string]string{"OVER": "run", "RUN": "a b\nc$x"}
			r.SecretEnv = map[string]string{"SECRET": "canary"}
		})
	if want := fmt.Sprintf("sandbox run a b\nc$x %d\n***\n", len(canary)); got != want {
		t.Errorf("printed %q, want %q", got, want)
	}
	// Nothing of the provider's own environment comes through, and the secret stays with its run.
	t.Logf("environment of a run: %s", b.must(t, "import os;print(sorted(os.environ))", nil))
	if got := b.must(t, "import os;print('SECRET' in os.environ, os.environ.get('GOCACHE'), os.environ.get('AGENTKERNEL_CONTRACT'))", nil); got != "False None None\n" {
		t.Errorf("leaked: %q", got)
	}
	// The secret is in no command line while the run goes on.
	if s.target.Alive(t, canary) {
		t.Error("the secret is in a command line before the run")
	}
	res := make(chan error, 1)
	marker := "arg-" + token()
	go func() {
		_, err := b.pythonCtx(t.Context(), "import subprocess;subprocess.run(['python3','-c','import time; time.sleep(1) # "+marker+"'])",
			func(r *sandboxcore.ExecRequest) { r.SecretEnv = map[string]string{"SECRET": "canary"} })
		res <- err
	}()
	s.waitAlive(t, marker)
	if s.target.Alive(t, canary) {
		t.Error("the secret is in a command line during the run")
	}
	if err := <-res; err != nil {
		t.Error(err)
	}
}

func (s *suite) waitAlive(t *testing.T, marker string) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for !s.target.Alive(t, marker) {
		if time.Now().After(deadline) {
			t.Fatal("the process never came up")
		}
		time.Sleep(20 * time.Millisecond) // a poll of a condition of other processes
	}
}

func (s *suite) workingDirectory(t *testing.T) {
	b := s.box(t, nil)
	home := strings.TrimSpace(b.must(t, "import os;open('here','w').close();os.makedirs('sub/dir');print(os.getcwd())", nil))
	if got := b.must(t, "import os;print(os.getcwd())", func(r *sandboxcore.ExecRequest) { r.WorkingDirectory = "sub/dir" }); got != home+"/sub/dir\n" {
		t.Errorf("relative: %q", got)
	}
	if got := b.must(t, "import os;print(os.listdir('.'))", func(r *sandboxcore.ExecRequest) { r.WorkingDirectory = home + "/sub" }); got != "['dir']\n" {
		t.Errorf("absolute: %q", got)
	}
	_, err := b.python(t, "print(1)", func(r *sandboxcore.ExecRequest) { r.WorkingDirectory = "no/such/directory" })
	if code := sandboxcore.CodeOf(err); code == "" || code == sandboxcore.CodeExitStatus || code == sandboxcore.CodeUnknownOutcome || !strings.Contains(err.Error(), "no/such/directory") {
		t.Errorf("a missing directory: %v", err)
	}
}

func (s *suite) files(t *testing.T) {
	if !s.caps.Files {
		return // the refusal is shown under honesty
	}
	b := s.box(t, nil)
	res, err := b.python(t, "import os\nos.makedirs('d')\nopen('d/a.bin','wb').write(bytes(range(256)))\nopen('empty','w').close()", func(r *sandboxcore.ExecRequest) {
		r.OutputFiles = []string{"d/a.bin", "empty"}
	})
	if err != nil {
		t.Fatal(err)
	}
	if f := res.Files["d/a.bin"]; f.Size != 256 || len(f.Content) != 256 || f.Content[255] != 255 || f.SHA256 != "40aff2e9d2d8922e47afd4648e6967497158785fbd1da870e7110266bf944880" {
		t.Errorf("a.bin: %d bytes, sha256 %s", f.Size, f.SHA256)
	}
	if f, ok := res.Files["empty"]; !ok || f.Size != 0 {
		t.Error("the empty file is missing")
	}
	for name, c := range map[string]struct {
		code string
		file string
	}{
		"missing":     {"pass", "nope"},
		"directory":   {"import os;os.makedirs('dir')", "dir"},
		"too large":   {"open('big','wb').write(b'x'*(1<<20)+b'y')", "big"},
		"a pipe":      {"import os;os.mkfifo('pipe')", "pipe"},
		"a secret":    {"import os;open('leak','w').write('a'+os.environ['S']+'b')", "leak"},
		"a b64secret": {"import os,base64;open('leak2','w').write(base64.b64encode(b'u:'+os.environ['S'].encode()).decode())", "leak2"},
	} {
		res, err := b.python(t, c.code, func(r *sandboxcore.ExecRequest) {
			r.OutputFiles, r.SecretEnv = []string{c.file}, map[string]string{"S": "canary"}
		})
		if sandboxcore.CodeOf(err) == "" || sandboxcore.IsCode(err, sandboxcore.CodeUnknownOutcome) || len(res.Files) != 0 || !strings.Contains(err.Error(), c.file) {
			t.Errorf("%s: %v, %d files", name, err, len(res.Files))
		}
	}
}

// tree starts children that try to hide: plain, in a new session, after a double fork, with a cleared environment.
func tree(marker string) string {
	sleep := "['python3','-c','import time,signal; signal.signal(15,signal.SIG_IGN); time.sleep(300) # " + marker + "']"
	return "import os,subprocess,sys,time\n" +
		"q=dict(stdin=subprocess.DEVNULL)\n" +
		"subprocess.Popen(" + sleep + ",**q)\n" +
		"subprocess.Popen(" + sleep + ",start_new_session=True,**q)\n" +
		"subprocess.Popen(" + sleep + ",env={'PATH':os.environ['PATH']},start_new_session=True,**q)\n" +
		"if os.fork()==0:\n os.setsid()\n if os.fork()==0:\n  os.execvp('python3'," + sleep + ")\n os._exit(0)\n" +
		"open('started','w').close()\nprint('up',flush=True)\n"
}

func (s *suite) timeout(t *testing.T) {
	b := s.box(t, nil)
	marker := "tree-" + token()
	neighbour := make(chan error, 1)
	go func() { // overlaps: it waits for the tree to be up and outlives its death
		_, err := b.pythonCtx(t.Context(), "import os,time\nwhile not os.path.exists('started'): time.sleep(0.02)\nopen('seen','w').close()\nwhile not os.path.exists('stop'): time.sleep(0.02)\nprint('fine')", nil)
		neighbour <- err
	}()
	started := time.Now()
	res, err := b.python(t, tree(marker)+"\nwhile not os.path.exists('seen'): time.sleep(0.02)\ntime.sleep(300)", func(r *sandboxcore.ExecRequest) { r.Timeout = 4 * time.Second })
	s.wantCode(t, err, sandboxcore.CodeTimeout)
	if took := time.Since(started); took > 4*time.Second+15*time.Second {
		t.Errorf("it took %s", took)
	}
	if !strings.Contains(res.Stdout.Text, "up") {
		t.Errorf("the output before the timeout is lost: %q", res.Stdout.Text)
	}
	s.waitGone(t, marker, 2*time.Second)
	b.must(t, "import os\nassert os.path.exists('seen')\nopen('stop','w').close()", nil)
	if err := <-neighbour; err != nil {
		t.Errorf("the neighbour was touched: %v", err)
	}
}

func (s *suite) cancellation(t *testing.T) {
	b := s.box(t, nil)
	marker := "cancel-" + token()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() {
		_, err := b.pythonCtx(ctx, tree(marker)+"time.sleep(300)", nil)
		done <- err
	}()
	s.waitAlive(t, marker)
	cancel()
	select {
	case err := <-done:
		if err == nil || !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("the run does not end after cancellation")
	}
	s.waitGone(t, marker, 2*time.Second)
	b.must(t, "print('still usable')", nil)
}

func (s *suite) background(t *testing.T) {
	b := s.box(t, nil)
	marker := "bg-" + token()
	started := time.Now()
	got := b.must(t, "import subprocess;subprocess.Popen(['python3','-c','import time; time.sleep(300) # "+marker+"']);print('ok')", nil)
	if took := time.Since(started); got != "ok\n" || took > 10*time.Second {
		t.Errorf("printed %q after %s", got, took)
	}
	s.waitGone(t, marker, 2*time.Second)
}

func (s *suite) concurrency(t *testing.T) {
	b := s.box(t, nil)
	const n = 4
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { // each waits until all are there: they really run at the same time
			res, err := b.pythonCtx(t.Context(), fmt.Sprintf("import os,time\nopen('r%d','w').close()\nwhile not all(os.path.exists('r%%d'%%i) for i in range(%d)): time.sleep(0.02)\nprint(%d)", i, n, i), nil)
			if err != nil || res.Stdout.Text != fmt.Sprintf("%d\n", i) {
				t.Errorf("run %d: %q, %v", i, res.Stdout.Text, err)
			}
		})
	}
	wg.Wait()
}
