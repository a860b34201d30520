package kubernetes

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// front stands in front of the real API server, with a name, a certificate and a token of its own, and interferes.
type front struct {
	*httptest.Server
	// cut ends the connection of an exec after so many bytes of the server's; before 0: before its answer.
	cut atomic.Int64
	// cutUp ends the connection of the first exec with cat in it after so many bytes of the client's; 0: never. Then noMore
	// turns every exec away.
	cutUp  atomic.Int64
	noMore atomic.Bool
	upCut  atomic.Bool
	// lose loses the answers to requests that make a pod.
	lose atomic.Bool
	// noWebSocket answers upgrades to WebSocket like a server or a proxy that does not know them.
	noWebSocket atomic.Bool
	execs       atomic.Int64 // exec requests that reached the server
	calls       atomic.Int64 // all others
	tooMany     atomic.Int64 // so many requests are turned away first
	conflicts   atomic.Int64 // so many patches meet a change of somebody else
	// admit changes what is sent to be made, as an admission webhook of the cluster would; nil: nothing.
	admit func(path string, body []byte) []byte
	// silent says which requests are never answered; nil: none.
	silent func(*http.Request) bool
	mu     sync.Mutex
	lines  []string // method and address of every request
}

const frontToken = "token-of-the-front-0123456789"

func (c *cluster) front(t testing.TB) *front {
	t.Helper()
	up, err := url.Parse(c.e.target.config.Host)
	if err != nil {
		t.Fatal(err)
	}
	transport, err := rest.TransportFor(c.e.target.config)
	if err != nil {
		t.Fatal(err)
	}
	tlsConfig, err := rest.TLSConfigFor(c.e.target.config)
	if err != nil {
		t.Fatal(err)
	}
	tlsConfig.NextProtos = []string{"http/1.1"}
	f := &front{}
	f.cut.Store(1 << 60)
	proxy := &httputil.ReverseProxy{
		Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(up); r.Out.Header.Del("Authorization") },
		Transport: transport, FlushInterval: -1,
	}
	f.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.mu.Lock()
		f.lines = append(f.lines, r.Method+" "+r.URL.String())
		f.mu.Unlock()
		switch {
		case r.Header.Get("Authorization") != "Bearer "+frontToken:
			http.Error(w, "who are you?", http.StatusUnauthorized)
		case f.tooMany.Add(-1) >= 0:
			w.Header().Set("Retry-After", "1")
			http.Error(w, "later", http.StatusTooManyRequests)
		case f.silent != nil && f.silent(r):
			<-r.Context().Done()
			panic(http.ErrAbortHandler)
		case r.Method == http.MethodPatch && f.conflicts.Add(-1) >= 0:
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusConflict)
			_ = json.NewEncoder(w).Encode(metav1.Status{
				TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Reason: metav1.StatusReasonConflict, Code: http.StatusConflict,
				Message: "Operation cannot be fulfilled: the object has been modified; please apply your changes to the latest version and try again",
			})
		case f.admit != nil && r.Method == http.MethodPost && !strings.HasSuffix(r.URL.Path, "/exec"):
			body, err := io.ReadAll(r.Body)
			if err != nil {
				return
			}
			body = f.admit(r.URL.Path, body)
			r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
			r.Header.Set("Content-Length", strconv.Itoa(len(body)))
			proxy.ServeHTTP(w, r)
		case f.lose.Load() && r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/pods"):
			proxy.ServeHTTP(httptest.NewRecorder(), r)
			panic(http.ErrAbortHandler)
		case !strings.HasSuffix(r.URL.Path, "/exec"):
			f.calls.Add(1)
			proxy.ServeHTTP(w, r)
		case f.noWebSocket.Load() && r.Header.Get("Upgrade") == "websocket":
			http.Error(w, "no", http.StatusBadRequest)
		case f.noMore.Load() && f.upCut.Load():
			http.Error(w, "no more", http.StatusInternalServerError)
		default:
			f.execs.Add(1)
			f.tunnel(w, r, up.Host, tlsConfig)
		}
	}))
	f.Config.ErrorLog = nil
	f.StartTLS()
	t.Cleanup(f.Close)
	return f
}

// tunnel passes an upgraded connection on, and cuts it.
func (f *front) tunnel(w http.ResponseWriter, r *http.Request, host string, config *tls.Config) {
	server, err := tls.Dial("tcp", host, config)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	defer server.Close()
	out := r.Clone(r.Context())
	out.Header.Del("Authorization")
	if err := out.Write(server); err != nil {
		return
	}
	client, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer client.Close()
	cut := f.cut.Load()
	if cut < 0 {
		_, _ = server.Read(make([]byte, 1)) // the server has started it
		return
	}
	answer := bufio.NewReader(server)
	var head bytes.Buffer
	for !bytes.HasSuffix(head.Bytes(), []byte("\r\n\r\n")) {
		b, err := answer.ReadByte()
		if err != nil {
			return
		}
		head.WriteByte(b)
	}
	if _, err := client.Write(head.Bytes()); err != nil {
		return
	}
	up := int64(1 << 60)
	if n := f.cutUp.Load(); n > 0 && strings.Contains(r.URL.RawQuery, "cat") && f.upCut.CompareAndSwap(false, true) {
		up = n
	}
	go func() {
		_, _ = io.Copy(server, io.LimitReader(buffered, up))
		_ = server.Close()
	}()
	if n, _ := io.Copy(client, io.LimitReader(answer, cut)); n < cut {
		return
	}
	if tcp, ok := client.(*tls.Conn).NetConn().(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // as a network breaks: no polite end
		_ = tcp.Close()
	}
}

// settings are the provider settings that lead to the front.
func (f *front) settings() sandboxcore.Settings {
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: f.Certificate().Raw})
	return sandboxcore.Settings{keyHost: f.URL, keyToken: frontToken, keyCA: string(ca)}
}

// through gives the sandbox as seen through the front.
func (f *front) through(t testing.TB, s *sandbox) *sandbox {
	t.Helper()
	out := *s
	out.e = dial(t, f.settings())
	return &out
}

// A connection that breaks before the answer, at byte 0, 1, and later: the outcome is unknown, nothing is started twice,
// and what had started is ended.
func TestBrokenConnectionIsUnknownAndNeverRepeated(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	s := c.create(t, c.profile())
	for _, cut := range []int64{-1, 0, 1, 14, 40, 300, 5000, 60_000} {
		t.Run(fmt.Sprint(cut), func(t *testing.T) {
			f := c.front(t)
			f.cut.Store(cut)
			mark := fmt.Sprintf("ran-%d", cut)
			o := python(t.Context(), f.through(t, s), "import os,time\nopen('"+mark+"','a').write('x')\nprint('y'*100_000,flush=True)\ntime.sleep(100)")
			if o.err == nil {
				t.Fatalf("exit %d", o.ExitCode)
			}
			ran := python(t.Context(), s, "import os;print(os.path.getsize('"+mark+"') if os.path.exists('"+mark+"') else 0)").ok(t)
			code := sandboxcore.CodeOf(o.err)
			switch {
			case ran == "1\n" && code == sandboxcore.CodeUnknownOutcome:
			case ran == "0\n" && code != sandboxcore.CodeExitStatus: // nothing ran
			default:
				t.Errorf("it ran %q times, and is told as %v", strings.TrimSpace(ran), o.err)
			}
			if cut >= 5000 && ran != "1\n" {
				t.Errorf("it ran %q times", ran)
			}
			if n := f.execs.Load(); n != 1 {
				t.Errorf("%d processes were started", n)
			}
			c.eventually(t, "nothing of the run is left", func() bool {
				return python(t.Context(), s, "import os\nprint(sum(b'time.sleep(100)' in open(f'/proc/{p}/cmdline','rb').read() or os.path.exists(f'/proc/{p}/fd/3') for p in os.listdir('/proc') if p.isdigit() and int(p) not in (1,os.getpid(),os.getppid())))").ok(t) == "0\n"
			})
		})
	}
}

// A connection that breaks while the policy is checked is no sign that the policy holds, on either protocol: the address
// that is dialled is open all the time.
func TestBrokenConnectionIsNotClosed(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	s := c.create(t, c.profile())
	server := netip.MustParseAddr(c.listening(t))
	for _, spdy := range []bool{false, true} {
		for _, cut := range []int64{0, 1, 30, 100, 200, 1 << 40} {
			f := c.front(t)
			f.noWebSocket.Store(spdy)
			f.cut.Store(cut)
			through := f.through(t, s)
			b := &building{e: through.e, o: optionsOf(c.profile()), deadline: time.Now()}
			err := b.dial(t.Context(), through, "closed", server, &sandboxcore.Error{Code: sandboxcore.CodeNetwork, Attempted: "never"})
			if err == nil || cut == 1<<40 && sandboxcore.CodeOf(err) != sandboxcore.CodeNetwork {
				t.Errorf("SPDY %v, cut at %d: %v", spdy, cut, err)
			}
		}
	}
	// Nor is a command that ends well and says nothing.
	if code, said, err := c.e.command(t.Context(), c.e.own, s.namespace, s.pod, "true"); err != nil || code != 0 || said != "" {
		t.Errorf("%d %q %v", code, said, err)
	}
}

// listening gives the address of a sandbox that takes connections at the port of listeners.
func (c *cluster) listening(t *testing.T) string {
	t.Helper()
	s := c.create(t, c.profile())
	o := execute(t.Context(), s, sandboxcore.RunRequest{
		Kind: sandboxcore.RunCode, Language: "python", KeepBackground: true,
		Text: []byte(fmt.Sprintf("import os,socket\ns=socket.socket();s.bind(('0.0.0.0',%d));s.listen(100)\nif os.fork()==0:\n os.dup2(os.open('/dev/null',2),1)\n os.dup2(1,2)\n while True: s.accept()[0].close()\nprint('up')", listenerPort)),
	})
	if o.err != nil || o.stdout != "up\n" {
		t.Fatalf("%q, %v", o.stdout, o.err)
	}
	return c.pod(t, s.pod).Status.PodIP
}

// Two million lines to a reader that pauses: all of them arrive, in order. By itself: it keeps the whole machine busy.
func TestSlowReaderLosesNothing(t *testing.T) {
	c := newCluster(t)
	s := c.create(t, c.profile())
	const lines = 2_000_000
	want := sha256.New()
	for i := range lines {
		_, _ = fmt.Fprintf(want, "line %d\n", i)
	}
	for _, protocol := range []string{"websocket", "spdy"} {
		t.Run(protocol, func(t *testing.T) {
			f := c.front(t)
			f.noWebSocket.Store(protocol == "spdy")
			slow := &slowReader{sum: sha256.New(), every: 2 << 20}
			res, err := f.through(t, s).Run(t.Context(), sandboxcore.RunRequest{
				Kind: sandboxcore.RunCode, Language: "python", Timeout: 4 * time.Minute, Grace: time.Second,
				Text: []byte(fmt.Sprintf("import sys\nfor i in range(0,%d,1000): sys.stdout.write(''.join(f'line {k}\\n' for k in range(i,i+1000)))", lines)),
			}, slow, io.Discard)
			if err != nil || res.ExitCode != 0 {
				t.Fatalf("exit %d, %v", res.ExitCode, err)
			}
			if got := hex.EncodeToString(slow.sum.Sum(nil)); got != hex.EncodeToString(want.Sum(nil)) || slow.lines != lines {
				t.Errorf("%d lines, sha256 %s", slow.lines, got)
			}
		})
	}
}

type slowReader struct {
	sum interface {
		io.Writer
		Sum([]byte) []byte
	}
	lines, bytes, every int
}

func (s *slowReader) Write(p []byte) (int, error) {
	s.lines += bytes.Count(p, []byte("\n"))
	if (s.bytes+len(p))/s.every > s.bytes/s.every {
		time.Sleep(300 * time.Millisecond) // what makes it slow
	}
	s.bytes += len(p)
	return s.sum.Write(p)
}

// A server that knows no WebSocket: the older protocol does the same.
func TestFallsBackToSPDY(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	s := c.create(t, c.profile(), func(r *sandboxcore.CreateRequest) { r.Env = map[string]string{"FROM": "sandbox"} })
	f := c.front(t)
	f.noWebSocket.Store(true)
	o := execute(t.Context(), f.through(t, s), sandboxcore.RunRequest{
		Kind: sandboxcore.RunCode, Language: "python", Stdin: []byte("input"), Text: []byte("import os,sys;print(sys.stdin.read(),os.environ['FROM']);print('e',file=sys.stderr);sys.exit(7)"),
	})
	if o.err != nil || o.ExitCode != 7 || o.stdout != "input sandbox\n" || o.stderr != "e\n" {
		t.Errorf("exit %d, %q, %q, %v", o.ExitCode, o.stdout, o.stderr, o.err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	if o := python(ctx, f.through(t, s), "import time;time.sleep(100)"); o.err == nil {
		t.Error("a cancelled run ended well")
	}
	if n := f.execs.Load(); n != 2 {
		t.Errorf("%d processes were started", n)
	}
}

// A server that is busy says when to come back, and is obeyed; addresses hold nothing of what users wrote.
func TestBusyServerAndAddresses(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	f := c.front(t)
	f.tooMany.Store(3)
	busy := *c
	busy.e = dial(t, f.settings())
	s := busy.create(t, c.profile(), func(r *sandboxcore.CreateRequest) { r.Env = map[string]string{"S": "canary-in-the-environment"} })
	f.tooMany.Store(2)
	if got := execute(t.Context(), s, sandboxcore.RunRequest{
		Kind: sandboxcore.RunCommand, Argv: []string{"python3", "-c", "import os;print(os.environ['S']+os.environ['R'])", "canary-in-an-argument"},
		Env: map[string]string{"R": "canary-in-a-run"}, Stdin: []byte("canary-in-stdin"),
	}).ok(t); got != "canary-in-the-environmentcanary-in-a-run\n" {
		t.Errorf("printed %q", got)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, line := range f.lines {
		if strings.Contains(line, "canary") || strings.Contains(line, "print") {
			t.Errorf("an address holds what a user wrote: %s", line)
		}
	}
}

// A create whose answer is lost: what it made is found by its name and its mark, and removed.
func TestCreateWhoseAnswerIsLost(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	f := c.front(t)
	f.lose.Store(true)
	e := dial(t, f.settings())
	_, err := e.Create(t.Context(), request(c.profile()), func(sandboxcore.SandboxInfo) { t.Error("it was told as created") })
	if err == nil {
		t.Fatal("no error")
	}
	f.mu.Lock()
	made := strings.Contains(strings.Join(f.lines, "\n"), "POST /api/v1/namespaces/"+c.ns+"/pods")
	f.mu.Unlock()
	if !made {
		t.Error("nothing was made")
	}
	pods, err := c.e.own.kube.CoreV1().Pods(c.ns).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, pod := range pods.Items {
		if pod.DeletionTimestamp == nil {
			t.Errorf("left behind: %s", pod.Name)
		}
	}
}

// A refresh of many sandboxes is one list, whatever their number; each change is seen at once.
func TestRefreshIsOneList(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	var boxes []*sandbox
	for range 3 {
		boxes = append(boxes, c.create(t, c.profile()))
	}
	f := c.front(t)
	e := dial(t, f.settings())
	if _, err := e.Identity(t.Context()); err != nil {
		t.Fatal(err)
	}
	before := f.calls.Load()
	var wg sync.WaitGroup
	for i := range 30 {
		wg.Go(func() {
			if _, err := e.Find(t.Context(), boxes[i%len(boxes)].info.NativeID, false); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := f.calls.Load() - before; n != 1 {
		t.Errorf("%d calls for 30 looks", n)
	}
	// A miss in the list is confirmed by a look of its own.
	if _, err := e.Find(t.Context(), c.ns+"/ak-sandbox-000000000000", false); !sandboxcore.IsCode(err, sandboxcore.CodeGone) {
		t.Errorf("got %v", err)
	}
	if n := f.calls.Load() - before; n != 2 {
		t.Errorf("%d calls", n)
	}
	late := c.create(t, c.profile())
	if _, err := e.Find(t.Context(), late.info.NativeID, false); err != nil {
		t.Errorf("one that came after the list: %v", err)
	}
}

// Every wait ends, and says what to do: an address where nothing is, one that is no API server, a wrong credential.
func TestUnreachable(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = silent.Close() })
	plain := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(func() { plain.Close() })
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = closed.Close()
	redirect := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, plain.URL, http.StatusTemporaryRedirect)
	}))
	t.Cleanup(func() { redirect.Close() })
	wrong := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "no", http.StatusUnauthorized)
	}))
	t.Cleanup(func() { wrong.Close() })
	ca := func(s *httptest.Server) string {
		return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}))
	}
	for name, c := range map[string]struct {
		host, ca string
		says     string
	}{
		"nothing there":       {"https://" + closed.Addr().String(), "", "refused"},
		"no answer":           {"https://" + silent.Addr().String(), "", "did not answer in time"},
		"no TLS":              {strings.Replace(plain.URL, "http:", "https:", 1), "", ""},
		"unknown certificate": {wrong.URL, "", "not trusted"},
		"unknown credential":  {wrong.URL, ca(wrong), "does not know the credential"},
		"a redirect":          {redirect.URL, ca(redirect), ""},
		"no such name":        {"https://no-such-name.invalid", "", "no-such-name.invalid"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			settings := sandboxcore.Settings{keyHost: c.host, keyToken: "secret-token-0123456789"}
			if c.ca != "" {
				settings[keyCA] = c.ca
			}
			e := dial(t, settings)
			e.timings.call = 2 * time.Second
			_, err := e.Identity(t.Context())
			refused(t, err, sandboxcore.CodeUnreachable, c.host, c.says)
			if strings.Contains(err.Error(), "secret-token") {
				t.Errorf("the token is in the error: %v", err)
			}
		})
	}
}

// A run that says nothing for longer than the patience with a silent server goes on: the server answers pings.
func TestSilentRunGoesOn(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	s := c.create(t, c.profile())
	c.e.timings.ping, c.e.timings.patience = 200*time.Millisecond, time.Second
	if got := python(t.Context(), s, "import time;time.sleep(4);print('done')").ok(t); got != "done\n" {
		t.Errorf("printed %q", got)
	}
}
