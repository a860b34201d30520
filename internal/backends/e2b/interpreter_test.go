//go:build linux

package e2b

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/e2bpeer"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

func interpreted(p *sandboxcore.Profile) {
	p.Settings[keyTemplate], p.Settings[keyCodeRunner] = "code-interpreter-v1", runnerInterpreter
}

// ran is what came of one run.
type ran struct {
	sandboxcore.RunResult
	out, err string
	failure  error
}

func runCode(t testing.TB, ctx context.Context, s sandboxcore.ManagedSandbox, language, code string, change ...func(*sandboxcore.RunRequest)) ran {
	t.Helper()
	req := sandboxcore.RunRequest{Kind: sandboxcore.RunCode, Language: language, Text: []byte(code), Timeout: 20 * time.Second, Grace: 100 * time.Millisecond}
	for _, c := range change {
		c(&req)
	}
	var out, errs bytes.Buffer
	res, err := s.Run(ctx, req, &out, &errs)
	return ran{res, out.String(), errs.String(), err}
}

func withEnv(kv ...string) func(*sandboxcore.RunRequest) {
	return func(r *sandboxcore.RunRequest) {
		r.Env = map[string]string{}
		for i := 0; i < len(kv); i += 2 {
			r.Env[kv[i]] = kv[i+1]
		}
	}
}

func within(d time.Duration) func(*sandboxcore.RunRequest) {
	return func(r *sandboxcore.RunRequest) { r.Timeout = d }
}

// TestInterpreter: variables stay from run to run, what a run was given does not, and an end becomes an exit status.
func TestInterpreter(t *testing.T) {
	peer := newPeer(t, e2bpeer.Options{})
	e := dial(t, provider(peer))
	m, err := e.Create(t.Context(), func() sandboxcore.CreateRequest {
		r := request(t, profile(interpreted))
		r.Env = map[string]string{"OF_SANDBOX": "box"}
		return r
	}(), nil)
	if err != nil {
		t.Fatal(err)
	}
	s := handle(t, m)
	nasty := "it's \"quoted\" \\ $HOME `id` 'x' ü\nline two"
	for _, c := range []struct {
		name, language, code string
		env                  []string
		status               int
		out, err             string // err: contained
		notice               string
	}{
		{"a variable is set", "python", "x = 40; y = [1]", nil, 0, "", "", ""},
		{"and is there", "python", "print(x + 2)", nil, 0, "42\n", "", ""},
		{"the sandbox's environment", "python", "import os; print(os.environ['OF_SANDBOX'])", nil, 0, "box\n", "", ""},
		{"a value with everything in it", "python", "import os; print(os.environ['V'], end='')", []string{"V", nasty}, 0, nasty, "", ""},
		{"it is gone afterwards", "python", "import os; print('V' in os.environ)", nil, 0, "False\n", "", ""},
		{"one of the sandbox's, for a run", "python", "import os; print(os.environ['OF_SANDBOX'])", []string{"OF_SANDBOX", "run"}, 0, "run\n", "", ""},
		{"and back", "python", "import os; print(os.environ['OF_SANDBOX'])", nil, 0, "box\n", "", ""},
		{"__future__ first", "python", "from __future__ import annotations\nprint('ok')", []string{"A", "1"}, 0, "ok\n", "", ""},
		{"nothing of ours is in the name space", "python", "print([n for n in globals() if 'agentkernel' in n or n in ('values', 'before', 'json')])", nil, 0, "[]\n", "", ""},
		{"an exception", "python", "print('before'); raise ValueError('no')", nil, 1, "before\n", "ValueError: no", ""},
		{"no Python", "python", "x = = 1", nil, 1, "", "SyntaxError", ""},
		{"a number", "python", "import sys; sys.exit(3)", nil, 3, "", "", ""},
		{"no number", "python", "import sys; sys.exit()", nil, 0, "", "", ""},
		{"a text", "python", "import sys; sys.exit('bad')", nil, 1, "", "bad", ""},
		{"a value at the end", "python", "x * 2", nil, 0, "", "", noticeResult},
		{"both outputs, whole characters", "python", "import sys; print('ä' * 40000, end=''); print('é', file=sys.stderr)", nil, 0, strings.Repeat("ä", 40000), "é\n", ""},
		{"what a child writes", "python", "import subprocess; subprocess.run(['sh', '-c', 'echo child; echo $V'])", []string{"V", "seen"}, 0, "child\nseen\n", "", noticeResult},
		{"names of its own", "python", "open = exec = print = 1", nil, 0, "", "", ""},
		{"are in nobody's way", "python", "import os; os.write(1, os.environ['V'].encode()); del open, exec, print", []string{"V", "v"}, 0, "v", "", ""},
		{"a shell's variable", "bash", "x=41; f() { echo $((x + 1)); }", nil, 0, "", "", ""},
		{"stays, too", "bash", "f; echo err >&2", nil, 0, "42\n", "err\n", ""},
		{"a shell's environment", "bash", `printf '%s' "$V"`, []string{"V", nasty}, 0, nasty, "", ""},
		{"gone, too", "bash", `echo "${V-unset}"`, nil, 0, "unset\n", "", ""},
		{"a shell's status", "bash", "(exit 7)", nil, 7, "", "", ""},
	} {
		got := runCode(t, t.Context(), s, c.language, c.code, withEnv(c.env...))
		if got.failure != nil {
			t.Errorf("%s: %v", c.name, got.failure)
			continue
		}
		if got.ExitCode != c.status || got.out != c.out || !strings.Contains(got.err, c.err) || got.Notice != c.notice {
			t.Errorf("%s: exit %d (%d), out %.80q (%.80q), err %.200q, notice %q", c.name, got.ExitCode, c.status, got.out, c.out, got.err, got.Notice)
		}
	}
	// A script and a command have nothing to do with it.
	var out bytes.Buffer
	res, err := s.Run(t.Context(), sandboxcore.RunRequest{Kind: sandboxcore.RunScript, Text: []byte(`echo "${x-unset}"; read line; echo $line`), Stdin: []byte("in\n"), Timeout: 10 * time.Second}, &out, io.Discard)
	if err != nil || res.ExitCode != 0 || out.String() != "unset\nin\n" {
		t.Errorf("a script: %d %q %v", res.ExitCode, out.String(), err)
	}
	// Neither a value nor the mark of a run is in what the interpreter was sent, where its log and history keep it, and
	// nothing stays behind.
	for _, r := range peer.Requests() {
		if r.Header.Get("Authorization") != "" && strings.HasSuffix(r.Path, "/execute") {
			t.Error("the interpreter was told a user")
		}
	}
	got := runCode(t, t.Context(), s, "python", "import glob; print(glob.glob('/tmp/.agentkernel-*'))")
	if got.out != "[]\n" {
		t.Errorf("left behind: %q %v", got.out, got.failure)
	}
}

// TestInterpreterRefusals: what it cannot do is said before anything is sent, in the plan where it is known there.
func TestInterpreterRefusals(t *testing.T) {
	b := newBackend(&Place{Kind: sandboxcore.BackendE2B})
	if got := b.Validate(profile(set(keyCodeRunner, runnerInterpreter))); len(got) != 1 || got[0].Code != sandboxcore.CodeValue || got[0].Attribute[1] != keyTemplate {
		t.Errorf("the default template: %v", got)
	}
	if got := b.Validate(profile(interpreted)); len(got) != 0 {
		t.Error(got)
	}
	if c := b.Capabilities(profile(interpreted)); !c.Stateful || b.Capabilities(profile()).Stateful || b.Capabilities(nil).Stateful {
		t.Errorf("stateful: %v", c.Stateful)
	}
	op := sandboxcore.Operation{Name: sandboxcore.OpRun, Kind: sandboxcore.RunCode, Language: "python", Stdin: true}
	if got := b.RefuseOperation(profile(interpreted), op); len(got) != 1 || got[0].Code != sandboxcore.CodeOperation || got[0].Attribute[0] != "stdin" {
		t.Errorf("stdin: %v", got)
	}
	if got := b.RefuseOperation(profile(), op); got != nil {
		t.Errorf("stdin without an interpreter: %v", got)
	}
	op.Kind = sandboxcore.RunScript
	if got := b.RefuseOperation(profile(interpreted), op); got != nil {
		t.Errorf("stdin of a script: %v", got)
	}
	peer := newPeer(t, e2bpeer.Options{})
	s := create(t, dial(t, provider(peer)), profile(interpreted))
	peer.Forget()
	got := runCode(t, t.Context(), s, "python", "1", func(r *sandboxcore.RunRequest) { r.WorkingDirectory = "/tmp" })
	wantError(t, got.failure, sandboxcore.CodeOperation)
	got = runCode(t, t.Context(), s, "python", "1", func(r *sandboxcore.RunRequest) { r.Stdin = []byte("x") })
	wantError(t, got.failure, sandboxcore.CodeOperation)
	if n := len(peer.Requests()); n != 0 {
		t.Errorf("%d requests", n)
	}
	got = runCode(t, t.Context(), s, "bash", "true", withEnv("not-a-name", "x"))
	wantError(t, got.failure, sandboxcore.CodeValue)
	// A template without one, and a language that it has not.
	plain := create(t, dial(t, provider(peer), quick), profile(func(p *sandboxcore.Profile) {
		p.Settings[keyTemplate], p.Settings[keyCodeRunner] = "python", runnerInterpreter
	}))
	got = runCode(t, t.Context(), plain, "python", "open('ran', 'w')")
	wantError(t, got.failure, sandboxcore.CodeLanguage)
	if !strings.Contains(got.failure.Error(), "no code interpreter") {
		t.Error(got.failure)
	}
	got = runCode(t, t.Context(), s, "julia", "1")
	wantError(t, got.failure, sandboxcore.CodeLanguage)
}

// TestInterpreterEnds: a run that is over its time, cancelled, or that ends its interpreter leaves nothing, and the next
// one has an interpreter again.
func TestInterpreterEnds(t *testing.T) {
	for _, deaf := range []bool{false, true} {
		peer := newPeer(t, e2bpeer.Options{DeafInterpreter: deaf})
		s := create(t, dial(t, provider(peer)), profile(interpreted))
		work := func(file string) string {
			return fmt.Sprintf("import subprocess, time\nx = 1\nsubprocess.Popen(['sh', '-c', 'exec sleep 61.%d'])\nf = open('/tmp/%s', 'a', buffering=1)\nprint('begun', flush=True)\nwhile True:\n  f.write('x\\n'); time.sleep(0.01)\n", time.Now().Nanosecond(), file)
		}
		stillWrites := func(file string) bool {
			size := func() int {
				text, _, err := s.ReadFile(t.Context(), "/tmp/"+file, 1<<20)
				if err != nil {
					t.Fatal(err)
				}
				return len(text)
			}
			before := size()
			got := runCode(t, t.Context(), s, "python", "import time; time.sleep(0.2); print('x' in globals())")
			if got.failure != nil || got.out != "False\n" {
				t.Errorf("deaf %v: the next run: %q %v", deaf, got.out, got.failure)
			}
			return size() != before
		}
		got := runCode(t, t.Context(), s, "python", work("one"), within(700*time.Millisecond))
		wantError(t, got.failure, sandboxcore.CodeTimeout)
		if !strings.Contains(got.failure.Error(), noticeRestart) || got.out != "begun\n" || stillWrites("one") {
			t.Errorf("deaf %v: over its time: %q %v", deaf, got.out, got.failure)
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		req := sandboxcore.RunRequest{Kind: sandboxcore.RunCode, Language: "python", Text: []byte(work("two")), Timeout: time.Minute}
		_, err := s.Run(ctx, req, writerFunc(func(p []byte) (int, error) { cancel(); return len(p), nil }), io.Discard)
		wantError(t, err, sandboxcore.CodeUnknownOutcome)
		if stillWrites("two") {
			t.Errorf("deaf %v: cancelled, and it goes on", deaf)
		}
		// It ends its own interpreter: not known what it had done, and no exit status is made up.
		got = runCode(t, t.Context(), s, "python", "import os; os._exit(0)")
		wantError(t, got.failure, sandboxcore.CodeUnknownOutcome)
		// A child that stays behind is ended with its run.
		got = runCode(t, t.Context(), s, "python", "import subprocess; p = subprocess.Popen(['sleep', '300']); print(p.pid)")
		if got.failure != nil || got.Notice != "" {
			t.Errorf("%v %q", got.failure, got.Notice)
		}
		check := runCode(t, t.Context(), s, "python", "print(p.wait())")
		if check.out != "-9\n" {
			t.Errorf("the child lives: %q %v", check.out, check.failure)
		}
		// Two at once: one after the other, each with its own environment.
		var both sync.WaitGroup
		for i := range 4 {
			both.Go(func() {
				me := fmt.Sprint("me", i)
				m, err := s.e.Find(t.Context(), s.info.NativeID, true) // as the engine does for each run
				if err != nil {
					t.Error(err)
					return
				}
				got := runCode(t, t.Context(), m, "python", "import os, time; a = os.environ['ME']; time.sleep(0.05); print(a == os.environ['ME'] and a)", withEnv("ME", me))
				if got.failure != nil || got.out != me+"\n" {
					t.Errorf("%s: %q %v", me, got.out, got.failure)
				}
			})
		}
		both.Wait()
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// TestInterpreterFaults: each call of a run failing in each way. The code runs once at most, what is not known is called
// unknown, and the environment of a run is never left in the interpreter.
func TestInterpreterFaults(t *testing.T) {
	peer := newPeer(t, e2bpeer.Options{})
	healthy := dial(t, provider(peer))
	s := create(t, healthy, profile(interpreted))
	for _, f := range faults() {
		for n := int64(1); n <= 5; n++ { // upload, ready, code, clean-up, kill
			name := fmt.Sprintf("%s, call %d", f.name, n)
			file := "/tmp/ran-" + newRunID()
			e := dial(t, provider(peer), quick)
			m, err := e.Find(t.Context(), s.info.NativeID, true)
			if err != nil {
				t.Fatal(err)
			}
			strike(peer, "sandbox", n, false, f)
			got := runCode(t, t.Context(), m, "python", "open('"+file+"', 'a').write('x'); print('done')", within(3*time.Second), withEnv("OF_RUN", "a secret value"))
			peer.Intercept(nil)
			checkFault(t, name, peer, got.failure)
			after := runCode(t, t.Context(), s, "python", "import os\nprint(os.path.exists('"+file+"') and open('"+file+"').read(), 'OF_RUN' in os.environ)")
			if after.failure != nil {
				t.Fatalf("%s: the next run: %v", name, after.failure)
			}
			times := strings.Count(strings.Fields(after.out)[0], "x")
			switch {
			case times > 1:
				t.Errorf("%s: it ran %d times", name, times)
			case strings.Fields(after.out)[1] != "False":
				t.Errorf("%s: the environment of the run is still set: %v, %q", name, got.failure, got.Notice)
			case got.failure == nil && (times != 1 || got.out != "done\n" || got.ExitCode != 0):
				t.Errorf("%s: a success without a run: %q %q", name, after.out, got.out)
			case got.failure != nil && times > 0 && sandboxcore.IsCode(got.failure, sandboxcore.CodeProvision):
				t.Errorf("%s: it ran, and the error says that it did not: %v", name, got.failure)
			}
			if got.failure != nil && (strings.Contains(got.failure.Error(), s.session.token) || strings.Contains(got.failure.Error(), "a secret value")) {
				t.Errorf("%s: a secret is in the error: %v", name, got.failure)
			}
		}
	}
}

// TestInterpreterStreams: the answer breaks after each line, or is none. Only end_of_execution is an end.
func TestInterpreterStreams(t *testing.T) {
	peer := newPeer(t, e2bpeer.Options{})
	s := create(t, dial(t, provider(peer)), profile(interpreted))
	isCell := func(r *http.Request) bool {
		if !strings.HasSuffix(r.URL.Path, "/execute") {
			return false
		}
		body, _ := io.ReadAll(r.Body)
		r.Body = io.NopCloser(bytes.NewReader(body))
		return bytes.Contains(body, []byte("user code"))
	}
	const code = "# user code\nimport time\nfor i in range(3):\n    print(i, flush=True); time.sleep(0.05)\nprint('end')"
	for lines := range 7 { // the count, four outputs, the end
		var sent atomic.Int64
		peer.Intercept(func(plane string, w http.ResponseWriter, r *http.Request, next http.Handler) {
			if plane == "sandbox" && isCell(r) {
				sent.Add(1)
				next.ServeHTTP(&cutter{ResponseWriter: w, left: lines}, r)
				return
			}
			next.ServeHTTP(w, r)
		})
		got := runCode(t, t.Context(), s, "python", code)
		peer.Intercept(nil)
		if sent.Load() != 1 {
			t.Errorf("cut after %d lines: sent %d times", lines, sent.Load())
		}
		if got.failure == nil {
			if got.out != "0\n1\n2\nend\n" || lines < 5 {
				t.Errorf("cut after %d lines: %q", lines, got.out)
			}
			continue
		}
		wantError(t, got.failure, sandboxcore.CodeUnknownOutcome)
	}
	line := func(v ...any) string {
		var out strings.Builder
		for _, x := range v {
			text, _ := json.Marshal(x)
			out.Write(append(text, '\n'))
		}
		return out.String()
	}
	type m = map[string]any
	end := m{"type": "end_of_execution"}
	for name, c := range map[string]struct {
		answer string
		code   sandboxcore.Code // empty: no error
		status int
		notice string
	}{
		"only an end":                  {line(end), "", 0, ""},
		"what is not known":            {line(m{"type": "keepalive"}, m{"type": "new"}, end), "", 0, ""},
		"the connection to the kernel": {line(m{"type": "error", "name": "UnexpectedEndOfExecution", "value": "closed", "traceback": ""}, end), sandboxcore.CodeUnknownOutcome, 0, ""},
		"an exception of that name":    {line(m{"type": "error", "name": "WebSocketError", "value": "x", "traceback": "Traceback"}, end), "", 1, ""},
		"unexpected end":               {line(m{"type": "unexpected_end_of_execution"}, end), sandboxcore.CodeUnknownOutcome, 0, ""},
		"no JSON":                      {"<html>\n" + line(end), sandboxcore.CodeUnknownOutcome, 0, ""},
		"half a line":                  {`{"type":"end_of_execution"`, sandboxcore.CodeUnknownOutcome, 0, ""},
		"nothing":                      {"", sandboxcore.CodeUnknownOutcome, 0, ""},
		"a picture of 20 MB":           {`{"type": "result", "png": "` + strings.Repeat("x", 20<<20) + "\"}\n" + line(end), "", 0, noticeResult},
		"an output of 20 MB":           {line(m{"type": "stdout", "text": strings.Repeat(`{"type": "result"`, 2<<20)}, end), sandboxcore.CodeUnknownOutcome, 0, ""},
		"a status beyond a byte":       {line(m{"type": "error", "name": "SystemExit", "value": "257", "traceback": "x"}, end), "", 1, ""},
	} {
		peer.Intercept(func(plane string, w http.ResponseWriter, r *http.Request, next http.Handler) {
			if plane == "sandbox" && isCell(r) {
				_, _ = io.WriteString(w, c.answer)
				return
			}
			next.ServeHTTP(w, r)
		})
		got := runCode(t, t.Context(), s, "python", "# user code")
		peer.Intercept(nil)
		if c.code == "" {
			if got.failure != nil || got.ExitCode != c.status || got.Notice != c.notice {
				t.Errorf("%s: %d %q %v", name, got.ExitCode, got.Notice, got.failure)
			}
			continue
		}
		if !sandboxcore.IsCode(got.failure, c.code) {
			t.Errorf("%s: %v", name, got.failure)
		}
	}
	// A writer that takes nothing more is no success.
	req := sandboxcore.RunRequest{Kind: sandboxcore.RunCode, Language: "python", Text: []byte("print(1)"), Timeout: 10 * time.Second}
	_, err := s.Run(t.Context(), req, writerFunc(func([]byte) (int, error) { return 0, errors.New("full") }), io.Discard)
	wantError2(t, err, sandboxcore.CodeUnknownOutcome)
	// The sandbox goes while it runs.
	var killed sync.WaitGroup
	_, err = s.Run(t.Context(), sandboxcore.RunRequest{Kind: sandboxcore.RunCode, Language: "python", Text: []byte("print(1, flush=True)\nimport time; time.sleep(60)"), Timeout: time.Minute},
		writerFunc(func(p []byte) (int, error) {
			killed.Go(func() { peer.Kill(s.info.NativeID) })
			return len(p), nil
		}), io.Discard)
	killed.Wait()
	wantError(t, err, sandboxcore.CodeUnknownOutcome)
}

func wantError2(t testing.TB, err error, code sandboxcore.Code) {
	t.Helper()
	if !sandboxcore.IsCode(err, code) {
		t.Errorf("%v", err)
	}
}
