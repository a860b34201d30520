package e2b

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"
)

// session is what the data plane of one sandbox needs.
type session struct {
	token, traffic  string
	domain, envdURL string
	version         string
}

func sessionOf(a *sandboxAnswer) session {
	return session{
		token: text(a.EnvdAccessToken), traffic: text(a.TrafficAccessToken), domain: text(a.Domain), envdURL: text(a.EnvdURL), version: a.EnvdVersion,
	}
}

// atLeast compares envd's version. A version that is not understood is taken as old.
func (s session) atLeast(want string) bool {
	return compareVersions(s.version, want) >= 0
}

func compareVersions(a, b string) int {
	part := func(v string, i int) int {
		fields := strings.SplitN(strings.TrimPrefix(v, "v"), ".", 3)
		if i >= len(fields) {
			return 0
		}
		digits := fields[i]
		if end := strings.IndexFunc(digits, func(r rune) bool { return r < '0' || r > '9' }); end >= 0 {
			digits = digits[:end]
		}
		n, err := strconv.Atoi(digits)
		if err != nil {
			return -1
		}
		return n
	}
	for i := range 3 {
		if d := part(a, i) - part(b, i); d != 0 {
			return d
		}
	}
	return 0
}

// Messages of envd's services process.Process and filesystem.Filesystem in the JSON form of Protocol Buffers: names in
// camel case, bytes in base64 (which encoding/json does for []byte), 64-bit numbers as text, and fields with their
// default value left out, so that exit status 0 is an end without exitCode.

type processConfig struct {
	Cmd  string            `json:"cmd"`
	Args []string          `json:"args,omitempty"`
	Envs map[string]string `json:"envs,omitempty"`
	Cwd  string            `json:"cwd,omitempty"`
}

type startRequest struct {
	Process processConfig `json:"process"`
	Tag     string        `json:"tag,omitempty"`
	// Stdin defaults to true in envd, and a program that reads would then wait for ever: always sent (envd 0.3.0).
	Stdin *bool `json:"stdin"`
}

type connectRequest struct {
	Process processSelector `json:"process"`
}

type startResponse struct {
	Event processEvent `json:"event"`
}

type processEvent struct {
	Start     *startEvent `json:"start"`
	Data      *dataEvent  `json:"data"`
	End       *endEvent   `json:"end"`
	KeepAlive *struct{}   `json:"keepalive"`
}

type startEvent struct {
	PID uint32 `json:"pid"`
}

type dataEvent struct {
	Stdout []byte `json:"stdout"`
	Stderr []byte `json:"stderr"`
	PTY    []byte `json:"pty"`
}

// endEvent: a process that a signal ended has exitCode -1, no exited, and "signal: killed" as status.
type endEvent struct {
	ExitCode int    `json:"exitCode"`
	Exited   bool   `json:"exited"`
	Status   string `json:"status"`
	Error    string `json:"error"`
}

type processSelector struct {
	PID uint32 `json:"pid,omitempty"`
	Tag string `json:"tag,omitempty"`
}

type sendInputRequest struct {
	Process processSelector `json:"process"`
	Input   processInput    `json:"input"`
}

type processInput struct {
	Stdin []byte `json:"stdin"`
}

type closeStdinRequest struct {
	Process processSelector `json:"process"`
}

type statRequest struct {
	Path string `json:"path"`
}

type statResponse struct {
	Entry entryInfo `json:"entry"`
}

type entryInfo struct {
	Name string      `json:"name"`
	Type string      `json:"type"`
	Path string      `json:"path"`
	Size json.Number `json:"size"`
	Mode uint32      `json:"mode"`
	// Target of a symbolic link.
	Target string `json:"symlinkTarget"`
}

type empty struct{}

const (
	fileTypeFile    = "FILE_TYPE_FILE"
	fileTypeSymlink = "FILE_TYPE_SYMLINK"
)

// codec is Connect's JSON codec for plain structs. It has the name of the codec that it replaces.
type codec struct{}

func (codec) Name() string { return "json" }

func (codec) Marshal(v any) ([]byte, error) { return json.Marshal(v) }

func (codec) Unmarshal(text []byte, v any) error {
	if len(text) == 0 {
		return nil
	}
	return json.Unmarshal(text, v)
}

// maxMessageBytes bounds one message of envd: output comes in pieces of 32 KiB.
const maxMessageBytes = 4 << 20

// statusTransport turns every answer that is no success into a statusError before Connect sees it: Connect keeps only its
// own error form, and here the proxy's "port" and "sandboxId" decide what an answer means.
type statusTransport struct{ next http.RoundTripper }

func (t statusTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	secrets := []string{r.Header.Get("X-Access-Token"), r.Header.Get("E2B-Traffic-Access-Token")}
	res, err := t.next.RoundTrip(r)
	if err != nil || res.StatusCode < 300 {
		return res, discreet(err, secrets...)
	}
	return nil, readStatusError(res, secrets...)
}

// daemon speaks to the envd of one sandbox.
type daemon struct {
	e     *endpoint
	id    string
	route route
	sess  session
	user  string
}

func (s *sandbox) daemon(user string) (*daemon, error) { return s.daemonAt(portEnvd, user) }

// daemonAt is daemon for another port of the sandbox.
func (s *sandbox) daemonAt(port int, user string) (*daemon, error) {
	r, err := s.e.place.routeTo(s.info.NativeID, s.session.domain, s.session.envdURL, port)
	if err != nil {
		return nil, err
	}
	return &daemon{e: s.e, id: s.info.NativeID, route: r, sess: s.session, user: user}, nil
}

// discreet takes the sandbox's tokens out of an error that envd itself wrote into a stream.
func (d *daemon) discreet(err error) error {
	rpc, ok := errors.AsType[*connect.Error](err)
	if !ok || !connect.IsWireError(err) || d.discreetText(rpc.Message()) == rpc.Message() {
		return err
	}
	return connect.NewWireError(rpc.Code(), errors.New(d.discreetText(rpc.Message())))
}

func (d *daemon) discreetText(text string) string {
	return discreetText(text, d.sess.token, d.sess.traffic)
}

// dress puts on a request what the proxy and envd ask for. The user is the name of a Basic credential without password.
func (d *daemon) dress(h http.Header) {
	h.Set("User-Agent", userAgent)
	if d.sess.token != "" {
		h.Set("X-Access-Token", d.sess.token)
	}
	if d.sess.traffic != "" {
		h.Set("E2B-Traffic-Access-Token", d.sess.traffic)
	}
	if d.route.sandbox != "" {
		h.Set("E2b-Sandbox-Id", d.route.sandbox)
		h.Set("E2b-Sandbox-Port", d.route.port)
	}
	if d.user != "" {
		r := http.Request{Header: h}
		r.SetBasicAuth(d.user, "")
	}
}

func (d *daemon) url(path string) string {
	return strings.TrimRight(d.route.base.String(), "/") + path
}

func rpc[Req, Res any](d *daemon, procedure string) *connect.Client[Req, Res] {
	return connect.NewClient[Req, Res](d.e.data, d.url(procedure), connect.WithCodec(codec{}), connect.WithReadMaxBytes(maxMessageBytes))
}

func unary[Req, Res any](ctx context.Context, d *daemon, procedure string, msg *Req) (*Res, error) {
	req := connect.NewRequest(msg)
	d.dress(req.Header())
	res, err := rpc[Req, Res](d, procedure).CallUnary(ctx, req)
	if err != nil {
		return nil, d.discreet(err)
	}
	return res.Msg, nil
}

// start starts a process. ctx's deadline travels along, and envd ends the process at it.
func (d *daemon) start(ctx context.Context, msg *startRequest) (*connect.ServerStreamForClient[startResponse], error) {
	req := connect.NewRequest(msg)
	d.dress(req.Header())
	req.Header().Set("Keepalive-Ping-Interval", strconv.Itoa(max(1, int(d.e.times.keepAlive/time.Second))))
	return rpc[startRequest, startResponse](d, "/process.Process/Start").CallServerStream(ctx, req)
}

// follow gives the output and the end of a process that runs already, or ended less than half a minute ago.
func (d *daemon) follow(ctx context.Context, which processSelector) (*connect.ServerStreamForClient[startResponse], error) {
	req := connect.NewRequest(&connectRequest{which})
	d.dress(req.Header())
	req.Header().Set("Keepalive-Ping-Interval", strconv.Itoa(max(1, int(d.e.times.keepAlive/time.Second))))
	return rpc[connectRequest, startResponse](d, "/process.Process/Connect").CallServerStream(ctx, req)
}

func (d *daemon) sendInput(ctx context.Context, to processSelector, data []byte) error {
	_, err := unary[sendInputRequest, empty](ctx, d, "/process.Process/SendInput", &sendInputRequest{to, processInput{data}})
	return err
}

func (d *daemon) closeStdin(ctx context.Context, to processSelector) error {
	_, err := unary[closeStdinRequest, empty](ctx, d, "/process.Process/CloseStdin", &closeStdinRequest{to})
	return err
}

func (d *daemon) stat(ctx context.Context, path string) (*entryInfo, error) {
	res, err := unary[statRequest, statResponse](ctx, d, "/filesystem.Filesystem/Stat", &statRequest{path})
	if err != nil {
		return nil, err
	}
	return &res.Entry, nil
}

// signalOf reads the number out of a status such as "signal: killed (core dumped)". 0: it was none.
func signalOf(status string) int {
	name, ok := strings.CutPrefix(status, "signal: ")
	if !ok {
		return 0
	}
	name, _, _ = strings.Cut(name, " (core dumped)")
	if n, known := signalNames[name]; known {
		return n
	}
	var n int
	if _, err := fmt.Sscanf(name, "signal %d", &n); err == nil && n > 0 && n < 128 {
		return n
	}
	return 0
}

// signalNames are Linux's signals as envd, a Go program, writes them.
var signalNames = map[string]int{
	"hangup": 1, "interrupt": 2, "quit": 3, "illegal instruction": 4, "trace/breakpoint trap": 5, "aborted": 6, "bus error": 7,
	"floating point exception": 8, "killed": 9, "user defined signal 1": 10, "segmentation fault": 11, "user defined signal 2": 12,
	"broken pipe": 13, "alarm clock": 14, "terminated": 15, "stack fault": 16, "child exited": 17, "continued": 18,
	"stopped (signal)": 19, "stopped": 20, "stopped (tty input)": 21, "stopped (tty output)": 22, "urgent I/O condition": 23,
	"CPU time limit exceeded": 24, "file size limit exceeded": 25, "virtual timer expired": 26, "profiling timer expired": 27,
	"window changed": 28, "I/O possible": 29, "power failure": 30, "bad system call": 31,
}
