package e2b

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"connectrpc.com/connect"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

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
