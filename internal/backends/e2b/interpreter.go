package e2b

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// The code interpreter of a template: a web server on port 49999 in front of kernels that keep their variables. POST
// /execute answers with one JSON object a line; the last is end_of_execution. There is no exit status: a line of type
// error is the only sign that code failed (facts of e2b-dev/code-interpreter, template/server).

const (
	portInterpreter = 49999
	// maxCellLine bounds one line of an answer: a piece of output. What is longer can only be a picture, which is not kept.
	maxCellLine = 16 << 20

	noticeResult  = "The value of the last expression is not kept; print what is needed."
	noticeRestart = "The interpreter was restarted because of it, so that its variables are gone."
)

// Values of code_runner.
const (
	runnerCommand     = "command"
	runnerInterpreter = "code_interpreter"
)

// interpreterLanguages are those that the tests of this backend show.
var interpreterLanguages = []string{"python", "bash"}

// cells lets one piece of code at a time into an interpreter: a kernel runs one after the other anyway, and a run's
// environment and its time limit are to hold for that run.
type cells struct {
	mu   sync.Mutex
	gate map[string]chan struct{}
}

// enter waits for the interpreter of a sandbox, and gives what leaves it again.
func (c *cells) enter(ctx context.Context, key string) (leave func(), err error) {
	c.mu.Lock()
	if c.gate == nil {
		c.gate = map[string]chan struct{}{}
	}
	gate := c.gate[key]
	if gate == nil {
		gate = make(chan struct{}, 1)
		c.gate[key] = gate
	}
	c.mu.Unlock()
	select {
	case gate <- struct{}{}:
		return func() { <-gate }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// refuseInterpreter gives what an operation asks for and an interpreter cannot give.
func refuseInterpreter(kind sandboxcore.BackendType, object string, stdin bool, workingDirectory string) *sandboxcore.Error {
	e := &sandboxcore.Error{Code: sandboxcore.CodeOperation, Attempted: "the run was refused", Object: object}
	switch {
	case stdin:
		e.Said, e.Attribute = "Code in the code interpreter has no standard input.", []string{"stdin"}
	case workingDirectory != "":
		e.Said, e.Attribute = "The code interpreter has a directory of its own, which lasts from run to run.", []string{"working_directory"}
	default:
		return nil
	}
	e.Next = fmt.Sprintf("Remove it, or set code_runner = %q in the profile's %s block.", runnerCommand, kind)
	return e
}

// RefuseOperation names what a profile with a code interpreter lacks.
func RefuseOperation(kind sandboxcore.BackendType, p *sandboxcore.Profile, op sandboxcore.Operation) []*sandboxcore.Error {
	if p == nil || p.Settings.String(keyCodeRunner, runnerCommand) != runnerInterpreter || op.Name != sandboxcore.OpRun || op.Kind != sandboxcore.RunCode {
		return nil
	}
	if e := refuseInterpreter(kind, fmt.Sprintf("profile %q", p.Name), op.Stdin, ""); e != nil {
		return []*sandboxcore.Error{e}
	}
	return nil
}

// RefuseOperation implements sandboxcore.OperationRefuser.
func (b *backend) RefuseOperation(p *sandboxcore.Profile, op sandboxcore.Operation) []*sandboxcore.Error {
	return RefuseOperation(b.place.Kind, p, op)
}

// cellRun is one run in the interpreter.
type cellRun struct {
	s        *sandbox
	req      sandboxcore.RunRequest
	daemon   *daemon
	marked   *run // how what it leaves behind is found and ended
	cleanup  string
	stdout   io.Writer
	stderr   io.Writer
	results  bool
	writeErr error
}

// cellEnd is how one piece of code ended.
type cellEnd struct {
	failed                 bool
	name, value, traceback string
}

// interpret runs code in the template's interpreter. The code is sent once and never again.
func (s *sandbox) interpret(ctx context.Context, req sandboxcore.RunRequest, stdout, stderr io.Writer) (sandboxcore.RunResult, error) {
	id := newRunID()
	c := &cellRun{
		s: s, req: req, stdout: stdout, stderr: stderr,
		marked: &run{s: s, req: req, id: id, codeFile: "/tmp/.agentkernel-" + id, began: s.e.b.now()},
	}
	var err error
	if c.daemon, err = s.daemonAt(portInterpreter, s.o.user); err != nil {
		return sandboxcore.RunResult{}, err
	}
	setup, file, err := c.prepare()
	if err != nil {
		return sandboxcore.RunResult{}, err
	}
	d, err := s.daemon(s.o.user)
	if err != nil {
		return sandboxcore.RunResult{}, err
	}
	// The values travel as a file that is removed when it is read: code stands in the interpreter's log and history.
	if err := d.upload(ctx, c.marked.codeFile, file); err != nil {
		_, _ = c.marked.kill(ctx, 0) // it removes the file, which may be there all the same
		return sandboxcore.RunResult{}, s.dataFailure(ctx, err, sandboxcore.CodeProvision, "the environment of the run could not be brought into the sandbox; nothing ran")
	}
	c.marked.began = s.e.b.now()
	return c.carryOut(ctx, setup)
}

func (c *cellRun) carryOut(ctx context.Context, setup string) (sandboxcore.RunResult, error) {
	const attempted = "the code interpreter could not be made ready; nothing ran"
	prepare, cancel := context.WithTimeoutCause(ctx, c.s.e.times.start, errNoAnswer)
	end, err := c.cell(prepare, setup, io.Discard, io.Discard)
	cancel()
	switch {
	case err != nil:
		_, _ = c.stop(ctx) // of a preparation nothing can be left that the next one does not find
		if ctx.Err() != nil {
			return sandboxcore.RunResult{}, c.s.beforeStart(ctx.Err())
		}
		return sandboxcore.RunResult{}, c.notReady(ctx, err, attempted)
	case end.failed:
		_, _ = c.stop(ctx)
		return sandboxcore.RunResult{}, &sandboxcore.Error{
			Code: sandboxcore.CodeProvision, Attempted: attempted, Object: c.s.object(),
			Said: sentence("The interpreter said: " + clip(sandboxcore.Printable(c.daemon.discreetText(end.name+" "+end.value)), 300)), Next: "Run the command again; if it stays, replace the sandbox.",
		}
	}
	limit, cancel := context.WithTimeoutCause(ctx, c.req.Timeout, context.DeadlineExceeded)
	end, err = c.cell(limit, string(c.req.Text), c.stdout, c.stderr)
	over := limit.Err() != nil
	cancel()
	switch {
	case ctx.Err() != nil:
		return c.interrupted(ctx)
	case err != nil && over:
		left, kerr := c.stop(ctx)
		res, terr := c.marked.timedOut(left, kerr)
		if e, ok := errors.AsType[*sandboxcore.Error](terr); ok && kerr == nil && left == 0 {
			e.Said += " " + noticeRestart
		}
		return res, terr
	case err != nil:
		return c.broken(ctx, err)
	}
	return c.finish(ctx, end)
}

// notReady is the error for an interpreter that did not answer as one, before any code of the user was sent.
func (c *cellRun) notReady(ctx context.Context, err error, attempted string) error {
	at := []string{string(c.s.e.place.Kind), keyCodeRunner}
	a, ok := statusOf(err)
	switch {
	case ok && a.closedPort:
		return &sandboxcore.Error{
			Code: sandboxcore.CodeLanguage, Attempted: attempted, Object: c.s.object(), Attribute: at,
			Said: fmt.Sprintf("Nothing listens on port %d of the template %q: it has no code interpreter.", portInterpreter, c.s.o.template),
			Next: fmt.Sprintf("Use a template that has it (E2B's is code-interpreter-v1), or set code_runner = %q.", runnerCommand),
		}
	case ok && strings.Contains(a.excerpt, "Failed to create context"):
		return &sandboxcore.Error{
			Code: sandboxcore.CodeLanguage, Attempted: attempted, Object: c.s.object(), Attribute: []string{"language"},
			Said: fmt.Sprintf("The code interpreter of the template %q has no %s.", c.s.o.template, c.req.Language), Next: "Use a template that has it, or another language.",
		}
	}
	return c.s.dataFailure(ctx, err, sandboxcore.CodeProvision, attempted)
}

// interrupted ends a run whose caller has given up.
func (c *cellRun) interrupted(ctx context.Context) (sandboxcore.RunResult, error) {
	left, err := c.stop(ctx)
	e := &sandboxcore.Error{
		Code: sandboxcore.CodeUnknownOutcome, Attempted: "the run was cancelled", Object: c.s.object(), Err: ctx.Err(),
		Said: "It was ended. " + noticeRestart, Next: "Find out what it had done by then before it runs again.",
	}
	switch {
	case err != nil || left > 0:
		e.Said, e.Next = "It could not be confirmed that it has ended.", "Check or replace the sandbox before it runs again."
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		e.Code, e.Attempted = sandboxcore.CodeTimeout, "the run was ended because the time of the operation was over"
	}
	return c.marked.partial(), e
}

// broken judges an answer without an end. What the code did is not known, and it is not sent again.
func (c *cellRun) broken(ctx context.Context, cause error) (sandboxcore.RunResult, error) {
	a, answered := statusOf(cause)
	if answered && (a.proxied || a.status < http.StatusInternalServerError) || neverSent(cause) {
		_, _ = c.stop(ctx)
		return sandboxcore.RunResult{}, c.s.dataFailure(ctx, cause, sandboxcore.CodeProvision, "the run could not be started; nothing ran")
	}
	left, err := c.stop(ctx)
	e := &sandboxcore.Error{
		Code: sandboxcore.CodeUnknownOutcome, Attempted: attemptedRun, Object: c.s.object(), Err: quietCause(rootCause(cause)),
		Said: "The connection to the code interpreter broke before the end of the run was told. " + noticeRestart,
		Next: "Find out what it had done by then before it runs again: nothing is repeated by itself.",
	}
	if err != nil || left > 0 {
		e.Said = "The connection to the code interpreter broke before the end of the run was told, and it may go on."
		if sandboxcore.IsCode(err, sandboxcore.CodeGone) {
			e.Said = "The sandbox was ended while it ran."
		}
	}
	return c.marked.partial(), e
}

// finish maps an end to an exit status: 0 without an error, the number of SystemExit or of a shell, 1 for anything else.
func (c *cellRun) finish(ctx context.Context, end cellEnd) (sandboxcore.RunResult, error) {
	out := sandboxcore.RunResult{Duration: c.s.e.b.now().Sub(c.marked.began)}
	if end.failed && end.traceback == "" && slices.Contains(serverErrors, end.name) {
		left, err := c.stop(ctx)
		e := &sandboxcore.Error{
			Code: sandboxcore.CodeUnknownOutcome, Attempted: attemptedRun, Object: c.s.object(),
			Said: "The interpreter ended while the code ran: its memory may not have been enough, or the code ended it. Its variables are gone.",
			Next: "Find out what it had done by then before it runs again: nothing is repeated by itself.",
		}
		if err != nil || left > 0 {
			e.Said += " A process of the run may have survived."
		}
		return c.marked.partial(), e
	}
	if end.failed {
		out.ExitCode = c.exitStatus(end)
	}
	if c.writeErr != nil {
		return out, &sandboxcore.Error{Code: sandboxcore.CodeUnknownOutcome, Attempted: "the output of the run could not be taken", Object: c.s.object(), Err: c.writeErr}
	}
	reset, cancel := context.WithTimeoutCause(ctx, c.s.e.times.kill, errNoAnswer)
	after, err := c.cell(reset, c.cleanup, io.Discard, io.Discard)
	cancel()
	if err != nil || after.failed {
		// Variables of this run must not be there in the next one.
		if rerr := c.restart(ctx); rerr != nil {
			out.Notice = "The environment of the run may still be set in the interpreter."
		} else {
			out.Notice = noticeRestart
		}
	}
	if left, err := c.marked.kill(ctx, 0); err != nil || left > 0 {
		out.Notice = joinNotices(out.Notice, noticeLeft)
	}
	if c.results {
		out.Notice = joinNotices(out.Notice, noticeResult)
	}
	return out, nil
}

// serverErrors are names that the interpreter's server, and not the code, gives as an error: each without a traceback.
var serverErrors = []string{"UnexpectedEndOfExecution", "WebSocketError", "ContextRestarting", "ExecutionAborted"}

func (c *cellRun) exitStatus(end cellEnd) int {
	status, err := strconv.Atoi(strings.TrimSpace(end.value))
	switch {
	case end.name == "SystemExit" && (end.value == "" || end.value == "None"):
		return 0
	case end.name == "SystemExit" && err == nil:
		return status & 0xff
	case end.name == "" && err == nil && status > 0 && status < 256: // how the kernel of a shell tells it
		return status
	}
	text := end.traceback
	if text == "" {
		text = end.name + ": " + end.value
	}
	if !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	c.write(c.stderr, text)
	return 1
}

func (c *cellRun) write(to io.Writer, text string) {
	if _, err := io.WriteString(to, text); err != nil && c.writeErr == nil {
		c.writeErr = err
	}
}

// stop makes sure that nothing of the run goes on: the kernel dies, and so does what it started.
func (c *cellRun) stop(ctx context.Context) (left int, err error) {
	err = c.restart(ctx)
	left, kerr := c.marked.kill(ctx, 0)
	return left, errors.Join(err, kerr)
}

// restart kills the kernels of the run's language. Which of them is the default one, the server does not tell.
func (c *cellRun) restart(ctx context.Context) error {
	return sandboxcore.WithCleanup(ctx, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeoutCause(ctx, c.s.e.times.kill, errNoAnswer)
		defer cancel()
		var list []struct {
			ID       string `json:"id"`
			Language string `json:"language"`
		}
		res, err := c.send(ctx, http.MethodGet, "/contexts", nil)
		if err == nil {
			err = json.NewDecoder(io.LimitReader(res.Body, maxAnswerBytes)).Decode(&list)
			_ = res.Body.Close()
		}
		for _, k := range list {
			if err != nil {
				break
			}
			if k.Language != c.req.Language {
				continue
			}
			if res, err = c.send(ctx, http.MethodPost, "/contexts/"+url.PathEscape(k.ID)+"/restart", struct{}{}); err == nil {
				_, err = io.Copy(io.Discard, io.LimitReader(res.Body, maxAnswerBytes))
				_ = res.Body.Close()
			}
		}
		if err != nil {
			return c.s.dataFailure(ctx, sent(ctx, err), sandboxcore.CodeUnknownOutcome, "the interpreter could not be restarted")
		}
		return nil
	})
}

func (c *cellRun) send(ctx context.Context, method, path string, in any) (*http.Response, error) {
	var body io.Reader = http.NoBody
	if in != nil {
		text, err := json.Marshal(in)
		if err != nil {
			return nil, err
		}
		body = bytes.NewReader(text)
	}
	req, err := http.NewRequestWithContext(ctx, method, c.daemon.url(path), body)
	if err != nil {
		return nil, err
	}
	c.daemon.dress(req.Header)
	req.Header.Del("Authorization") // the interpreter has no users
	req.Header.Set("Accept", "application/json")
	if in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	res, err := c.daemon.e.data.Do(req)
	if err != nil {
		return nil, stripURL(err)
	}
	return res, nil
}

// cell runs one piece of code and reads what happens to its end. An answer without an end is an error.
func (c *cellRun) cell(ctx context.Context, code string, stdout, stderr io.Writer) (end cellEnd, err error) {
	var res *http.Response
	for attempt := 0; ; attempt++ {
		res, err = c.send(ctx, http.MethodPost, "/execute", map[string]string{"code": code, "language": c.req.Language})
		if err == nil {
			break
		}
		// As with any port: what the proxy answers has not reached the sandbox, and right after a wake a port may be closed.
		a, ok := statusOf(err)
		if !ok || !a.proxied || !(a.closedPort || a.status == http.StatusConflict) || attempt >= 10 {
			return end, sent(ctx, err)
		}
		if werr := c.s.e.times.wait(ctx, c.s.e.times.poll); werr != nil {
			return end, err
		}
	}
	defer res.Body.Close()
	lines := bufio.NewReaderSize(res.Body, 64<<10)
	for {
		line, whole, err := readLine(lines)
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return end, sent(ctx, err)
		}
		var ev struct{ Type, Text, Name, Value, Traceback string }
		switch {
		case len(bytes.TrimSpace(line)) == 0:
			continue
		case !whole && resultLine.Match(line):
			c.results = true
			continue
		case !whole:
			return end, sentError{errTooLarge}
		case json.Unmarshal(line, &ev) != nil:
			return end, sentError{errNoJSON}
		}
		switch ev.Type {
		case "stdout":
			c.write(stdout, ev.Text)
		case "stderr":
			c.write(stderr, ev.Text)
		case "error":
			if !end.failed {
				end = cellEnd{true, ev.Name, ev.Value, ev.Traceback}
			}
		case "result":
			c.results = true
		case "unexpected_end_of_execution":
			return end, sentError{io.ErrUnexpectedEOF}
		case "end_of_execution":
			return end, nil
		}
	}
}

// resultLine is how a line with a value of an expression, or a picture, begins: its type comes first.
var resultLine = regexp.MustCompile(`^\s*\{\s*"type"\s*:\s*"result"`)

// readLine reads one line; of one that is too long only the start, which whole says.
func readLine(r *bufio.Reader) (line []byte, whole bool, err error) {
	whole = true
	for {
		part, err := r.ReadSlice('\n')
		if room := maxCellLine - len(line); len(part) > room {
			part, whole = part[:room], false
		}
		line = append(line, part...)
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case err != nil:
			return nil, false, err // half a line is none
		}
		return line, whole, nil
	}
}

var shellName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// prepare gives the code that makes the interpreter ready for this run, and the file that it reads for that: the run's
// environment, its mark for whatever it starts, and the directory of the sandbox's packages. cleanup undoes it.
func (c *cellRun) prepare() (setup string, file []byte, err error) {
	envs := map[string]string{}
	maps.Copy(envs, c.req.Env)
	envs[runVariable] = c.marked.id
	path := c.marked.codeFile
	if c.req.Language == "bash" {
		var text, undo strings.Builder
		for _, name := range slices.Sorted(maps.Keys(envs)) {
			if !shellName.MatchString(name) {
				return "", nil, &sandboxcore.Error{
					Code: sandboxcore.CodeValue, Attempted: "the run was refused", Object: c.s.object(), Attribute: []string{"env"},
					Said: fmt.Sprintf("%s is no name of a variable in a shell. Nothing ran.", sandboxcore.Quoted(name)), Next: "Use another name.",
				}
			}
			fmt.Fprintf(&text, "__agentkernel_had_%[1]s=${%[1]s+x} __agentkernel_%[1]s=${%[1]s-}\n\\export %[1]s='%[2]s'\n", name, strings.ReplaceAll(envs[name], "'", `'\''`))
			fmt.Fprintf(&undo, "case $__agentkernel_had_%[1]s in x) \\export %[1]s=\"$__agentkernel_%[1]s\" ;; *) \\unset %[1]s ;; esac\n\\unset __agentkernel_had_%[1]s __agentkernel_%[1]s\n", name)
		}
		// Code may have given these names a meaning of its own, as a function or an alias. In this mode, which an assignment
		// begins, those of the shell itself come first; a backslash passes by an alias.
		const own = "__agentkernel_posix=${POSIXLY_CORRECT+x}; POSIXLY_CORRECT=1\n"
		const back = "case $__agentkernel_posix in x) \\unset __agentkernel_posix ;; *) \\unset __agentkernel_posix POSIXLY_CORRECT ;; esac\n"
		c.cleanup = own + undo.String() + back + ":"
		return fmt.Sprintf(own+"\\. '%[1]s'", path), []byte("command rm -f -- '" + path + "'\n" + text.String() + back + ":\n"), nil
	}
	text, err := json.Marshal(envs)
	if err != nil {
		return "", nil, err
	}
	// Names of its own, so that nothing of it is seen by the code.
	file = fmt.Appendf(nil, `import base64, json, os, pwd, sys
os.unlink(%[1]q)
values = json.loads(base64.b64decode(%[2]q))
sys._agentkernel_before = {name: os.environ.get(name) for name in values}
os.environ.update(values)
try:
    home = pwd.getpwnam(%[3]q).pw_dir
except KeyError:
    home = "/home/" + %[3]q
packages = os.path.join(home, ".agentkernel/packages")
if packages not in sys.path:
    sys.path.insert(0, packages)
`, path, base64.StdEncoding.EncodeToString(text), c.s.o.user)
	// By their own module: code may have given its own meaning to their names.
	c.cleanup = `__import__("builtins").exec("import os, sys\nfor n, v in sys.__dict__.pop('_agentkernel_before', {}).items():\n    os.environ.pop(n, None) if v is None else os.environ.update({n: v})", {})`
	return fmt.Sprintf(`__import__("builtins").exec(__import__("builtins").open(%q).read(), {})`, path), file, nil
}
