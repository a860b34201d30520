package supervised

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/runhelper"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// Target is one sandbox that helpers can be started in.
type Target struct {
	// Object names the sandbox in errors, as users see it.
	Object string
	// Place says in words where programs are looked for ("the image python:3.12-slim", "this machine"). Empty: the sandbox.
	Place string
	// Open starts one helper. A *sandboxcore.Error is passed on as it is. It is called once per run or file operation.
	Open func(ctx context.Context) (*runhelper.Conn, error)
	// Adjust changes a run before it is sent: a clean environment, other names of interpreters. May be nil.
	Adjust func(*runhelper.Request)
	// Files are the options of file operations (missing parents of a written file are made in any case). May be nil.
	Files *runhelper.FileOptions
}

func (t Target) place() string {
	if t.Place == "" {
		return "the sandbox"
	}
	return t.Place
}

func (t Target) open(ctx context.Context, attempted string) (*runhelper.Conn, error) {
	conn, err := t.Open(ctx)
	if err == nil {
		return conn, nil
	}
	if _, ok := errors.AsType[*sandboxcore.Error](err); ok {
		return nil, err
	}
	if cause := ctx.Err(); cause != nil {
		return nil, t.beforeStart(cause, attempted)
	}
	return nil, &sandboxcore.Error{
		Code: sandboxcore.CodeProvision, Attempted: attempted, Object: t.Object,
		Said: "The run helper could not be started. Nothing ran.", Next: "Check the sandbox and its backend.", Err: err,
	}
}

// beforeStart is the error for a context that ended before anything ran.
func (t Target) beforeStart(cause error, attempted string) error {
	e := &sandboxcore.Error{
		Code: sandboxcore.CodeUnknownOutcome, Attempted: attempted, Object: t.Object,
		Said: "It was cancelled before it started. Nothing ran.", Next: "Run the command again.", Err: cause,
	}
	if errors.Is(cause, context.DeadlineExceeded) {
		e.Code, e.Said = sandboxcore.CodeTimeout, "The time was over before it started. Nothing ran."
		e.Next = "Raise the timeout."
	}
	return e
}

// broken is the error for a stream that ended too early.
func (t Target) broken(s *runhelper.StreamError, attempted string) error {
	e := &sandboxcore.Error{Code: sandboxcore.CodeUnknownOutcome, Attempted: attempted, Object: t.Object, Err: cause{s}}
	switch {
	case s.NothingRan:
		e.Code = sandboxcore.CodeProvision
		e.Said = "The run helper did not answer. Nothing ran."
		e.Next = "Run it again; if it stays, replace the sandbox."
	case s.Ended:
		e.Said = "The connection to the sandbox broke, and every process of the run was ended because of it."
		e.Next = "Find out what it had done by then before it runs again: nothing is repeated by itself."
	default:
		e.Said = "The connection to the sandbox broke before the end of the run was told."
		e.Next = "Find out whether it did its work before it runs again: nothing is repeated by itself."
	}
	if notes := strings.TrimSpace(s.Notes); notes != "" {
		// The text comes out of the sandbox or its engine; quoting it keeps control characters off the terminal.
		e.Said += fmt.Sprintf(" What came instead: %q.", notes)
	}
	return e
}

// cause keeps a StreamError in the chain and shows only its cause: the rest of its text is said in other words, and its
// notes are shown once.
type cause struct{ *runhelper.StreamError }

func (c cause) Error() string {
	if c.Cause == nil {
		return runhelper.ErrStreamBroken.Error()
	}
	return c.Cause.Error()
}

func (c cause) Unwrap() error { return c.StreamError }
