package docker

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/moby/moby/client"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// maxShellCode is what fits into one environment variable (131,072 bytes, the kernel's limit for one string), with room.
const maxShellCode = 96 << 10

// textVariable carries code to the shell: unlike arguments it is neither in the engine's events nor readable for others.
const textVariable = "AGENTKERNEL_TEXT"

// dirVariable carries the working directory.
const dirVariable = "AGENTKERNEL_DIR"

// The first line of output says how it began: P and the process id, D for no directory, N for no program. The shell
// becomes the program, so that the id is also that of the session and process group that the engine made for it. The text
// goes through the positional parameters, because any variable may be one that the run was given.
const (
	shellStart = `if [ -n "$` + dirVariable + `" ]; then CDPATH= cd -- "$` + dirVariable + `" >/dev/null 2>&1 || { echo D; exit 125; }; fi; unset ` + dirVariable + `; ` +
		`command -v "$1" >/dev/null 2>&1 || { echo N; exit 127; }; echo "P$$"; `
	shellBecome = shellStart + `exec "$@"`
	shellScript = shellStart + `set -- "$` + textVariable + `"; unset ` + textVariable + `; eval "shift; $1"`
	pythonText  = `exec(compile(__import__("os").environb.pop(b"` + textVariable + `"),"<string>","exec"))`
	// shellKill ends the process group $1: TERM, after $2 seconds KILL. It tells whether something is alive.
	shellKill = `kill -TERM "-$1" 2>/dev/null; i=0; while kill -0 "-$1" 2>/dev/null && [ $i -lt "$2" ]; do sleep 1; i=$((i+1)); done; ` +
		`kill -KILL "-$1" 2>/dev/null; i=0; while kill -0 "-$1" 2>/dev/null && [ $i -lt 5 ]; do sleep 1; i=$((i+1)); done; ! kill -0 "-$1" 2>/dev/null`
)

// Exit statuses by which the engine says that an exec could not be started.
const (
	cannotStart = 126
	notFound    = 127
)

const noticeCut = "The output did not end with the program, and its end may not have been brought back."

// shell runs a request by the container's own sh, where no helper can be brought in.
func (a *attached) shell(ctx context.Context, req sandboxcore.RunRequest, stdout, stderr io.Writer) (sandboxcore.RunResult, error) {
	options, err := a.shellOptions(req)
	if err != nil {
		return sandboxcore.RunResult{}, err
	}
	const attempted = "the run could not be carried out"
	call, cancel := withDeadline(ctx, a.e.timings.call)
	defer cancel()
	created, err := a.e.cli.ExecCreate(call, a.id, options)
	if err != nil {
		return sandboxcore.RunResult{}, a.e.failure(call, err, sandboxcore.CodeProvision, attempted, objectID(a.id), "Check that the container still runs.")
	}
	at, err := a.e.cli.ExecAttach(call, created.ID, client.ExecAttachOptions{})
	if err != nil {
		return sandboxcore.RunResult{}, a.e.failure(call, err, sandboxcore.CodeProvision, attempted, objectID(a.id), "Check that the container has sh.")
	}
	started := time.Now()
	head := &firstLine{to: stdout}
	from := &arriving{r: at.Reader}
	copied := make(chan struct{})
	go func() {
		defer close(copied)
		from.err = copyStreams(head, orDiscard(stderr), from)
	}()
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		if _, err := at.Conn.Write(req.Stdin); err == nil || len(req.Stdin) == 0 {
			_ = at.CloseWrite()
		}
	}()
	defer func() { at.Close(); <-sent }()
	end := a.await(ctx, created.ID, head, from, copied, req)
	at.Close()
	if !end.drained {
		<-copied
	}
	res := sandboxcore.RunResult{ExitCode: end.exit, Duration: time.Since(started)}
	if end.cut {
		// How much is not known.
		res.Notice, res.StdoutLost, res.StderrLost = noticeCut, 1, 1
	}
	return res, a.shellError(req, end, head)
}

// copyStreams takes the streams of an exec apart until they end. Where they break off inside a frame that is an error, which
// the engine's own library (stdcopy) takes for the end.
func copyStreams(stdout, stderr io.Writer, r io.Reader) error {
	for {
		var h [demuxHeader]byte
		if _, err := io.ReadFull(r, h[:]); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		to := stdout
		switch h[0] {
		case demuxStdout:
		case demuxStderr:
			to = stderr
		case demuxSystem:
			said, _ := io.ReadAll(io.LimitReader(r, min(int64(binary.BigEndian.Uint32(h[4:])), 1024)))
			return fmt.Errorf("the engine said %s", sandboxcore.Quoted(string(said)))
		default:
			return fmt.Errorf("the engine sent no stream frame but %q", h)
		}
		if _, err := io.CopyN(to, r, int64(binary.BigEndian.Uint32(h[4:]))); err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return err
		}
	}
}

func orDiscard(w io.Writer) io.Writer {
	if w == nil {
		return io.Discard
	}
	return w
}

func (a *attached) shellOptions(req sandboxcore.RunRequest) (client.ExecCreateOptions, error) {
	o := client.ExecCreateOptions{User: a.user, AttachStdin: true, AttachStdout: true, AttachStderr: true}
	for k, v := range req.Env {
		if k == textVariable || k == dirVariable {
			return o, &sandboxcore.Error{
				Code: sandboxcore.CodeValue, Attempted: "the run was refused", Object: objectID(a.id), Attribute: []string{"env"},
				Said: "The container's root file system is read-only, so that a request reaches its shell in variables, of which " + k + " is one.", Next: "Use another name.",
			}
		}
		o.Env = append(o.Env, k+"="+v)
	}
	if req.WorkingDirectory != "" {
		dir := req.WorkingDirectory
		if !strings.HasPrefix(dir, "/") {
			dir = "./" + dir // "-" alone would be the directory before
		}
		o.Env = append(o.Env, dirVariable+"="+dir)
	}
	if req.Kind != sandboxcore.RunCommand {
		if len(req.Text) > maxShellCode || bytes.ContainsRune(req.Text, 0) {
			return o, &sandboxcore.Error{
				Code: sandboxcore.CodeValue, Attempted: "the run was refused", Object: objectID(a.id), Attribute: []string{"code"},
				Said: fmt.Sprintf("The container's root file system is read-only, so that code reaches it through its shell, which takes at most %d bytes without NUL; this has %d.", maxShellCode, len(req.Text)),
				Next: "Make the code smaller.",
			}
		}
		o.Env = append(o.Env, textVariable+"="+string(req.Text))
	}
	switch req.Kind {
	case sandboxcore.RunScript:
		o.Cmd = []string{"sh", "-c", shellScript, "sh", "sh"}
	case sandboxcore.RunCode:
		if req.Language != "python" {
			return o, &sandboxcore.Error{
				Code: sandboxcore.CodeLanguage, Attempted: "the run was refused", Object: objectID(a.id), Said: "The language is not offered.", Next: "Use python.", Attribute: []string{"language"},
			}
		}
		o.Cmd = []string{"sh", "-c", shellBecome, "sh", "python3", "-c", pythonText}
	default:
		o.Cmd = append([]string{"sh", "-c", shellBecome, "sh"}, req.Argv...)
	}
	return o, nil
}

// shellEnd is how a run by the shell ended.
type shellEnd struct {
	exit    int
	ended   bool // the engine told the exit status
	late    bool
	dead    bool  // the process group was seen to be gone
	drained bool  // the output has ended
	cut     bool  // the output was given up, and some may be missing
	broken  error // the output broke off
	err     error
}

// await waits for the program, its time, or ctx. The engine is asked, because a process that the program left behind may
// hold its output open for ever.
func (a *attached) await(ctx context.Context, exec string, head *firstLine, from *arriving, copied <-chan struct{}, req sandboxcore.RunRequest) shellEnd {
	var end shellEnd
	timer := time.NewTimer(req.Timeout)
	defer timer.Stop()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for waiting := true; waiting; {
		select {
		case <-copied:
			end.drained, end.broken = true, from.err
			end.exit, end.ended, end.err = a.exitOf(ctx, exec, true)
			waiting = false
		case <-tick.C:
			if exit, ended, err := a.exitOf(ctx, exec, false); ended || err != nil {
				end.exit, end.ended, end.err = exit, ended, err
				waiting = false
			}
		case <-timer.C:
			end.late, waiting = true, false
		case <-ctx.Done():
			end.err, waiting = ctx.Err(), false
		}
	}
	if !req.KeepBackground || end.late || !end.ended || ctx.Err() != nil {
		end.dead = a.killGroup(ctx, head, req.Grace)
	}
	if !end.drained {
		how := drain(ctx, copied, from, a.e.timings.drainStall, a.e.timings.drainMost)
		if end.drained = how == drainWhole; end.drained {
			end.broken = from.err
		}
		// A process that was meant to stay may hold the output open without a word.
		end.cut = how == drainEndless || how == drainStalled && !req.KeepBackground
	}
	return end
}

// drainEnd is how the wait for the rest of the output ended.
type drainEnd int

const (
	drainWhole   drainEnd = iota // the output ended
	drainStalled                 // nothing came any more
	drainEndless                 // something still came when the time for it was over
)

// drain waits for the rest of the output while it comes. Once ctx has ended, stall is all the time there is.
func drain(ctx context.Context, copied <-chan struct{}, from *arriving, stall, most time.Duration) drainEnd {
	start := time.Now()
	seen, last := from.n.Load(), start
	tick := time.NewTicker(max(stall/20, time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-copied:
			return drainWhole
		case now := <-tick.C:
			n := from.n.Load()
			if n != seen {
				seen, last = n, now
			}
			if now.Sub(last) >= stall {
				return drainStalled
			}
			if took := now.Sub(start); took >= most || ctx.Err() != nil && took >= stall {
				return drainEndless
			}
		}
	}
}

// arriving counts what is read.
type arriving struct {
	r io.Reader
	n atomic.Int64
	// err is why it broke off; nil when it just ended. Only for who has seen that nothing is read any more.
	err error
}

func (a *arriving) Read(p []byte) (int, error) {
	n, err := a.r.Read(p)
	a.n.Add(int64(n))
	return n, err
}

// exitOf asks the engine for the exit status. settle: the output has ended, so that the status is about to come.
func (a *attached) exitOf(ctx context.Context, exec string, settle bool) (exit int, ended bool, err error) {
	for range 50 {
		call, cancel := withDeadline(ctx, a.e.timings.call)
		r, err := a.e.cli.ExecInspect(call, exec, client.ExecInspectOptions{})
		cancel()
		if err != nil {
			return 0, false, err
		}
		if !r.Running || !settle {
			return r.ExitCode, !r.Running, nil
		}
		if !pause(ctx, 20*time.Millisecond) {
			return 0, false, ctx.Err()
		}
	}
	return 0, false, nil
}

// killGroup ends what is left of the process group, and reports whether it is gone.
func (a *attached) killGroup(ctx context.Context, head *firstLine, grace time.Duration) bool {
	pid := head.pid()
	if pid == "" {
		return false
	}
	dead := false
	_ = sandboxcore.WithCleanup(ctx, func(ctx context.Context) error {
		seconds := fmt.Sprint(int((grace + time.Second - 1) / time.Second))
		created, err := a.e.cli.ExecCreate(ctx, a.id, client.ExecCreateOptions{
			User: a.user, AttachStdout: true, Cmd: []string{"sh", "-c", shellKill, "sh", pid, seconds},
		})
		if err != nil {
			return err
		}
		at, err := a.e.cli.ExecAttach(ctx, created.ID, client.ExecAttachOptions{})
		if err != nil {
			return err
		}
		defer at.Close()
		stop := context.AfterFunc(ctx, at.Close)
		defer stop()
		_, _ = io.Copy(io.Discard, at.Reader)
		exit, ended, err := a.exitOf(ctx, created.ID, true)
		dead = err == nil && ended && exit == 0
		return err
	})
	return dead
}

func (a *attached) shellError(req sandboxcore.RunRequest, end shellEnd, head *firstLine) error {
	e := &sandboxcore.Error{Code: sandboxcore.CodeUnknownOutcome, Attempted: "the run could not be carried out", Object: objectID(a.id)}
	left := "It could not be confirmed that its processes have ended."
	if end.dead {
		left = "The processes of its process group were ended; one that left the group may have survived."
	}
	switch line := head.text(); {
	case end.late:
		e.Code, e.Attempted = sandboxcore.CodeTimeout, "the run was ended because its time was over"
		e.Said, e.Next, e.Attribute = fmt.Sprintf("It did not end within %s. %s", req.Timeout, left), "Raise the timeout of the run or of the profile's policy, or make the run shorter.", []string{"timeout"}
	case end.err != nil:
		e.Attempted, e.Said, e.Next, e.Err = "the run was given up", left, "Find out what it had done by then before it runs again.", end.err
	case end.broken != nil:
		e.Attempted, e.Err = "the output of the run broke off", end.broken
		e.Said, e.Next = "The connection to the engine ended in the middle of it. "+left, "Find out what the run did before it runs again."
		if end.ended && req.KeepBackground {
			// What the engine tells of its exit status is not to be relied on: it may be 126 for a stream that broke off.
			e.Said = "The connection to the engine ended in the middle of it. What it left in the background was not ended."
		}
	case !end.ended:
		e.Said, e.Next = "The engine did not tell how it ended.", "Find out what it did before it runs again."
	case line == "D":
		e.Code, e.Said, e.Next, e.Attribute = sandboxcore.CodeValue, "working_directory does not exist in the container. Nothing ran.", "Name one that exists.", []string{"working_directory"}
	case line == "N":
		e.Code, e.Said, e.Next = sandboxcore.CodeOperation, "The program or interpreter was not found in the container. Nothing ran.", "Use a container that has it."
	case !strings.HasPrefix(line, "P") && end.exit != cannotStart && end.exit != notFound:
		e.Said, e.Next = "Nothing came of its output, not even that it began. "+left, "Find out what it did before it runs again."
	case !strings.HasPrefix(line, "P"):
		e.Code, e.Said = sandboxcore.CodeProvision, "The container's shell could not be started. Nothing ran."
		e.Next = "The container's root file system is read-only: without sh nothing can run in it."
	default:
		return nil
	}
	return e
}

// firstLine keeps the first line of a stream to itself and passes on the rest.
type firstLine struct {
	to   io.Writer
	mu   sync.Mutex
	line []byte
	done bool
}

func (f *firstLine) Write(p []byte) (int, error) {
	n := len(p)
	f.mu.Lock()
	if !f.done {
		before, after, found := bytes.Cut(p, []byte("\n"))
		if f.line = append(f.line, before...); len(f.line) > 64 {
			f.line = f.line[:64]
		}
		if !found {
			f.mu.Unlock()
			return n, nil
		}
		f.done, p = true, after
	}
	f.mu.Unlock()
	if f.to == nil || len(p) == 0 {
		return n, nil
	}
	if _, err := f.to.Write(p); err != nil {
		return 0, err
	}
	return n, nil
}

func (f *firstLine) text() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.done {
		return ""
	}
	return string(f.line)
}

// pid is the process id, digits only. The container says it, and nobody vouches for it: the first process of a container,
// which is none of ours, and what kill takes for another word are no answer.
func (f *firstLine) pid() string {
	pid, ok := strings.CutPrefix(f.text(), "P")
	if n, err := strconv.ParseUint(pid, 10, 31); !ok || err != nil || n < 2 || strconv.FormatUint(n, 10) != pid {
		return ""
	}
	return pid
}
