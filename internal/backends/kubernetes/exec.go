package kubernetes

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	gorilla "github.com/gorilla/websocket"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/httpstream"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/transport/websocket"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// The channels of the protocol v5.channel.k8s.io: the first byte of every message.
const (
	protocolV5    = "v5.channel.k8s.io"
	channelStdin  = 0
	channelStdout = 1
	channelStderr = 2
	channelStatus = 3
	channelClose  = 255
)

const (
	messageBytes = 32 << 10
	statusBytes  = 64 << 10
	notesBytes   = 4 << 10
	// writeLimit is how long one message may take to be written.
	writeLimit = 2 * time.Minute
	// busyRetries is how often a server that asks to come back later is asked again.
	busyRetries = 10
)

// connection to one process in a pod.
type process struct {
	io.Reader // its stdout; ends with io.EOF when the status said that it ended
	io.Writer // its stdin
	// closeStdin ends its stdin, close the connection; then the helper ends what it runs.
	closeStdin, close func() error
	// status is how the server said that it ended, once Reader has ended; an error that is no exit status tells that
	// nothing is known.
	status func() error
	// notes is what it wrote to stderr.
	notes func() string
}

// errNoStatus is the end of a connection before the server said how the process ended.
var errNoStatus = errors.New("the connection ended before the end of the process was told")

// start starts a fixed command in the pod's container. The command is part of the address of the request and lands in
// logs: nothing that a user wrote may be in it.
func (e *endpoint) start(ctx context.Context, c *client, namespace, pod string, command ...string) (*process, error) {
	return e.startIn(ctx, c, namespace, pod, containerName, command...)
}

// startIn is start in a container that may not be ours.
func (e *endpoint) startIn(ctx context.Context, c *client, namespace, pod, container string, command ...string) (*process, error) {
	at := c.kube.CoreV1().RESTClient().Post().Resource("pods").Namespace(namespace).Name(pod).SubResource("exec").
		VersionedParams(&corev1.PodExecOptions{Container: container, Command: command, Stdin: true, Stdout: true, Stderr: true}, scheme.ParameterCodec).URL()
	for attempt := 0; ; attempt++ {
		p, err := e.startOnce(ctx, c, at)
		if err == nil {
			return p, nil
		}
		if attempt >= busyRetries || !tooManyRequests(err) {
			return nil, err
		}
		// The server said that it did nothing, and when to come back.
		wait := time.Second
		if s, ok := apierrors.SuggestsClientDelay(err); ok && s > 0 {
			wait = time.Duration(s) * time.Second
		}
		if !pause(ctx, wait) {
			return nil, err
		}
	}
}

// tooManyRequests recognises a server that turned the request away because it is busy. It does so before it looks at the
// request, in plain text.
func tooManyRequests(err error) bool {
	return apierrors.IsTooManyRequests(err) || strings.Contains(err.Error(), "(429 Too Many Requests)") ||
		strings.Contains(err.Error(), "Too many requests, please try again later")
}

func (e *endpoint) startOnce(ctx context.Context, c *client, at *url.URL) (*process, error) {
	p, err := e.startWebSocket(ctx, c, at)
	if err == nil {
		return p, nil
	}
	// Only an answer that is no WebSocket is reason for the older protocol. A broken connection is not: the process may
	// have started. Nor is a refusal.
	var status apierrors.APIStatus
	cause := unwrapUpgrade(err)
	refused := errors.As(cause, &status) && status.Status().Code != http.StatusBadRequest
	if refused || tooManyRequests(err) || !httpstream.IsUpgradeFailure(err) {
		return nil, cause
	}
	return e.startSPDY(ctx, c, at)
}

// unwrapUpgrade gives the server's own answer.
func unwrapUpgrade(err error) error {
	var upgrade *httpstream.UpgradeFailureError
	if errors.As(err, &upgrade) && upgrade.Cause != nil {
		return upgrade.Cause
	}
	return err
}

func (e *endpoint) startWebSocket(ctx context.Context, c *client, at *url.URL) (*process, error) {
	ctx, cancel := withDeadline(ctx, e.timings.call)
	defer cancel()
	transport, holder, err := websocket.RoundTripperFor(c.config)
	if err != nil {
		return nil, err
	}
	// The upgrade to WebSocket is a GET.
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at.String(), http.NoBody)
	if err != nil {
		return nil, err
	}
	conn, err := websocket.Negotiate(transport, holder, req, protocolV5)
	if err != nil {
		return nil, err
	}
	w := &webSocket{conn: conn, times: e.timings, done: make(chan struct{}), pinged: make(chan struct{})}
	// A pong is a sign of life as good as a message: a run may be silent for as long as it likes.
	conn.SetPongHandler(func(string) error { return conn.SetReadDeadline(time.Now().Add(e.timings.patience)) })
	go w.ping()
	return &process{Reader: w, Writer: w, closeStdin: w.closeStdin, close: w.close, status: w.ended, notes: w.said}, nil
}

// webSocket is the client's side of protocol v5. It reads only when its reader does, so that a slow reader slows the
// process down instead of losing anything, and is not mistaken for a silent server.
type webSocket struct {
	conn   *gorilla.Conn
	writes sync.Mutex

	current io.Reader // rest of a message of stdout
	last    error     // of the connection

	mu     sync.Mutex
	status error
	told   bool
	stderr []byte

	once   sync.Once
	done   chan struct{}
	pinged chan struct{}
	times  timings
}

func (w *webSocket) ping() {
	defer close(w.pinged)
	t := time.NewTicker(w.times.ping)
	defer t.Stop()
	for {
		select {
		case <-w.done:
			return
		case <-t.C:
			if w.conn.WriteControl(gorilla.PingMessage, nil, time.Now().Add(w.times.ping)) != nil {
				return
			}
		}
	}
}

func (w *webSocket) Read(p []byte) (int, error) {
	for {
		if w.current != nil {
			// The time that the reader took between two reads is not the server's.
			if err := w.conn.SetReadDeadline(time.Now().Add(w.times.patience)); err != nil {
				return 0, err
			}
			n, err := w.current.Read(p)
			if err != nil {
				w.current = nil
				if !errors.Is(err, io.EOF) {
					w.last = err
				}
			}
			if n > 0 {
				return n, nil
			}
			continue
		}
		if w.last != nil {
			return 0, w.last
		}
		w.last = w.message()
	}
}

// message takes the next message.
func (w *webSocket) message() error {
	if err := w.conn.SetReadDeadline(time.Now().Add(w.times.patience)); err != nil {
		return err
	}
	kind, r, err := w.conn.NextReader()
	if err != nil {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.told {
			return io.EOF
		}
		if gorilla.IsCloseError(err, gorilla.CloseNormalClosure) {
			return errNoStatus
		}
		return err
	}
	if kind != gorilla.BinaryMessage {
		return errors.New("the server sent a message of an unknown kind")
	}
	var channel [1]byte
	if _, err := io.ReadFull(r, channel[:]); err != nil {
		if errors.Is(err, io.EOF) {
			return nil
		}
		return err
	}
	switch channel[0] {
	case channelStdout:
		w.current = r
	case channelStderr:
		return w.takeStderr(r)
	case channelStatus:
		text, err := io.ReadAll(io.LimitReader(r, statusBytes))
		if err != nil {
			return err
		}
		if len(text) > 0 {
			w.mu.Lock()
			w.status, w.told = statusError(text), true
			w.mu.Unlock()
		}
	}
	return nil
}

func (w *webSocket) takeStderr(r io.Reader) error {
	text, err := io.ReadAll(io.LimitReader(r, notesBytes))
	w.mu.Lock()
	w.stderr = append(w.stderr, text...)
	w.stderr = w.stderr[max(0, len(w.stderr)-notesBytes):]
	w.mu.Unlock()
	return err
}

// statusError reads the status of a process that ended: nil for success.
func statusError(text []byte) error {
	var s metav1.Status
	if err := json.Unmarshal(text, &s); err != nil {
		return errors.New("the server told the end of the process in a form that is not understood")
	}
	if s.Status == metav1.StatusSuccess {
		return nil
	}
	return &apierrors.StatusError{ErrStatus: s}
}

func (w *webSocket) Write(p []byte) (int, error) {
	written := 0
	for len(p) > 0 {
		n := min(len(p), messageBytes)
		if err := w.send(channelStdin, p[:n]); err != nil {
			return written, err
		}
		written += n
		p = p[n:]
	}
	return written, nil
}

func (w *webSocket) send(channel byte, p []byte) error {
	w.writes.Lock()
	defer w.writes.Unlock()
	if err := w.conn.SetWriteDeadline(time.Now().Add(writeLimit)); err != nil {
		return err
	}
	m, err := w.conn.NextWriter(gorilla.BinaryMessage)
	if err != nil {
		return err
	}
	if _, err := m.Write([]byte{channel}); err != nil {
		return err
	}
	if _, err := m.Write(p); err != nil {
		return err
	}
	return m.Close()
}

func (w *webSocket) closeStdin() error { return w.send(channelClose, []byte{channelStdin}) }

// close ends the connection and makes blocked calls return.
func (w *webSocket) close() error {
	var err error
	w.once.Do(func() {
		close(w.done)
		err = w.conn.Close()
		<-w.pinged
	})
	return err
}

func (w *webSocket) ended() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.told {
		return errNoStatus
	}
	return w.status
}

func (w *webSocket) said() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return string(w.stderr)
}

// startSPDY speaks the older protocol, for servers and proxies that know no WebSocket of version 5.
func (e *endpoint) startSPDY(ctx context.Context, c *client, at *url.URL) (*process, error) {
	executor, err := remotecommand.NewSPDYExecutor(c.config, http.MethodPost, at)
	if err != nil {
		return nil, err
	}
	inR, inW := io.Pipe()
	outR, outW := io.Pipe()
	notes := &tail{}
	first := &firstWrite{w: outW, seen: make(chan struct{})}
	running, cancel := context.WithCancel(context.WithoutCancel(ctx)) //nolint:forbidigo // the process is ended by its own close: its helper has to hear of a cancellation first
	done := make(chan struct{})
	var status error
	go func() {
		defer close(done)
		status = executor.StreamWithContext(running, remotecommand.StreamOptions{Stdin: inR, Stdout: first, Stderr: notes})
		end := io.EOF
		if running.Err() != nil {
			end = errNoStatus
		}
		_ = outW.CloseWithError(end)
		_ = inR.CloseWithError(errNoStatus)
	}()
	stop := func() error {
		cancel()
		_ = inW.CloseWithError(errNoStatus)
		_ = outR.CloseWithError(errNoStatus)
		<-done
		return nil
	}
	limit := time.NewTimer(e.timings.call)
	defer limit.Stop()
	select {
	case <-first.seen:
	case <-done:
		if _, ended := exitCode(status); ended != nil { // an exit status is the end of a process that had started
			_ = stop()
			return nil, status
		}
	case <-ctx.Done():
		_ = stop()
		return nil, ctx.Err()
	case <-limit.C:
		_ = stop()
		return nil, errNoAnswer
	}
	return &process{
		Reader: outR, Writer: inW, closeStdin: inW.Close, close: stop, notes: notes.String,
		status: func() error { <-done; return status },
	}, nil
}

// firstWrite tells that the first byte has come.
type firstWrite struct {
	w    io.Writer
	once sync.Once
	seen chan struct{}
}

func (f *firstWrite) Write(p []byte) (int, error) {
	f.once.Do(func() { close(f.seen) })
	return f.w.Write(p)
}

// tail keeps the end of what is written to it.
type tail struct {
	mu sync.Mutex
	b  []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	t.b = append(t.b, p...)
	t.b = t.b[max(0, len(t.b)-notesBytes):]
	t.mu.Unlock()
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.b)
}

// answerBytes bounds what a fixed command may say.
const answerBytes = 64

// command runs a fixed command that reads nothing to its end, and gives its exit status and what it said. A status 0 alone
// is no yes: the older protocol tells success by a stream that is empty, which a broken connection is, too.
func (e *endpoint) command(ctx context.Context, c *client, namespace, pod string, command ...string) (code int, said string, err error) {
	p, err := e.start(ctx, c, namespace, pod, command...)
	if err != nil {
		return 0, "", err
	}
	stop := context.AfterFunc(ctx, func() { _ = p.close() })
	defer stop()
	defer p.close() //nolint:errcheck // its end is known by then
	text, err := io.ReadAll(io.LimitReader(p, answerBytes))
	if err == nil {
		_, err = io.Copy(io.Discard, p)
	}
	if err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return 0, "", err
	}
	code, err = exitCode(p.status())
	return code, string(text), err
}

// exitCode takes the exit status out of a status; an error is something else.
func exitCode(err error) (int, error) {
	if err == nil {
		return 0, nil
	}
	var exit interface{ ExitStatus() int } // the form of the older protocol
	if errors.As(err, &exit) {
		return exit.ExitStatus(), nil
	}
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		if d := status.Status().Details; status.Status().Reason == "NonZeroExitCode" && d != nil {
			for _, cause := range d.Causes {
				if cause.Type == "ExitCode" {
					var code int
					if json.Unmarshal([]byte(cause.Message), &code) == nil && code > 0 && code < 256 {
						return code, nil
					}
				}
			}
		}
	}
	return 0, err
}

// silence is a reader of a process that ended before it said anything.
type silence struct{ err error }

func (s silence) Read([]byte) (int, error) { return 0, s.err }

// samePod waits for the first bytes of a helper, and then looks whether its pod is the one that is meant: an exec goes by
// name, and nothing may be said to the helper of another pod. No uid is used twice, so that a pod which was there before
// the process began, and is there when it runs, was there all the time.
func (e *endpoint) samePod(ctx context.Context, c *client, p *process, namespace, pod string, uid types.UID) (io.Reader, error) {
	call, cancel := withDeadline(ctx, e.timings.call)
	defer cancel()
	stop := context.AfterFunc(call, func() { _ = p.close() })
	first := bufio.NewReader(frames{p})
	_, err := first.Peek(1)
	stop()
	if err != nil {
		_ = p.close()
		return silence{err}, nil // whoever reads on tells what it means
	}
	now, err := c.kube.CoreV1().Pods(namespace).Get(call, pod, metav1.GetOptions{})
	switch {
	case err == nil && now.UID == uid:
		return first, nil
	case err == nil:
		err = gone("the run was refused", namespace+"/"+pod, "Another pod has taken its name. Nothing ran.")
	case apierrors.IsNotFound(err):
		err = gone("the run was refused", namespace+"/"+pod, "Its pod was removed meanwhile. Nothing ran.")
	default:
		err = e.failure(call, err, sandboxcore.CodeUnreachable, "it could not be seen whether the pod is the one that is meant", objectID(namespace+"/"+pod), "Check the API server. Nothing ran.")
	}
	_ = p.close()
	return nil, err
}

// notReached is the error of a process that could not be started.
func (e *endpoint) notReached(ctx context.Context, err error, nativeID string) error {
	return e.failure(ctx, err, sandboxcore.CodeProvision, "the run helper could not be started in the sandbox", objectID(nativeID),
		"Check the pod's events; replacing the sandbox makes a new pod.")
}
