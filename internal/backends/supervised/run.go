package supervised

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/runhelper"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

const attemptedRun = "the run could not be carried out"

// Run runs one request through a helper. It keeps the contract of sandboxcore.Environment.Run. Beside an error of code
// CodeTimeout or CodeUnknownOutcome the result holds what is known.
func Run(ctx context.Context, t Target, req sandboxcore.RunRequest, stdout, stderr io.Writer) (sandboxcore.RunResult, error) {
	r, err := t.request(req)
	if err != nil {
		return sandboxcore.RunResult{}, err
	}
	if err := ctx.Err(); err != nil {
		return sandboxcore.RunResult{}, t.beforeStart(err, attemptedRun)
	}
	conn, err := t.open(ctx, attemptedRun)
	if err != nil {
		return sandboxcore.RunResult{}, err
	}
	res, err := runhelper.Run(ctx, conn, r, stdout, stderr)
	var cancelled *runhelper.CancelledError
	if errors.As(err, &cancelled) && cancelled.Ended {
		res = cancelled.Result
	}
	out := sandboxcore.RunResult{
		ExitCode: res.ExitCode, Signal: res.Signal, OOMKilled: res.OOMKilled, Duration: res.Duration, LeftoversKilled: res.LeftoversKilled,
	}
	if res.Incomplete {
		out.Notice = "A process of the run may have survived its end."
	}
	if err != nil {
		return out, t.runError(req, err)
	}
	if res.TimedOut {
		e := &sandboxcore.Error{
			Code: sandboxcore.CodeTimeout, Attempted: "the run was ended because its time was over", Object: t.Object,
			Said: fmt.Sprintf("It did not end within %s; every process of it was ended.", req.Timeout),
			Next: "Raise the timeout of the run or of the profile's policy, or make the run shorter.", Attribute: []string{"timeout"},
		}
		if res.Incomplete {
			e.Said = fmt.Sprintf("It did not end within %s, and a process of it may have survived.", req.Timeout)
			e.Next = "Replace the sandbox to be sure that nothing of it is left."
		}
		return out, e
	}
	return out, nil
}

// request turns an engine request into one for the helper.
func (t Target) request(req sandboxcore.RunRequest) (*runhelper.Request, error) {
	var r *runhelper.Request
	switch req.Kind {
	case sandboxcore.RunCommand:
		if len(req.Argv) == 0 || req.Argv[0] == "" {
			return nil, &sandboxcore.Error{
				Code: sandboxcore.CodeValue, Attempted: "the command was refused", Object: t.Object, Said: "It names no program.",
				Next: "Give the program as the first element.", Attribute: []string{"command"},
			}
		}
		r = &runhelper.Request{Program: req.Argv[:1:1], Args: req.Argv[1:]}
	case sandboxcore.RunScript:
		r = runhelper.ShellRequest(req.Text)
	case sandboxcore.RunCode:
		switch req.Language {
		case "python":
			r = runhelper.PythonRequest(req.Text)
		case "bash":
			r = runhelper.BashRequest(req.Text)
		default:
			return nil, &sandboxcore.Error{
				Code: sandboxcore.CodeLanguage, Attempted: "the code was refused", Object: t.Object, Said: fmt.Sprintf("%q is no language that can be run here.", req.Language),
				Next: "Use python or bash where the backend offers it, or run a command.", Attribute: []string{"language"},
			}
		}
	default:
		return nil, &sandboxcore.Error{Code: sandboxcore.CodeOperation, Attempted: "the run was refused", Object: t.Object, Said: "Its kind is unknown.", Next: "This is a fault of the provider; please report it."}
	}
	for _, k := range slices.Sorted(maps.Keys(req.Env)) {
		r.Env = append(r.Env, k+"="+req.Env[k])
	}
	r.Dir = req.WorkingDirectory
	if req.Stdin != nil {
		r.Stdin = bytes.NewReader(req.Stdin)
	}
	r.Timeout, r.Grace, r.KeepBackground = req.Timeout, req.Grace, req.KeepBackground
	if t.Adjust != nil {
		t.Adjust(r)
	}
	return r, nil
}

func (t Target) runError(req sandboxcore.RunRequest, err error) error {
	var start *runhelper.StartError
	var request *runhelper.RequestError
	var cancelled *runhelper.CancelledError
	var stream *runhelper.StreamError
	switch {
	case errors.As(err, &start):
		return t.startError(req, start)
	case errors.As(err, &request):
		return requestError(t.Object, request)
	case errors.As(err, &cancelled):
		return t.cancelled(cancelled)
	case errors.As(err, &stream):
		return t.broken(stream, attemptedRun)
	case errors.Is(err, runhelper.ErrSupervisorLost):
		return &sandboxcore.Error{
			Code: sandboxcore.CodeUnknownOutcome, Attempted: attemptedRun, Object: t.Object,
			Said: "Its supervisor was killed while it ran, most likely by the code itself. Every process of the run was ended.",
			Next: "Find out what it had done by then before it runs again: nothing is repeated by itself.", Err: err,
		}
	}
	return &sandboxcore.Error{
		Code: sandboxcore.CodeUnknownOutcome, Attempted: attemptedRun, Object: t.Object,
		Said: "The run helper gave an answer that is not understood.", Next: "Find out what it did before it runs again.", Err: err,
	}
}

// startError is for a run whose program was not started: never an exit status, so that it cannot be mistaken for the
// program's own 126 or 127.
func (t Target) startError(req sandboxcore.RunRequest, start *runhelper.StartError) error {
	e := &sandboxcore.Error{Code: sandboxcore.CodeProvision, Attempted: "the run could not be started", Object: t.Object, Err: start}
	switch start.Stage {
	case "chdir":
		e.Code, e.Attribute = sandboxcore.CodeValue, []string{"working_directory"}
		e.Said = fmt.Sprintf("The working directory %q cannot be entered. Nothing ran.", req.WorkingDirectory)
		e.Next = "Make the directory first, or name one that exists."
	case "exec", "interpreter":
		t.programError(req, start, e)
	case "arguments":
		e.Code = sandboxcore.CodeValue
		e.Said, e.Next = "Its arguments and environment are larger than a Linux process may have. Nothing ran.", "Hand large data over stdin or as a file."
	case "fork":
		e.Said, e.Next = "The sandbox holds as many processes as it may. Nothing ran.", "End something in it, or raise the limit of processes where the backend has one."
	case "memfd":
		e.Said, e.Next = "There is no room for its code. Nothing ran.", "Free memory in the sandbox, or raise its limit."
	default:
		e.Said, e.Next = "The run helper could not prepare it. Nothing ran.", "Check the limits of the sandbox."
	}
	return e
}

func (t Target) programError(req sandboxcore.RunRequest, start *runhelper.StartError, e *sandboxcore.Error) {
	e.Code = sandboxcore.CodeOperation
	missing := errors.Is(start, runhelper.ENOENT)
	switch {
	case start.Stage == "interpreter":
		e.Said = fmt.Sprintf("%q exists, but the interpreter or loader that it names does not. Nothing ran.", start.Program)
		e.Next = "Use a program built for this sandbox (its C library, its interpreter)."
	case missing && req.Kind == sandboxcore.RunCode:
		e.Said = fmt.Sprintf("There is no %s in %s. Nothing ran.", req.Language, t.place())
		e.Next = "Use an environment that has it, or another language."
	case missing && req.Kind == sandboxcore.RunScript:
		e.Said = fmt.Sprintf("There is no sh in %s. Nothing ran.", t.place())
		e.Next = "Use command, which needs no shell, or an environment that has one."
	case missing:
		e.Said = fmt.Sprintf("There is no program %q in %s. Nothing ran.", start.Program, t.place())
		e.Next = "Check its name and the PATH of the run. Shell text belongs into script."
	case errors.Is(start, runhelper.ENOEXEC):
		e.Said = fmt.Sprintf("%q is no program for this platform. Nothing ran.", start.Program)
		e.Next = "Check the architecture of the environment, or start it through its interpreter."
	default:
		e.Said = fmt.Sprintf("%q cannot be started. Nothing ran.", start.Program)
		e.Next = "Check that it may be executed."
	}
	switch req.Kind {
	case sandboxcore.RunCode:
		e.Code, e.Attribute = sandboxcore.CodeLanguage, []string{"language"}
	case sandboxcore.RunCommand:
		e.Attribute = []string{"command"}
	default:
		e.Attribute = []string{"script"}
	}
}

// requestError names the attribute and never the value, which may be a secret.
func requestError(object string, r *runhelper.RequestError) error {
	attribute := map[string]string{"Program": "command", "Args": "command", "Env": "env", "Dir": "working_directory", "Timeout": "timeout", "path": "path"}[r.Field]
	e := &sandboxcore.Error{
		Code: sandboxcore.CodeValue, Attempted: "the request was refused", Object: object,
		Said: strings.ToUpper(r.Reason[:1]) + r.Reason[1:] + ". Nothing ran.", Next: "Correct it.", Err: nil,
	}
	if attribute != "" {
		e.Attribute = []string{attribute}
		e.Said = fmt.Sprintf("%s: %s. Nothing ran.", attribute, r.Reason)
	}
	return e
}

func (t Target) cancelled(c *runhelper.CancelledError) error {
	e := &sandboxcore.Error{Code: sandboxcore.CodeUnknownOutcome, Attempted: "the run was cancelled", Object: t.Object, Err: c}
	if errors.Is(c, context.DeadlineExceeded) {
		e.Code, e.Attempted = sandboxcore.CodeTimeout, "the run was ended because the time of the operation was over"
	}
	switch {
	case c.Confirmed && !c.Ended:
		e.Said, e.Next = "It had not started. Nothing ran.", "Run the command again."
	case c.Confirmed:
		e.Said, e.Next = "Every process of it was ended.", "Find out what it had done by then before it runs again."
	default:
		e.Code = sandboxcore.CodeUnknownOutcome
		e.Said, e.Next = "It could not be confirmed that every process of it has ended.", "Check or replace the sandbox before it runs again."
	}
	return e
}
