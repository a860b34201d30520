//go:build linux

package e2bpeer

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"connectrpc.com/connect"
)

const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// Messages of process.Process in Protocol Buffers' JSON form: default values are left out.

type config struct {
	Cmd  string            `json:"cmd"`
	Args []string          `json:"args,omitempty"`
	Envs map[string]string `json:"envs,omitempty"`
	Cwd  *string           `json:"cwd,omitempty"`
}

type startMessage struct {
	Process config          `json:"process"`
	PTY     json.RawMessage `json:"pty,omitempty"`
	Tag     *string         `json:"tag,omitempty"`
	Stdin   *bool           `json:"stdin,omitempty"`
}

type selector struct {
	PID *int    `json:"pid,omitempty"`
	Tag *string `json:"tag,omitempty"`
}

type selectMessage struct {
	Process selector `json:"process"`
	Signal  string   `json:"signal,omitempty"`
	Input   struct {
		Stdin []byte `json:"stdin"`
	} `json:"input"`
}

type eventMessage struct {
	Event map[string]any `json:"event"`
}

type emptyMessage struct{}

type jsonCodec struct{}

func (jsonCodec) Name() string                  { return "json" }
func (jsonCodec) Marshal(v any) ([]byte, error) { return json.Marshal(v) }
func (jsonCodec) Unmarshal(b []byte, v any) error {
	if len(b) == 0 {
		return nil
	}
	return json.Unmarshal(b, v)
}

type processes struct {
	mu    sync.Mutex
	byPID map[int]*process
	over  bool
	work  sync.WaitGroup
}

func (ps *processes) wait() { ps.work.Wait() }

// process is one process that the daemon started.
type process struct {
	cmd    *exec.Cmd
	config config
	tag    string
	stdin  io.WriteCloser
	pid    int
	ended  chan struct{} // closed when end is set
	end    map[string]any

	mu   sync.Mutex
	subs []*subscriber
}

// subscriber is one stream that gets a process's output. Output waits for it, until it goes away.
type subscriber struct {
	events chan map[string]any
	gone   <-chan struct{}
}

func (p *process) publish(ev map[string]any) {
	p.mu.Lock()
	subs := slices.Clone(p.subs)
	p.mu.Unlock()
	for _, s := range subs {
		select {
		case s.events <- ev:
		case <-s.gone:
		}
	}
}

func (p *process) subscribe(gone <-chan struct{}) *subscriber {
	s := &subscriber{events: make(chan map[string]any), gone: gone}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.subs = append(p.subs, s)
	return s
}

func (p *process) unsubscribe(s *subscriber) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.subs = slices.DeleteFunc(p.subs, func(o *subscriber) bool { return o == s })
}

// rpc serves the Connect services of the daemon.
func (b *box) rpc() http.Handler {
	m := http.NewServeMux()
	codec := connect.WithHandlerOptions(connect.WithCodec(jsonCodec{}))
	m.Handle("/process.Process/Start", connect.NewServerStreamHandler("/process.Process/Start", b.start, codec))
	m.Handle("/process.Process/Connect", connect.NewServerStreamHandler("/process.Process/Connect", b.connect, codec))
	m.Handle("/process.Process/List", connect.NewUnaryHandler("/process.Process/List", b.listProcesses, codec))
	m.Handle("/process.Process/SendInput", connect.NewUnaryHandler("/process.Process/SendInput", b.sendInput, codec))
	m.Handle("/process.Process/CloseStdin", connect.NewUnaryHandler("/process.Process/CloseStdin", b.closeStdin, codec))
	m.Handle("/process.Process/SendSignal", connect.NewUnaryHandler("/process.Process/SendSignal", b.sendSignal, codec))
	b.filesystem(m, codec)
	return m
}

// basicUser is the name of a Basic credential with an empty password; absent: the daemon's default.
func basicUser(h http.Header) string {
	encoded, ok := strings.CutPrefix(h.Get("Authorization"), "Basic ")
	if !ok {
		return ""
	}
	text, err := base64.StdEncoding.DecodeString(encoded)
	if err != nil {
		return ""
	}
	name, _, _ := strings.Cut(string(text), ":")
	return name
}

func (b *box) start(ctx context.Context, req *connect.Request[startMessage], stream *connect.ServerStream[eventMessage]) error {
	who, err := b.user(basicUser(req.Header()))
	if err != nil {
		return connect.NewError(connect.CodeUnauthenticated, fmt.Errorf("invalid username: '%s'", basicUser(req.Header())))
	}
	gone := make(chan struct{})
	defer close(gone)
	p, sub, err := b.spawn(who, req.Msg, gone)
	if err != nil {
		return err
	}
	// The deadline kills the process that was started, and nothing else of it; a client that goes away kills nothing.
	if deadline, ok := ctx.Deadline(); ok {
		timer := time.AfterFunc(time.Until(deadline), func() { p.signal(syscall.SIGKILL) })
		go func() {
			<-p.ended
			timer.Stop()
		}()
	}
	return b.follow(ctx, p, sub, req.Header(), stream)
}

func (p *process) signal(sig syscall.Signal) {
	select {
	case <-p.ended:
	default:
		_ = p.cmd.Process.Signal(sig)
	}
}

// spawn starts a process as envd does: through a shell that becomes the program, so that a program that does not exist is
// a shell's exit status 127 and no error of the call. Whoever starts it is there before its first output.
func (b *box) spawn(who user, msg *startMessage, gone <-chan struct{}) (*process, *subscriber, error) {
	dir := who.home
	if msg.Process.Cwd != nil && *msg.Process.Cwd != "" {
		dir = b.resolve(*msg.Process.Cwd, who)
	}
	p := &process{config: msg.Process, ended: make(chan struct{})}
	if msg.Tag != nil {
		p.tag = *msg.Tag
	}
	p.cmd = exec.CommandContext(b.life, "/bin/sh", append([]string{"-c", `exec "$@"`, "sh", msg.Process.Cmd}, msg.Process.Args...)...)
	p.cmd.Dir = dir
	env := map[string]string{"PATH": defaultPath, "HOME": who.home, "USER": who.name, "LOGNAME": who.name, "E2B_SANDBOX": "true", "E2B_SANDBOX_ID": b.id}
	maps.Copy(env, b.envs)
	maps.Copy(env, msg.Process.Envs)
	for _, k := range slices.Sorted(maps.Keys(env)) {
		p.cmd.Env = append(p.cmd.Env, k+"="+env[k])
	}
	p.cmd.SysProcAttr = &syscall.SysProcAttr{}
	if b.p.root {
		p.cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(who.uid), Gid: uint32(who.uid)}
	}
	var err error
	// Without a word about it a program has an input that stays open.
	if msg.Stdin == nil || *msg.Stdin {
		if p.stdin, err = p.cmd.StdinPipe(); err != nil {
			return nil, nil, err
		}
	}
	// Pipes of our own: Wait of os/exec would close its own before everything is read.
	stdout, stdoutEnd, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	stderr, stderrEnd, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	p.cmd.Stdout, p.cmd.Stderr = stdoutEnd, stderrEnd
	b.procs.mu.Lock()
	defer b.procs.mu.Unlock()
	err = errors.New("the sandbox is over")
	if !b.procs.over {
		err = b.inside(func() error {
			if info, serr := os.Stat(dir); serr != nil || !info.IsDir() {
				return connect.NewError(connect.CodeInvalidArgument, fmt.Errorf("cwd '%s' does not exist", dir))
			}
			return p.cmd.Start()
		})
	}
	_, _ = stdoutEnd.Close(), stderrEnd.Close()
	if err != nil {
		_, _ = stdout.Close(), stderr.Close()
		if _, ok := errors.AsType[*connect.Error](err); ok {
			return nil, nil, err
		}
		return nil, nil, connect.NewError(connect.CodeInternal, err)
	}
	p.pid = p.cmd.Process.Pid
	b.procs.byPID[p.pid] = p
	sub := p.subscribe(gone)
	b.procs.work.Go(func() { b.watchProcess(p, stdout, stderr) })
	return p, sub, nil
}

// watchProcess reads both outputs to their ends and only then waits: a child that keeps an output open keeps the end
// event back, as in envd.
func (b *box) watchProcess(p *process, stdout, stderr *os.File) {
	var readers sync.WaitGroup
	for name, f := range map[string]*os.File{"stdout": stdout, "stderr": stderr} {
		readers.Go(func() {
			defer f.Close()
			stop := context.AfterFunc(b.life, func() { _ = f.Close() })
			defer stop()
			buf := make([]byte, 32<<10)
			for {
				n, err := f.Read(buf)
				if n > 0 {
					p.publish(map[string]any{"data": map[string]any{name: base64.StdEncoding.EncodeToString(buf[:n])}})
				}
				if err != nil {
					return
				}
			}
		})
	}
	readers.Wait()
	err := p.cmd.Wait()
	p.end = endOf(p.cmd.ProcessState, err)
	close(p.ended)
	b.procs.work.Go(func() { // the end is kept for half a minute, for whoever connects late
		select {
		case <-time.After(30 * time.Second):
		case <-b.life.Done():
		}
		b.procs.mu.Lock()
		defer b.procs.mu.Unlock()
		delete(b.procs.byPID, p.pid)
	})
}

func endOf(state *os.ProcessState, err error) map[string]any {
	end := map[string]any{"status": state.String()}
	if state.Exited() {
		end["exited"] = true
		if c := state.ExitCode(); c != 0 {
			end["exitCode"] = c
		}
	} else {
		end["exitCode"] = -1
	}
	if err != nil {
		end["error"] = err.Error()
	}
	return map[string]any{"end": end}
}

// follow sends what a process does from now on.
func (b *box) follow(ctx context.Context, p *process, sub *subscriber, h http.Header, stream *connect.ServerStream[eventMessage]) error {
	defer p.unsubscribe(sub)
	alive := 90 * time.Second
	if s, err := strconv.Atoi(h.Get("Keepalive-Ping-Interval")); err == nil && s > 0 {
		alive = time.Duration(s) * time.Second
	}
	ping := time.NewTicker(alive)
	defer ping.Stop()
	send := func(ev map[string]any) error { return stream.Send(&eventMessage{ev}) }
	if err := send(map[string]any{"start": map[string]any{"pid": p.pid}}); err != nil {
		return err
	}
	run := b.runContext()
	for {
		select {
		case ev := <-sub.events:
			if err := send(ev); err != nil {
				return err
			}
		case <-p.ended:
			if run.Err() != nil { // the sandbox went, and with it the daemon: nobody tells how the process ended
				panic(http.ErrAbortHandler)
			}
			return send(p.end)
		case <-ping.C:
			if err := send(map[string]any{"keepalive": map[string]any{}}); err != nil {
				return err
			}
		case <-run.Done():
			panic(http.ErrAbortHandler)
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return connect.NewError(connect.CodeDeadlineExceeded, ctx.Err())
			}
			return ctx.Err()
		}
	}
}

func (b *box) selected(s selector) (*process, error) {
	b.procs.mu.Lock()
	defer b.procs.mu.Unlock()
	for pid, p := range b.procs.byPID {
		if (s.PID != nil && pid == *s.PID) || (s.Tag != nil && *s.Tag != "" && p.tag == *s.Tag) {
			return p, nil
		}
	}
	return nil, connect.NewError(connect.CodeNotFound, errors.New("process not found"))
}

func (b *box) connect(ctx context.Context, req *connect.Request[selectMessage], stream *connect.ServerStream[eventMessage]) error {
	p, err := b.selected(req.Msg.Process)
	if err != nil {
		return err
	}
	gone := make(chan struct{})
	defer close(gone)
	return b.follow(ctx, p, p.subscribe(gone), req.Header(), stream)
}

func (b *box) listProcesses(context.Context, *connect.Request[emptyMessage]) (*connect.Response[map[string]any], error) {
	b.procs.mu.Lock()
	defer b.procs.mu.Unlock()
	list := []map[string]any{}
	for pid, p := range b.procs.byPID {
		select {
		case <-p.ended:
			continue
		default:
		}
		entry := map[string]any{"pid": pid, "config": p.config}
		if p.tag != "" {
			entry["tag"] = p.tag
		}
		list = append(list, entry)
	}
	return connect.NewResponse(&map[string]any{"processes": list}), nil
}

func (b *box) sendInput(_ context.Context, req *connect.Request[selectMessage]) (*connect.Response[emptyMessage], error) {
	p, err := b.selected(req.Msg.Process)
	if err != nil {
		return nil, err
	}
	if p.stdin == nil {
		return nil, connect.NewError(connect.CodeFailedPrecondition, errors.New("stdin was not enabled or is closed"))
	}
	if _, err := p.stdin.Write(req.Msg.Input.Stdin); err != nil {
		return nil, connect.NewError(connect.CodeInternal, fmt.Errorf("error writing to stdin: %w", err))
	}
	return connect.NewResponse(&emptyMessage{}), nil
}

func (b *box) closeStdin(_ context.Context, req *connect.Request[selectMessage]) (*connect.Response[emptyMessage], error) {
	p, err := b.selected(req.Msg.Process)
	if err != nil {
		return nil, err
	}
	if p.stdin != nil {
		_ = p.stdin.Close()
	}
	return connect.NewResponse(&emptyMessage{}), nil
}

// sendSignal knows two signals and reaches the one process.
func (b *box) sendSignal(_ context.Context, req *connect.Request[selectMessage]) (*connect.Response[emptyMessage], error) {
	p, err := b.selected(req.Msg.Process)
	if err != nil {
		return nil, err
	}
	switch req.Msg.Signal {
	case "SIGNAL_SIGKILL":
		p.signal(syscall.SIGKILL)
	case "SIGNAL_SIGTERM":
		p.signal(syscall.SIGTERM)
	default:
		return nil, connect.NewError(connect.CodeInvalidArgument, errors.New("invalid signal"))
	}
	return connect.NewResponse(&emptyMessage{}), nil
}
