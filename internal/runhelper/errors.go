package runhelper

import (
	"errors"
	"fmt"
)

// ErrStreamBroken is what errors.Is finds in a [*StreamError]: the stream of frames ended, or was not what the
// helper sends, before the end of the run was told. The outcome is unknown unless the StreamError says more.
var ErrStreamBroken = errors.New("the connection to the run helper broke")

// ErrSupervisorLost is returned together with a [Result] when the helper was killed or stopped by something
// other than the client, most likely by the code that it ran. The run's processes are dead; what the main
// process had reached is not known.
var ErrSupervisorLost = errors.New("the run helper was killed while the code ran")

// StreamError says that no end of the run (or of the file operation) was received.
type StreamError struct {
	// NothingRan is true when the request was never released to the helper (the helper did not even say
	// hello): trying again is safe.
	NothingRan bool
	// Ended is true when the helper still told that the run ended, because its control stream broke: nothing
	// runs any more, but the client did not ask for that end.
	Ended bool
	// Cause is the underlying error: io.ErrUnexpectedEOF, a [*ProtocolError], an error of the connection.
	Cause error
	// Notes is what the starting process or the container engine wrote instead of frames, if anything. It
	// comes from the sandbox: print it cleaned. At most 4 KiB.
	Notes string
}

func (e *StreamError) Error() string {
	var s string
	switch {
	case e.NothingRan:
		s = "the run helper did not start"
	case e.Ended:
		s = ErrStreamBroken.Error() + " and it ended the run"
	default:
		s = ErrStreamBroken.Error() + " before it told the end of the run: the outcome is unknown"
	}
	if e.Cause != nil {
		s += ": " + e.Cause.Error()
	}
	if e.Notes != "" {
		s += fmt.Sprintf(" (%q)", e.Notes)
	}
	return s
}

// Unwrap returns [ErrStreamBroken] and the cause.
func (e *StreamError) Unwrap() []error { return []error{ErrStreamBroken, e.Cause} }

// ProtocolError says that bytes arrived which the helper does not send. A sandbox can cause it.
type ProtocolError struct {
	Reason string
}

func (e *ProtocolError) Error() string { return "run helper protocol: " + e.Reason }

// StartError says that the program was not started. Nothing ran.
type StartError struct {
	Errno Errno
	// Stage is "exec" (the program itself), "interpreter" (it exists, the interpreter or loader that it names
	// does not), "chdir", "fork", "memfd", "pipe", "subreaper" (the kernel cannot hand orphans
	// to the helper, so it could not find them), "arguments", "setup" or "protocol".
	Stage string
	// Program is the name that failed, for "exec" and "interpreter".
	Program string
}

func (e *StartError) Error() string {
	switch e.Stage {
	case "exec":
		return fmt.Sprintf("cannot start %q: %v", e.Program, e.Errno)
	case "interpreter":
		return fmt.Sprintf("cannot start %q: its interpreter or loader: %v", e.Program, e.Errno)
	}
	return fmt.Sprintf("cannot start the program: %s: %v", e.Stage, e.Errno)
}

// Unwrap returns the [Errno], so that errors.Is(err, fs.ErrNotExist) and the like work.
func (e *StartError) Unwrap() error { return e.Errno }

// CancelledError says that the client ended the run: the context was done, or a writer or the stdin reader
// failed.
type CancelledError struct {
	// Confirmed is true when nothing of the run is alive: the helper told its end, or it was never released.
	Confirmed bool
	// Result is what the helper told, when it did (Ended). The run may have ended by itself just before.
	Result Result
	// Ended says whether Result holds anything.
	Ended bool
	// Cause is ctx.Err(), or the error of the writer or reader.
	Cause error
}

func (e *CancelledError) Error() string {
	if e.Confirmed {
		return fmt.Sprintf("the run was cancelled and has ended: %v", e.Cause)
	}
	return fmt.Sprintf("the run was cancelled, but its end was not confirmed: %v", e.Cause)
}

// Unwrap returns the cause.
func (e *CancelledError) Unwrap() error { return e.Cause }

// RequestError says that a request cannot be sent as it is. Nothing was started.
type RequestError struct {
	Field  string // name of the field of [Request], or "path"
	Reason string
}

func (e *RequestError) Error() string {
	return fmt.Sprintf("run request: %s: %s", e.Field, e.Reason)
}

// FileError is the failure of a file operation inside the sandbox.
type FileError struct {
	Op    string // "upload", "download", "stat", "remove", "mkdir"
	Path  string
	Errno Errno
	Text  string // what the helper was doing
}

func (e *FileError) Error() string {
	if e.Text != "" {
		return fmt.Sprintf("%s %s: %s: %v", e.Op, e.Path, e.Text, e.Errno)
	}
	return fmt.Sprintf("%s %s: %v", e.Op, e.Path, e.Errno)
}

// Unwrap returns the [Errno], so that errors.Is(err, fs.ErrNotExist) and the like work.
func (e *FileError) Unwrap() error { return e.Errno }
