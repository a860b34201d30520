package runhelper

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"
)

// Result is how a run ended. That the program failed, was killed or took too long is a result, not an error.
type Result struct {
	// ExitCode is the program's exit status; 128 + Signal when a signal ended it; -1 when it is not known
	// (SupervisorLost).
	ExitCode int
	// Signal is the number of the signal that ended the program, or 0.
	Signal int
	// TimedOut: Request.Timeout ended it. Killed: this client asked for the end.
	TimedOut, Killed bool
	// OOMKilled: the program was killed, or exited with 137, and the kernel's out-of-memory killer was at work
	// in the run's cgroup. OOMKills is how many processes it killed there during the run, the program's
	// children and neighbours in the same cgroup included.
	OOMKilled bool
	OOMKills  int
	// SupervisorLost: the helper was killed or told to stop by somebody else. See [ErrSupervisorLost].
	SupervisorLost bool
	// LeftoversKilled is the number of processes, beside the program itself, that had to be killed.
	LeftoversKilled int
	// Incomplete: something may have survived the killing (a process that hangs in the kernel, that changed
	// to another user, or no usable /proc).
	Incomplete bool
	// Background: processes were left running because of Request.KeepBackground.
	Background bool
	// Program is the name out of Request.Program that was started.
	Program string
	// Duration is measured by the helper, with a resolution of 1 ms, from fork to the end of the program.
	Duration time.Duration
}

const (
	endTimedOut = 1 << iota
	endKilled
	endControlLost
	endOOM
	endSupervisorLost
	endIncomplete
	endBackground
	endTerminated
)

// Run starts a program through the helper behind conn and waits for its end. Output goes to stdout and stderr
// as it comes (nil: thrown away); both are called from one goroutine, one at a time.
//
// Errors: [*RequestError] and [*StartError] (nothing ran), [*StreamError] (unknown outcome, or nothing ran),
// [*CancelledError] (ctx was done, or a writer or Stdin failed: the run is killed, with Request.Grace, before
// Run returns), [ErrSupervisorLost] together with a Result. Without an error the Result is complete.
//
// Run always ends: after Timeout, Grace and a margin of 15 s if Timeout is set, and Grace and the margin after
// ctx is done, even when the helper or a writer hangs. conn is closed then.
func Run(ctx context.Context, conn *Conn, req *Request, stdout, stderr io.Writer) (Result, error) {
	setup, err := req.encode()
	if err != nil {
		_ = conn.close() // never used
		return Result{}, err
	}
	r := &running{
		session: newSession(conn),
		req:     req,
		queue:   [][]byte{setup},
		limit:   time.NewTimer(helloTimeout),
		waiting: "its hello",
	}
	defer r.limit.Stop()
	defer r.shut()
	r.startReader(stdout, stderr)
	return r.loop(ctx)
}

// running is the state of one Run. Only its loop touches it.
type running struct {
	*session
	req      *Request
	queue    [][]byte // frames to send, in order
	limit    *time.Timer
	deadline time.Time // when limit fires; zero: never
	waiting  string    // what limit is about
	hello    bool
	released bool // 'G' was queued
	started  bool
	result   Result
	cause    error // why we ask for the end
	ctlBroke error
}

func (r *running) expect(d time.Duration, what string) {
	r.waiting = what
	r.deadline = time.Now().Add(d)
	r.limit.Reset(d)
}

func (r *running) loop(ctx context.Context) (Result, error) {
	done := ctx.Done()
	r.expect(helloTimeout, r.waiting)
	for {
		var send chan<- []byte
		var first []byte
		if len(r.queue) > 0 && r.ctlBroke == nil {
			send, first = r.ctl, r.queue[0]
		}
		select {
		case <-done:
			done = nil
			if end, err := r.cancel(ctx.Err()); end {
				return r.result, err
			}
		case err := <-r.stdin.err:
			if end, err := r.cancel(fmt.Errorf("reading stdin: %w", err)); end {
				return r.result, err
			}
		case send <- first:
			r.queue = r.queue[1:]
		case err := <-r.ctlErr:
			// Usual when the run ends while stdin is still being sent. The other direction says how it ended.
			r.ctlBroke = err
			if r.deadline.IsZero() || time.Until(r.deadline) > brokenWait {
				r.expect(brokenWait, "a last word after its control stream broke ("+err.Error()+")")
			}
		case <-r.limit.C:
			return r.result, r.broken(fmt.Errorf("no answer from the run helper: waited for %s", r.waiting))
		case e := <-r.events:
			if e.outErr != nil {
				if end, err := r.cancel(fmt.Errorf("writing output: %w", e.outErr)); end {
					return r.result, err
				}
				continue
			}
			if e.err != nil {
				return r.result, r.streamEnd(e)
			}
			if end, err := r.frame(e); end {
				return r.result, err
			}
		}
	}
}

// cancel asks the helper to end the run. true: there is nothing to wait for.
func (r *running) cancel(cause error) (bool, error) {
	if r.cause != nil {
		return false, nil //nolint:nilerr // asked already; that one is reported
	}
	r.cause = cause
	if !r.released {
		return true, &CancelledError{Confirmed: true, Cause: cause}
	}
	r.queue = append(r.queue, appendFrame(nil, 'K'))
	r.expect(r.req.Grace+margin, "the end of the run after it was cancelled")
	return false, nil
}

// broken makes the error for a stream that ended without an end of the run.
func (r *running) broken(cause error) error {
	if r.cause != nil {
		return &CancelledError{Cause: errors.Join(r.cause, &StreamError{Cause: cause})}
	}
	return &StreamError{NothingRan: !r.released, Cause: cause}
}

func (r *running) streamEnd(e event) error {
	cause := e.err
	if errors.Is(cause, io.EOF) {
		cause = io.ErrUnexpectedEOF
	}
	err := r.broken(cause)
	var se *StreamError
	if errors.As(err, &se) && !r.hello {
		se.Notes = string(e.payload)
		if r.conn.notes != nil {
			// The process has to be gone for its last words to be complete.
			r.shut()
			se.Notes += r.conn.notes()
		}
	}
	return err
}

func (r *running) frame(e event) (end bool, err error) {
	bad := func(reason string) (bool, error) {
		return true, r.broken(&ProtocolError{Reason: reason})
	}
	n := func(i int) uint32 { return binary.LittleEndian.Uint32(e.payload[i:]) }
	switch e.typ {
	case 'H':
		if r.hello {
			return bad("second hello")
		}
		if err := checkHello(e.payload); err != nil {
			return true, r.broken(err)
		}
		r.hello, r.released = true, true
		r.queue = append(r.queue, appendFrame(nil, 'G'))
		r.expect(startTimeout, "the start of the program")
	case 'N':
		// The helper may refuse while the setup is still being sent, hence also before 'G' got there.
		if !r.hello || r.started {
			return bad("unexpected refusal")
		}
		return true, r.refused(e.payload)
	case 'S':
		if !r.hello || r.started {
			return bad("unexpected start")
		}
		index := n(4)
		if uint64(index) >= uint64(len(r.req.Program)) {
			return bad("unknown program name")
		}
		r.started = true
		r.result.Program = r.req.Program[index]
		if r.req.Stdin != nil {
			r.startStdin(r.req.Stdin)
		}
		switch {
		case r.cause != nil: // the limit of the cancellation stays
		case r.req.Timeout > 0:
			r.expect(r.req.Timeout+r.req.Grace+margin, "the end of the run, which has exceeded its timeout")
		default:
			r.limit.Stop()
			r.deadline = time.Time{}
		}
	case 'C':
		if !r.started || !r.stdin.grant(n(0)) {
			return bad("unexpected credit")
		}
	case 'X':
		if !r.hello || (!r.started && n(8)&endSupervisorLost == 0) {
			return bad("unexpected end")
		}
		return true, r.ended(e.payload)
	default:
		return bad(fmt.Sprintf("frame %q during a run", e.typ))
	}
	return false, nil //nolint:nilerr // r.cause is not an error of this frame
}

func (r *running) refused(payload []byte) error {
	err := &StartError{Errno: Errno(binary.LittleEndian.Uint32(payload)), Stage: printable(payload[8:])}
	if err.Stage == "exec" || err.Stage == "interpreter" {
		i := binary.LittleEndian.Uint32(payload[4:])
		if uint64(i) >= uint64(len(r.req.Program)) {
			return r.broken(&ProtocolError{Reason: "unknown program name"})
		}
		err.Program = r.req.Program[i]
	}
	if r.cause != nil {
		return &CancelledError{Confirmed: true, Cause: r.cause}
	}
	return err
}

func (r *running) ended(p []byte) error {
	n := func(i int) uint32 { return binary.LittleEndian.Uint32(p[i:]) }
	code, signal, flags := n(0), n(4), n(8)
	ms := binary.LittleEndian.Uint64(p[20:])
	if code > 255 || signal > 64 || ms > uint64(1<<62)/uint64(time.Millisecond) {
		return r.broken(&ProtocolError{Reason: "impossible exit status"})
	}
	res := &r.result
	res.ExitCode, res.Signal = int(code), int(signal)
	if signal != 0 {
		res.ExitCode = 128 + int(signal)
	}
	res.TimedOut = flags&endTimedOut != 0
	res.Killed = flags&endKilled != 0
	res.OOMKilled = flags&endOOM != 0
	res.OOMKills = int(min(n(16), 1<<30))
	res.LeftoversKilled = int(min(n(12), 1<<30))
	res.Incomplete = flags&endIncomplete != 0
	res.Background = flags&endBackground != 0
	res.SupervisorLost = flags&(endSupervisorLost|endTerminated) != 0
	res.Duration = time.Duration(ms) * time.Millisecond
	if flags&endSupervisorLost != 0 {
		res.ExitCode, res.Signal = -1, 0
	}
	if res.Background && r.conn.detach != nil {
		r.conn.detach()
	}
	switch {
	case r.cause != nil:
		return &CancelledError{Confirmed: !res.Incomplete, Ended: true, Result: *res, Cause: r.cause}
	case res.SupervisorLost:
		return ErrSupervisorLost
	case flags&endControlLost != 0:
		return &StreamError{Ended: true, Cause: r.ctlBroke}
	}
	return nil
}
