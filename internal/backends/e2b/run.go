package e2b

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

const (
	attemptedRun = "the run could not be carried out"

	// stdinChunk is how much input goes into one call.
	stdinChunk = 64 << 10
	// deadlineMargin is what the deadline that travels with a run has beyond its own limit: it is the last resort, for when
	// this provider is gone, and must not come before our own end of the run.
	deadlineMargin = 10 * time.Second
	// lifetimeMargin is what the sandbox's time has beyond a run.
	lifetimeMargin = time.Minute
	// stdinVersion is the first envd that can close a program's input.
	stdinVersion = "0.5.2"

	noticeWoken = "The sandbox's time was over, so that it had been paused; it was woken for this."
	noticeLeft  = "A process of the run may have survived its end."
)

// program says how a request is started: argument list and the text of a code file.
func program(req sandboxcore.RunRequest, object string) (argv []string, code []byte, err error) {
	refuse := func(code sandboxcore.Code, said, next, attribute string) error {
		return &sandboxcore.Error{Code: code, Attempted: "the run was refused", Object: object, Said: said, Next: next, Attribute: []string{attribute}}
	}
	switch req.Kind {
	case sandboxcore.RunCommand:
		if len(req.Argv) == 0 || req.Argv[0] == "" {
			return nil, nil, refuse(sandboxcore.CodeValue, "It names no program.", "Give the program as the first element.", "command")
		}
		return req.Argv, nil, nil
	case sandboxcore.RunScript:
		return []string{"sh", "/proc/self/fd/3"}, req.Text, nil
	case sandboxcore.RunCode:
		switch req.Language {
		case "python":
			return []string{"python3", "-c", pythonBootstrap}, req.Text, nil
		case "bash":
			return []string{"bash", "/proc/self/fd/3"}, req.Text, nil
		}
		return nil, nil, refuse(sandboxcore.CodeLanguage, fmt.Sprintf("%s is no language that can be run here.", sandboxcore.Quoted(req.Language)), "Use python or bash.", "language")
	}
	return nil, nil, refuse(sandboxcore.CodeOperation, "Its kind is unknown.", "This is a fault of the provider; please report it.", "command")
}

// run is one run under way.
type run struct {
	s        *sandbox
	req      sandboxcore.RunRequest
	id       string
	codeFile string
	daemon   *daemon
	mark     *markFilter
	stdout   io.Writer
	began    time.Time

	started chan struct{} // closed at the start event
	starved chan struct{} // closed when input could not be brought
	done    chan struct{} // closed when the stream is over
	// What the stream said; to be read after done.
	begun    bool
	pid      uint32 // 0: the daemon did not tell
	wrote    bool   // to stdout
	refused  bool   // by the wrapper, before it became the program
	end      *endEvent
	err      error
	writeErr error
	// What became of the input; to be read after starved.
	inputErr error
}

// Run runs one request. The process is started once and never again, whatever happens to the connection.
func (s *sandbox) Run(ctx context.Context, req sandboxcore.RunRequest, stdout, stderr io.Writer) (sandboxcore.RunResult, error) {
	object := s.object()
	argv, code, err := program(req, object)
	if err != nil {
		return sandboxcore.RunResult{}, err
	}
	if err := ctx.Err(); err != nil {
		return sandboxcore.RunResult{}, s.beforeStart(err)
	}
	if s.info.Status == sandboxcore.StatusPaused && !s.info.Dormant {
		return sandboxcore.RunResult{}, s.e.notRunning(s.info.NativeID)
	}
	interpreter := s.o.interpreter && req.Kind == sandboxcore.RunCode
	if interpreter {
		if e := refuseInterpreter(s.e.place.Kind, object, len(req.Stdin) > 0, req.WorkingDirectory); e != nil {
			return sandboxcore.RunResult{}, e
		}
		// Before its time is renewed: what waits for others may wait long.
		leave, err := s.e.cells.enter(ctx, s.info.NativeID+" "+req.Language)
		if err != nil {
			return sandboxcore.RunResult{}, s.beforeStart(err)
		}
		defer leave()
	}
	resumed, err := s.wake(ctx, max(s.o.idle, req.Timeout+req.Grace+lifetimeMargin))
	if err != nil {
		return sandboxcore.RunResult{}, err
	}
	if len(req.Stdin) > 0 && !s.session.atLeast(stdinVersion) {
		return sandboxcore.RunResult{}, &sandboxcore.Error{
			Code: sandboxcore.CodeOperation, Attempted: "the run was refused", Object: object,
			Said: fmt.Sprintf("The sandbox's daemon has version %s; only from %s on can a program's input be ended. Nothing ran.", sandboxcore.Quoted(s.session.version), stdinVersion),
			Next: "Put the data into a file, or use a template with a newer daemon.", Attribute: []string{"stdin"},
		}
	}
	if interpreter {
		res, err := s.interpret(ctx, req, stdout, stderr)
		if resumed {
			res.Notice = joinNotices(noticeWoken, res.Notice)
		}
		return res, err
	}
	r := &run{s: s, req: req, id: newRunID(), started: make(chan struct{}), starved: make(chan struct{}), done: make(chan struct{})}
	if r.daemon, err = s.daemon(s.o.user); err != nil {
		return sandboxcore.RunResult{}, err
	}
	if code != nil || req.Kind != sandboxcore.RunCommand {
		r.codeFile = "/tmp/.agentkernel-" + r.id
		if err := r.daemon.upload(ctx, r.codeFile, code); err != nil {
			_, _ = r.kill(ctx, 0) // it removes the file, which may be there all the same
			return sandboxcore.RunResult{}, s.dataFailure(ctx, err, sandboxcore.CodeProvision, "the code could not be brought into the sandbox; nothing ran")
		}
	}
	res, err := r.carryOut(ctx, argv, stdout, stderr)
	if resumed {
		res.Notice = joinNotices(noticeWoken, res.Notice)
	}
	return res, err
}

func (s *sandbox) object() string { return objectID(s.e.place.Kind, s.info.NativeID) }

func newRunID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails (crypto/rand, Go 1.24)
	return hex.EncodeToString(b[:])
}

func joinNotices(a, b string) string {
	if a == "" || b == "" {
		return a + b
	}
	return a + " " + b
}

// tag names the process of a run to envd.
func (r *run) tag() string { return "agentkernel-" + r.id }

func (r *run) carryOut(ctx context.Context, argv []string, stdout, stderr io.Writer) (sandboxcore.RunResult, error) {
	limit := r.req.Timeout + r.req.Grace
	input := "none"
	withInput := len(r.req.Stdin) > 0
	if withInput {
		input = "input"
	}
	envs := map[string]string{}
	maps.Copy(envs, r.req.Env)
	envs[runVariable] = r.id
	msg := &startRequest{
		Tag: r.tag(), Stdin: &withInput,
		Process: processConfig{
			Cmd: "/bin/sh", Envs: envs,
			Args: append([]string{"-c", wrapper, "agentkernel", r.id, r.req.WorkingDirectory, strconv.Itoa(wholeSeconds(limit + deadlineMargin/2)), input, r.codeFile}, argv...),
		},
	}
	streamCtx, cancel := context.WithTimeout(ctx, r.s.e.times.start+limit+deadlineMargin)
	defer cancel()
	r.stdout = stdout
	r.mark = &markFilter{out: stderr, prefix: markLine + r.id + ":"}
	r.began = r.s.e.b.now()
	var work sync.WaitGroup
	work.Go(func() {
		defer close(r.done)
		r.receive(streamCtx, msg)
	})
	if withInput {
		work.Go(func() { r.feed(streamCtx) })
	}
	res, err := r.await(ctx, cancel)
	// Nothing outlives the run: neither the reader of its stream nor the writer of its input.
	cancel()
	work.Wait()
	if !r.refused { // what was held back is the program's
		r.mark.flush()
	}
	return res, err
}

// await waits for the end of the stream, of the run's time or of ctx, and makes sure that nothing is left.
func (r *run) await(ctx context.Context, cancel context.CancelFunc) (sandboxcore.RunResult, error) {
	starting := time.NewTimer(r.s.e.times.start)
	defer starting.Stop()
	select {
	case <-r.done:
		return r.finish(ctx)
	case <-ctx.Done():
		cancel()
		<-r.done
		return r.interrupted(ctx)
	case <-starting.C:
		cancel()
		<-r.done
		r.err = sentError{errNoAnswer}
		return r.finish(ctx)
	case <-r.started:
	}
	limit := time.NewTimer(r.req.Timeout)
	defer limit.Stop()
	select {
	case <-r.done:
		return r.finish(ctx)
	case <-r.starved:
		res, err := r.unfed(ctx)
		cancel()
		<-r.done
		return res, err
	case <-ctx.Done():
		cancel()
		<-r.done
		return r.interrupted(ctx)
	case <-limit.C:
	}
	left, err := r.kill(ctx, r.req.Grace)
	// The output that came before the end is still on its way.
	drain := time.NewTimer(r.s.e.times.drain)
	defer drain.Stop()
	select {
	case <-r.done:
	case <-drain.C:
		cancel()
		<-r.done
	}
	return r.timedOut(left, err)
}

// receive reads the stream of a process until its end event. Only an end event is an end.
func (r *run) receive(ctx context.Context, msg *startRequest) {
	var stream *connect.ServerStreamForClient[startResponse]
	for attempt := 0; ; attempt++ {
		stream, r.err = r.daemon.start(ctx, msg)
		if r.err == nil {
			break
		}
		// What the proxy in front of the sandboxes answers has not reached the sandbox. Right after a wake its port may not
		// be open yet.
		a, ok := statusOf(r.err)
		if !ok || !a.proxied || !(a.closedPort || a.status == http.StatusConflict) || attempt >= 10 {
			return
		}
		if r.s.e.times.wait(ctx, r.s.e.times.poll) != nil {
			return
		}
	}
	defer stream.Close()
	for stream.Receive() {
		ev := stream.Msg().Event
		switch {
		case ev.Start != nil:
			if !r.begun {
				r.begun, r.pid = true, ev.Start.PID
				close(r.started)
			}
		case ev.Data != nil:
			r.take(ev.Data)
		case ev.End != nil:
			r.end = ev.End
			return
		}
	}
	if r.err = r.daemon.discreet(stream.Err()); r.err == nil {
		r.err = io.ErrUnexpectedEOF
	}
}

// unstarted gives the wrapper's word on why it did not become the program. The program, which knows the mark, could say the
// same; with more output, or another end, it is not believed.
func (r *run) unstarted(end *endEvent) (string, bool) {
	what, ok := r.mark.found()
	return what, ok && end != nil && end.ExitCode == markStatus && !r.wrote
}

// take passes output on.
func (r *run) take(data *dataEvent) {
	for _, p := range []struct {
		to   io.Writer
		data []byte
	}{{r.stdout, data.Stdout}, {r.mark, data.Stderr}} {
		if len(p.data) == 0 {
			continue
		}
		r.wrote = r.wrote || len(data.Stdout) > 0
		if _, err := p.to.Write(p.data); err != nil && r.writeErr == nil {
			r.writeErr = err
		}
	}
}

// feed gives the program its input. A program that no longer reads is no error.
func (r *run) feed(ctx context.Context) {
	select {
	case <-r.started:
	case <-r.done:
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := make(chan struct{})
	defer close(stop)
	go func() { // a call that waits for a program that does not read ends with the program
		select {
		case <-r.done:
			cancel()
		case <-stop:
		}
	}()
	to := processSelector{PID: r.pid}
	if r.pid == 0 {
		to.Tag = r.tag()
	}
	data := r.req.Stdin
	for len(data) > 0 {
		n := min(len(data), stdinChunk)
		if err := r.daemon.sendInput(ctx, to, data[:n]); err != nil {
			if !readsNoMore(err) && ctx.Err() == nil {
				r.inputErr = err
				close(r.starved)
			}
			return
		}
		data = data[n:]
	}
	// Closing twice is closing once.
	for range 3 {
		if err := r.daemon.closeStdin(ctx, to); err == nil || readsNoMore(err) || r.s.e.times.wait(ctx, r.s.e.times.poll) != nil {
			return
		}
	}
}

// readsNoMore reports what envd itself says of a program that has ended or closed its input. Any other error may have kept
// input from a program that still wants it.
func readsNoMore(err error) bool {
	if isRPC(err, "not_found") || isRPC(err, "failed_precondition") {
		return true
	}
	said := err.Error()
	return isRPC(err, "internal") && (strings.Contains(said, "broken pipe") || strings.Contains(said, "closed"))
}

// unfed ends a program that did not get all of its input: it would take a part for the whole.
func (r *run) unfed(ctx context.Context) (sandboxcore.RunResult, error) {
	left, err := r.kill(ctx, 0)
	e := &sandboxcore.Error{
		Code: sandboxcore.CodeUnknownOutcome, Attempted: "the input of the run could not be brought to it", Object: r.s.object(), Err: quietCause(rootCause(r.inputErr)),
		Said: "The program did not get all of it. Every process that carries the mark of the run was ended because of it.",
		Next: "Find out what it had done by then before it runs again: nothing is repeated by itself.",
	}
	if err != nil || left > 0 {
		e.Said = "The program did not get all of it, and it may go on."
	}
	return r.partial(), e
}

// finish judges a stream that is over.
func (r *run) finish(ctx context.Context) (sandboxcore.RunResult, error) {
	if r.end == nil {
		if ctx.Err() != nil {
			return r.interrupted(ctx)
		}
		return r.broken(ctx)
	}
	out := sandboxcore.RunResult{ExitCode: r.end.ExitCode, Duration: r.s.e.b.now().Sub(r.began)}
	select {
	case <-r.starved:
		return r.unfed(ctx)
	default:
	}
	left, err := r.kill(ctx, 0)
	if err != nil || left > 0 {
		out.Notice = noticeLeft
	}
	if what, ok := r.unstarted(r.end); ok {
		return sandboxcore.RunResult{}, r.startError(what)
	}
	if r.writeErr != nil {
		return out, &sandboxcore.Error{Code: sandboxcore.CodeUnknownOutcome, Attempted: "the output of the run could not be taken", Object: r.s.object(), Err: r.writeErr}
	}
	if r.end.ExitCode < 0 {
		out.Signal = signalOf(r.end.Status)
		out.ExitCode = 128 + out.Signal
		if out.Signal == 0 {
			out.ExitCode = 255
			out.Notice = joinNotices(fmt.Sprintf("It ended in a way that has no number: %s.", sandboxcore.Quoted(r.daemon.discreetText(r.end.Status+" "+r.end.Error))), out.Notice)
		}
	}
	return out, nil
}

// reconnect follows a run whose stream broke to its end, and gives that; nil if it cannot be found or followed. The run is
// named by its tag: a process id may be another's by now. What it wrote in between nobody has kept.
func (r *run) reconnect(ctx context.Context) *endEvent {
	left := r.req.Timeout - r.s.e.b.now().Sub(r.began)
	if left <= 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, left)
	defer cancel()
	starting := time.AfterFunc(r.s.e.times.start, cancel)
	defer starting.Stop()
	stream, err := r.daemon.follow(ctx, processSelector{Tag: r.tag()})
	if err != nil {
		return nil
	}
	defer stream.Close()
	for stream.Receive() {
		starting.Stop()
		ev := stream.Msg().Event
		if ev.Data != nil {
			r.take(ev.Data)
		}
		if ev.End != nil {
			return ev.End
		}
	}
	return nil
}

// startError is for a program that was not started, told apart from a program's own 126 or 127.
func (r *run) startError(what string) error {
	r.refused = true
	e := &sandboxcore.Error{Code: sandboxcore.CodeOperation, Attempted: "the run could not be started", Object: r.s.object()}
	template := fmt.Sprintf("the template %q", r.s.o.template)
	switch {
	case what == "chdir":
		e.Code, e.Attribute = sandboxcore.CodeValue, []string{"working_directory"}
		e.Said = fmt.Sprintf("The working directory %q cannot be entered. Nothing ran.", r.req.WorkingDirectory)
		e.Next = "Make the directory first, or name one that exists."
	case what == "program" && r.req.Kind == sandboxcore.RunCode:
		e.Code, e.Attribute = sandboxcore.CodeLanguage, []string{"language"}
		e.Said, e.Next = fmt.Sprintf("There is no %s in %s. Nothing ran.", r.req.Language, template), "Use a template that has it, or another language."
	case what == "program":
		e.Attribute = []string{"command"}
		e.Said = fmt.Sprintf("There is no program %q in %s, or it may not be executed. Nothing ran.", r.req.Argv[0], template)
		e.Next = "Check its name and the PATH of the run. Shell text belongs into script."
	default:
		e.Code = sandboxcore.CodeProvision
		e.Said, e.Next = "The code that was brought into the sandbox is not there any more. Nothing ran.", "Run the command again."
	}
	return e
}

// interrupted ends a run whose caller has given up.
func (r *run) interrupted(ctx context.Context) (sandboxcore.RunResult, error) {
	cause := ctx.Err()
	if r.nothingRan() {
		return sandboxcore.RunResult{}, r.s.beforeStart(cause)
	}
	left, err := r.kill(ctx, r.req.Grace)
	e := &sandboxcore.Error{Code: sandboxcore.CodeUnknownOutcome, Attempted: "the run was cancelled", Object: r.s.object(), Err: cause}
	if errors.Is(cause, context.DeadlineExceeded) && err == nil && left == 0 {
		e.Code, e.Attempted = sandboxcore.CodeTimeout, "the run was ended because the time of the operation was over"
	}
	if err == nil && left == 0 {
		e.Said, e.Next = "Every process that carries its mark was ended.", "Find out what it had done by then before it runs again."
	} else {
		e.Said, e.Next = "It could not be confirmed that every process of it has ended.", "Check or replace the sandbox before it runs again."
	}
	return r.partial(), e
}

func (r *run) partial() sandboxcore.RunResult {
	return sandboxcore.RunResult{Duration: r.s.e.b.now().Sub(r.began)}
}

func (r *run) timedOut(left int, err error) (sandboxcore.RunResult, error) {
	e := &sandboxcore.Error{
		Code: sandboxcore.CodeTimeout, Attempted: "the run was ended because its time was over", Object: r.s.object(),
		Said: fmt.Sprintf("It did not end within %s; every process that carries its mark was ended.", r.req.Timeout),
		Next: "Raise the timeout of the run or of the profile's policy, or make the run shorter.", Attribute: []string{"timeout"},
	}
	if err != nil || left > 0 {
		e.Said = fmt.Sprintf("It did not end within %s, and a process of it may have survived.", r.req.Timeout)
		e.Next = "Replace the sandbox to be sure that nothing of it is left."
		e.Err = err
	}
	return r.partial(), e
}

// nothingRan reports whether the request provably never reached the daemon, or was turned away by it.
func (r *run) nothingRan() bool {
	if r.begun {
		return false
	}
	if a, ok := statusOf(r.err); ok {
		return a.proxied || (a.shaped && a.status < http.StatusInternalServerError)
	}
	var rpc *connect.Error
	if errors.As(r.err, &rpc) && connect.IsWireError(r.err) {
		// The daemon itself refused: a bad directory, an unknown user.
		return rpc.Code() == connect.CodeInvalidArgument || rpc.Code() == connect.CodeUnauthenticated || rpc.Code() == connect.CodeNotFound || rpc.Code() == connect.CodeUnimplemented
	}
	return neverSent(r.err)
}

// broken judges a stream that ended without an end event. What the process did is not known, and it is not started again.
func (r *run) broken(ctx context.Context) (sandboxcore.RunResult, error) {
	if r.nothingRan() {
		err := r.s.dataFailure(ctx, r.err, sandboxcore.CodeProvision, "the run could not be started; nothing ran")
		return sandboxcore.RunResult{}, err
	}
	var rpc *connect.Error
	if errors.As(r.err, &rpc) && rpc.Code() == connect.CodeDeadlineExceeded && connect.IsWireError(r.err) {
		left, err := r.kill(ctx, 0)
		return r.timedOut(left, err)
	}
	if end := r.reconnect(ctx); end != nil {
		return r.foundAgain(ctx, end)
	}
	if ctx.Err() != nil {
		return r.interrupted(ctx)
	}
	if r.begun && r.s.e.b.now().Sub(r.began) >= r.req.Timeout {
		left, err := r.kill(ctx, r.req.Grace)
		return r.timedOut(left, err)
	}
	left, err := r.kill(ctx, 0)
	e := &sandboxcore.Error{
		Code: sandboxcore.CodeUnknownOutcome, Attempted: attemptedRun, Object: r.s.object(), Err: quietCause(rootCause(r.err)),
		Said: "The connection to the sandbox broke before the end of the run was told. Every process that carries its mark was ended because of it.",
		Next: "Find out what it had done by then before it runs again: nothing is repeated by itself.",
	}
	if err != nil || left > 0 {
		e.Said = "The connection to the sandbox broke before the end of the run was told, and it may go on."
		e.Next = "Find out whether it did its work before it runs again: nothing is repeated by itself."
		if sandboxcore.IsCode(err, sandboxcore.CodeGone) {
			e.Said = "The sandbox was ended while it ran."
		}
	}
	return r.partial(), e
}

// foundAgain is the error for a run whose end is known after all, but not all of its output. It is no success: whoever reads
// the output would take a part for the whole.
func (r *run) foundAgain(ctx context.Context, end *endEvent) (sandboxcore.RunResult, error) {
	if what, ok := r.unstarted(end); ok {
		return sandboxcore.RunResult{}, r.startError(what)
	}
	how := fmt.Sprintf("ended with exit status %d", end.ExitCode)
	if end.ExitCode < 0 {
		how = fmt.Sprintf("was ended (%s)", clip(sandboxcore.Printable(r.daemon.discreetText(end.Status)), 80))
	}
	e := &sandboxcore.Error{
		Code: sandboxcore.CodeUnknownOutcome, Attempted: attemptedRun, Object: r.s.object(), Err: quietCause(rootCause(r.err)),
		Said: "The connection to the sandbox broke while it ran. It was found again and " + how + ", but what it wrote in between is missing.",
		Next: "Its work is done as far as the exit status says; nothing is repeated by itself.",
	}
	if left, err := r.kill(ctx, 0); err != nil || left > 0 {
		e.Said += " " + noticeLeft
	}
	return r.partial(), e
}

// rootCause is the innermost text worth showing: not the address that net/http puts around it.
func rootCause(err error) error {
	err = stripURL(err)
	if s, ok := errors.AsType[sentError](err); ok {
		return s.error
	}
	return err
}

// beforeStart is the error for a context that ended before anything ran.
func (s *sandbox) beforeStart(cause error) error {
	e := &sandboxcore.Error{
		Code: sandboxcore.CodeUnknownOutcome, Attempted: attemptedRun, Object: s.object(),
		Said: "It was cancelled before it started. Nothing ran.", Next: "Run the command again.", Err: cause,
	}
	if errors.Is(cause, context.DeadlineExceeded) {
		e.Code, e.Said, e.Next = sandboxcore.CodeTimeout, "The time was over before it started. Nothing ran.", "Raise the timeout."
	}
	return e
}
