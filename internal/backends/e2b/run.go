package e2b

import (
	"context"
	"crypto/rand"
	"encoding/hex"
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
