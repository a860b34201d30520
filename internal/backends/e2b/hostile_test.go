//go:build linux

package e2b

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/e2bpeer"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// transportFunc is a server without a network, for tests whose time is synctest's.
type transportFunc func(*http.Request) *http.Response

func (f transportFunc) RoundTrip(r *http.Request) (*http.Response, error) {
	res := f(r)
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	res.Request = r
	return res, nil
}

func answer(status int, body string, header ...string) *http.Response {
	h := http.Header{"Content-Type": {"application/json"}}
	for i := 0; i < len(header); i += 2 {
		h.Set(header[i], header[i+1])
	}
	return &http.Response{StatusCode: status, Header: h, Body: io.NopCloser(strings.NewReader(body)), ContentLength: int64(len(body))}
}

var farAway = sandboxcore.Settings{keyAPIKey: "key-of-a-test", keyAPIURL: "https://api.example.test"}

// TestListFailsForAllAtOnce: those who wait for a list share its failure, and not only its success: each would otherwise ask
// a server that does not answer for itself, one after the other.
func TestListFailsForAllAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		asked := 0
		e := dial(t, farAway, func(b *backend) {
			b.transport = transportFunc(func(*http.Request) *http.Response {
				mu.Lock()
				asked++
				mu.Unlock()
				time.Sleep(time.Minute)
				return answer(500, `{"code":500,"message":"no"}`)
			})
		})
		began := time.Now()
		var all sync.WaitGroup
		for range 10 {
			all.Go(func() {
				_, err := e.Find(t.Context(), "abc", false)
				wantError2(t, err, sandboxcore.CodeUnreachable)
			})
		}
		all.Wait()
		if took := time.Since(began); asked != 1 || took != time.Minute {
			t.Errorf("%d questions in %s, want one", asked, took)
		}
		// Whoever asked and gave up has no answer for those who still wait.
		asked = 0
		ctx, cancel := context.WithCancel(t.Context())
		all.Go(func() { _, _ = e.Find(ctx, "abc", false) })
		synctest.Wait()
		all.Go(func() { _, _ = e.Find(t.Context(), "abc", false) })
		synctest.Wait()
		cancel()
		all.Wait()
		if asked != 2 {
			t.Errorf("%d questions, want a second one by the one who waited", asked)
		}
	})
}

// TestHoldOffIsShared: after 429 with a time to wait nobody calls before it is over, also not those who come meanwhile.
func TestHoldOffIsShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		began := time.Now()
		turnedAway, early := 0, 0
		e := dial(t, farAway, func(b *backend) {
			b.transport = transportFunc(func(*http.Request) *http.Response {
				mu.Lock()
				defer mu.Unlock()
				if time.Since(began) < 7*time.Second {
					if turnedAway++; turnedAway > 1 {
						early++
					}
					return answer(429, `{"code":429,"message":"slow down"}`, "Retry-After", "7")
				}
				return answer(404, `{"code":404,"message":"none"}`)
			})
		})
		var all sync.WaitGroup
		for i := range 10 {
			all.Go(func() {
				time.Sleep(time.Duration(i) * 100 * time.Millisecond)
				_, err := e.Find(t.Context(), "abc", true)
				wantError2(t, err, sandboxcore.CodeGone)
			})
		}
		all.Wait()
		if turnedAway != 1 || early != 0 {
			t.Errorf("%d calls were turned away, want the first one only", turnedAway)
		}
		if took := time.Since(began); took < 7*time.Second || took > 9*time.Second {
			t.Errorf("it took %s", took)
		}
	})
}

// TestRetryAfter: both forms of the header are read, and one beyond all measure is told as what it is.
func TestRetryAfter(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		value string
		want  time.Duration
	}{
		{"7", 7 * time.Second},
		{"0", 0},
		{now.Add(90 * time.Second).Format(http.TimeFormat), 90 * time.Second},
		{now.Add(-time.Hour).Format(http.TimeFormat), 0},
		{"99999999999999", maxRetryAfter},
		{"99999999999999999999999999", -1},
		{"-3", -1},
		{"soon", -1},
		{"", -1},
	} {
		r := answer(429, `{"code":429,"message":"no"}`, "Retry-After", c.value, "Date", now.Format(http.TimeFormat))
		got := readStatusError(r).retryAfter
		if err := r.Body.Close(); err != nil || got != c.want {
			t.Errorf("%q: %s, want %s", c.value, got, c.want)
		}
	}
	peer := newPeer(t, e2bpeer.Options{Plain: true})
	peer.Intercept(func(_ string, w http.ResponseWriter, _ *http.Request, _ http.Handler) {
		w.Header().Set("Retry-After", "86400")
		w.WriteHeader(429)
		_, _ = io.WriteString(w, `{"code":429,"message":"no"}`)
	})
	_, err := dial(t, provider(peer)).List(t.Context())
	wantError(t, err, sandboxcore.CodeUnreachable)
	if !strings.Contains(err.Error(), "24h0m0s") || strings.Contains(err.Error(), "several waits") {
		t.Error(err)
	}
}

// frames is a stream of envd with the events given, and how it ends.
func frames(w http.ResponseWriter, end string, events ...string) {
	w.Header().Set("Content-Type", "application/connect+json")
	for i, text := range append(slices.Clone(events), end) {
		head := make([]byte, 5)
		if i == len(events) {
			head[0] = 2
		}
		binary.BigEndian.PutUint32(head[1:], uint32(len(text))) // #nosec G115 -- short texts
		_, _ = w.Write(head)
		_, _ = io.WriteString(w, text)
	}
}

// TestStartWithoutPID: a daemon that tells a start twice, or no number with it, ends no provider; and what has started has
// run, whatever an error says afterwards.
func TestStartWithoutPID(t *testing.T) {
	peer := newPeer(t, e2bpeer.Options{Plain: true})
	s := create(t, dial(t, provider(peer), quick), profile())
	run := func(end string, events ...string) (sandboxcore.RunResult, error) {
		peer.Intercept(func(_ string, w http.ResponseWriter, r *http.Request, next http.Handler) {
			if strings.HasSuffix(r.URL.Path, "/Start") || strings.HasSuffix(r.URL.Path, "/Connect") {
				frames(w, end, events...)
				return
			}
			next.ServeHTTP(w, r)
		})
		return s.Run(t.Context(), sandboxcore.RunRequest{Kind: sandboxcore.RunCommand, Argv: []string{"true"}, Timeout: 5 * time.Second}, io.Discard, io.Discard)
	}
	res, err := run(`{}`, `{"event":{"start":{}}}`, `{"event":{"start":{}}}`, `{"event":{"start":{"pid":7}}}`, `{"event":{"end":{"exitCode":3,"exited":true}}}`)
	if err != nil || res.ExitCode != 3 {
		t.Errorf("%+v, %v", res, err)
	}
	_, err = run(`{"error":{"code":"not_found","message":"no such process"}}`, `{"event":{"start":{}}}`)
	wantError(t, err, sandboxcore.CodeUnknownOutcome)
}

// TestNothingIsEchoed: what a server, or a sandbox, repeats of the credentials that it was given is in no error and in no log.
func TestNothingIsEchoed(t *testing.T) {
	const token, traffic = "token-of-the-sandbox", "token-of-the-traffic"
	for name, echo := range map[string]func(w http.ResponseWriter, all string){
		"an error":  func(w http.ResponseWriter, all string) { writeError(w, 400, all) },
		"a refusal": func(w http.ResponseWriter, all string) { writeError(w, 401, all) },
		"gone":      func(w http.ResponseWriter, all string) { writeError(w, 404, all) },
		"a fault":   func(w http.ResponseWriter, all string) { writeError(w, 500, all) },
		"busy":      func(w http.ResponseWriter, all string) { writeError(w, 503, all) },
		"a limit":   func(w http.ResponseWriter, all string) { w.Header().Set("Retry-After", "1"); writeError(w, 429, all) },
		"no JSON":   func(w http.ResponseWriter, all string) { w.WriteHeader(500); _, _ = io.WriteString(w, all) },
		"an end of a stream": func(w http.ResponseWriter, all string) {
			frames(w, `{"error":{"code":"internal","message":`+quoted(all)+`}}`)
		},
		"no HTTP":             raw,
		"an event of no kind": func(w http.ResponseWriter, all string) { frames(w, `{}`, `{"event":`+quoted(all)+`}`) },
	} {
		for _, plane := range []string{"api", "sandbox"} {
			t.Run(name+" of the "+plane, func(t *testing.T) {
				peer := newPeer(t, e2bpeer.Options{Plain: true})
				peer.Tamper(func(d map[string]any) { d["envdAccessToken"], d["trafficAccessToken"] = token, traffic })
				var said lockedBuffer
				e := dial(t, provider(peer), quick, func(b *backend) {
					b.log = slog.New(slog.NewTextHandler(&said, &slog.HandlerOptions{Level: slog.LevelDebug}))
				})
				s := create(t, e, profile(interpreted))
				peer.Intercept(func(on string, w http.ResponseWriter, r *http.Request, next http.Handler) {
					if on != plane {
						next.ServeHTTP(w, r)
						return
					}
					var all []string
					for _, k := range []string{"X-Api-Key", "X-Access-Token", "E2b-Traffic-Access-Token"} {
						if v := r.Header.Get(k); v != "" {
							all = append(all, v)
						}
					}
					echo(w, strings.Join(all, " "))
				})
				var errs []error
				note := func(err error) { errs = append(errs, err) }
				_, err := e.Create(t.Context(), request(t, profile()), nil)
				note(err)
				_, err = e.Find(t.Context(), s.info.NativeID, true)
				note(err)
				_, err = e.List(t.Context())
				note(err)
				_, err = e.Offers(t.Context())
				note(err)
				e.Measure(t.Context(), []string{s.info.NativeID})
				s.renew(t.Context(), &sandboxDetail{})
				for _, r := range []sandboxcore.RunRequest{{Kind: sandboxcore.RunCommand, Argv: []string{"true"}}, {Kind: sandboxcore.RunCode, Language: "python", Text: []byte("1")}, {Kind: sandboxcore.RunScript, Text: []byte("true")}} {
					r.Timeout = 2 * time.Second
					_, err = s.Run(t.Context(), r, io.Discard, io.Discard)
					note(err)
				}
				_, _, err = s.ReadFile(t.Context(), "/f", 10)
				note(err)
				note(s.WriteFile(t.Context(), "/f", nil, 0o600))
				note(s.Pause(t.Context()))
				note(s.Update(t.Context(), profile(func(p *sandboxcore.Profile) { p.Policy.NetworkEgress = sandboxcore.NetworkDeny }), s.info.Marks))
				note(s.Destroy(t.Context()))
				text := said.String()
				for _, err := range errs {
					text += fmt.Sprintf("%v\n%#v\n", err, err)
				}
				for _, secret := range []string{peer.Key(), token, traffic} {
					if at := strings.Index(text, secret); at >= 0 {
						t.Errorf("shown: …%s…", text[max(0, at-300):min(len(text), at+len(secret)+20)])
					}
				}
			})
		}
	}
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func quoted(s string) string { return fmt.Sprintf("%q", s) }

func writeError(w http.ResponseWriter, status int, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = fmt.Fprintf(w, `{"code":%d,"message":%q}`, status, message)
}

func raw(w http.ResponseWriter, all string) {
	c, _, err := http.NewResponseController(w).Hijack()
	if err == nil {
		_, _ = io.WriteString(c, all+"\r\n\r\n")
		_ = c.Close()
	}
}

// TestNoTokenInTheClear: an API on loopback does not make the way to sandboxes elsewhere a safe one.
func TestNoTokenInTheClear(t *testing.T) {
	for _, c := range []struct {
		settings        sandboxcore.Settings
		domain, envdURL string
		want            string // empty: refused
	}{
		{sandboxcore.Settings{keyAPIURL: "http://127.0.0.1:3000", keyDomain: "boxes.example"}, "", "", ""},
		{sandboxcore.Settings{keyAPIURL: "http://127.0.0.1:3000", keyAllowedDomains: []any{"boxes.example"}}, "boxes.example", "", ""},
		{sandboxcore.Settings{keyAPIURL: "http://127.0.0.1:3000", keyDomain: "boxes.example"}, "", "http://n1.boxes.example", ""},
		{sandboxcore.Settings{keyAPIURL: "http://127.0.0.1:3000", keyDomain: "boxes.example"}, "", "https://n1.boxes.example", "https://n1.boxes.example"},
		{sandboxcore.Settings{keyAPIURL: "http://127.0.0.1:3000"}, "", "http://127.0.0.1:4000/box", "http://127.0.0.1:4000/box"},
		{sandboxcore.Settings{keyAPIURL: "http://127.0.0.1:3000", keyDomain: "boxes.example", keyAllowHTTP: true}, "", "", "http://49983-id1.boxes.example"},
		{sandboxcore.Settings{keyAPIURL: "https://api.boxes.example"}, "", "https://n1.boxes.example/box?to=elsewhere", ""},
		{sandboxcore.Settings{keyAPIURL: "https://api.boxes.example"}, "", "https://n1.boxes.example/box#x", ""},
	} {
		p, err := readPlace(c.settings, noEnvironment)
		if err != nil {
			t.Fatal(err)
		}
		r, err := p.routeTo("id1", c.domain, c.envdURL, portEnvd)
		switch {
		case c.want == "" && err == nil:
			t.Errorf("%v %q %q leads to %s", c.settings, c.domain, c.envdURL, r.base)
		case c.want == "":
			wantError(t, err, sandboxcore.CodeUnreachable)
		case err != nil || r.base.String() != c.want:
			t.Errorf("%v %q %q: %v, %v", c.settings, c.domain, c.envdURL, r.base, err)
		}
	}
}

// TestIDsThatCannotBeUsed: a server that gives a new sandbox an id which no path can hold leaves no sandbox behind, or the
// error says that it may have.
func TestIDsThatCannotBeUsed(t *testing.T) {
	for _, c := range []struct {
		name   string
		odd    func(id string) string
		ends   bool // the server ends what it is asked to end
		wanted int  // sandboxes that are left
	}{
		{"with a slash", func(id string) string { return "ns/" + id }, true, 0},
		{"with a percent sign", func(id string) string { return "%2e" + id }, true, 0},
		{"that the server does not know again", func(id string) string { return "ns/" + id }, false, 1},
		{"that leads out of the path", func(string) string { return ".." }, true, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			peer := newPeer(t, e2bpeer.Options{Plain: true})
			e := dial(t, provider(peer), quick)
			own, shown := "", ""
			peer.Tamper(func(d map[string]any) {
				own, _ = d["sandboxID"].(string)
				shown = c.odd(own)
				d["sandboxID"] = shown
			})
			peer.Intercept(func(_ string, w http.ResponseWriter, r *http.Request, next http.Handler) {
				if r.Method == http.MethodDelete {
					if r.URL.Path != "/sandboxes/"+shown || strings.Contains(r.URL.Path, "..") || !c.ends {
						writeError(w, 404, "no such sandbox")
						return
					}
					peer.Kill(own)
					w.WriteHeader(http.StatusNoContent)
					return
				}
				next.ServeHTTP(w, r)
			})
			_, err := e.Create(t.Context(), request(t, profile()), nil)
			if err == nil {
				t.Fatal("taken")
			}
			told := strings.Contains(err.Error(), sandboxcore.MarkRequest)
			if n := len(peer.States()); n != c.wanted || told != (n > 0) {
				t.Errorf("%d left, told %v: %v", n, told, err)
			}
		})
	}
}

// TestConnectThatSaysLess: what an answer of connect leaves out is what was known before.
func TestConnectThatSaysLess(t *testing.T) {
	peer := newPeer(t, e2bpeer.Options{EnvdURL: true})
	settings := provider(peer)
	delete(settings, keySandboxURL)
	s := create(t, dial(t, settings), profile())
	peer.Intercept(func(_ string, w http.ResponseWriter, r *http.Request, next http.Handler) {
		if strings.HasSuffix(r.URL.Path, "/connect") {
			next.ServeHTTP(httptest.NewRecorder(), r)
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{}`)
			return
		}
		next.ServeHTTP(w, r)
	})
	if got := echo(t, s, "in\n"); got != "in\n" {
		t.Errorf("%q", got)
	}
}

// TestWokenWithoutItsLimits: a sandbox that lost its egress policy while it was paused does not stay awake.
func TestWokenWithoutItsLimits(t *testing.T) {
	peer := newPeer(t, e2bpeer.Options{Plain: true})
	e := dial(t, provider(peer))
	id := create(t, e, profile(func(p *sandboxcore.Profile) { p.Policy.NetworkEgress = sandboxcore.NetworkDeny })).info.NativeID
	peer.Pause(id)
	m, err := e.Find(t.Context(), id, true)
	if err != nil {
		t.Fatal(err)
	}
	peer.Tamper(func(d map[string]any) {
		if d["state"] == "running" {
			d["allowInternetAccess"], d["network"] = true, nil
		}
	})
	wantError(t, m.Resume(t.Context()), sandboxcore.CodeNetwork)
	if got := peer.States()[id]; got != "paused" {
		t.Errorf("it is %s", got)
	}
}

// TestKeyThatIsNone: a key with a line break, as from a file, is refused with the attribute that it comes from, and before
// any call.
func TestKeyThatIsNone(t *testing.T) {
	peer := newPeer(t, e2bpeer.Options{Plain: true})
	for _, key := range []string{"abcdefgh\n", " abcdefgh", "abc\x00defgh", "abc défgh"} {
		s := provider(peer)
		s[keyAPIKey] = key
		e := dial(t, s)
		for _, err := range []error{e.Admit(t.Context(), profile(), sandboxcore.Operation{}), second2(e.Create(t.Context(), request(t, profile()), nil))} {
			wantError(t, err, sandboxcore.CodeValue)
			if at := sandboxcore.AllErrors(err, "")[0].Attribute; !slices.Equal(at, []string{"e2b", keyAPIKey}) || strings.Contains(err.Error(), "fgh") {
				t.Errorf("%v: %v", at, err)
			}
		}
	}
	if n := len(peer.Requests()); n != 0 {
		t.Errorf("%d requests", n)
	}
}

func second2(_ sandboxcore.ManagedSandbox, err error) error { return err }

// TestGoneForAnotherTeam: where a key sees nothing of ours at all, "gone" names the other cause that this may have.
func TestGoneForAnotherTeam(t *testing.T) {
	peer := newPeer(t, e2bpeer.Options{Plain: true})
	e := dial(t, provider(peer))
	other := create(t, e, profile())
	_, err := e.Find(t.Context(), "i0123456789", false)
	wantError(t, err, sandboxcore.CodeGone)
	if strings.Contains(err.Error(), "another team") {
		t.Errorf("the key does see one: %v", err)
	}
	if err := other.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, err = e.Find(t.Context(), "i0123456789", false)
	wantError(t, err, sandboxcore.CodeGone)
	if !strings.Contains(err.Error(), "another team") {
		t.Error(err)
	}
}

// TestForgedMark: a program knows the mark of its run. With it alone it does not make itself one that never ran, and hides
// nothing of what it wrote.
func TestForgedMark(t *testing.T) {
	peer := newPeer(t, e2bpeer.Options{})
	s := create(t, dial(t, provider(peer)), profile())
	for _, script := range []string{
		`printf 'agentkernel-run:%s:chdir\nmore' "$AGENTKERNEL_RUN" >&2; exit 3`,
		`echo out; printf 'agentkernel-run:%s:chdir\nmore' "$AGENTKERNEL_RUN" >&2; exit 125`,
		`printf 'agentkernel-run:%s:chdir\n' "$AGENTKERNEL_RUN" >&2; sleep 0.3; echo more >&2; exit 125`,
		`printf 'more agentkernel-run:' >&2; exit 125`,
		`printf 'agentkernel-run:%s:of its own kind\nmore' "$AGENTKERNEL_RUN" >&2; exit 125`,
	} {
		var stderr bytes.Buffer
		res, err := s.Run(t.Context(), sandboxcore.RunRequest{Kind: sandboxcore.RunScript, Text: []byte(script), Timeout: 20 * time.Second}, io.Discard, &stderr)
		if err != nil || res.ExitCode == 0 || !strings.Contains(stderr.String(), "more") {
			t.Errorf("%s: %+v, %v, %q", script, res, err, stderr.String())
		}
	}
	// Of a run that is over its time what it wrote is there, too.
	var stderr bytes.Buffer
	_, err := s.Run(t.Context(), sandboxcore.RunRequest{Kind: sandboxcore.RunScript, Text: []byte("printf agent >&2; sleep 60"), Timeout: time.Second}, io.Discard, &stderr)
	wantError(t, err, sandboxcore.CodeTimeout)
	if stderr.String() != "agent" {
		t.Errorf("%q", stderr.String())
	}
}

// TestCancelAnywhere: every operation ends soon after it is cancelled, whichever of its calls is under way, whether the
// server has carried that out or not. Nothing is left that nobody knows of, and a run that may have begun is no success.
func TestCancelAnywhere(t *testing.T) {
	deny := func(p *sandboxcore.Profile) { p.Policy.NetworkEgress = sandboxcore.NetworkDeny }
	run := func(kind sandboxcore.RunKind, stdin string) func(context.Context, *endpoint, *sandbox) error {
		return func(ctx context.Context, _ *endpoint, s *sandbox) error {
			r := sandboxcore.RunRequest{Kind: kind, Text: []byte("import time; time.sleep(0.1)"), Language: "python", Timeout: time.Minute, Stdin: []byte(stdin)}
			if kind == sandboxcore.RunScript {
				r.Text = []byte("cat; sleep 0.1")
			}
			_, err := s.Run(ctx, r, io.Discard, io.Discard)
			return err
		}
	}
	for name, op := range map[string]struct {
		profile func(*sandboxcore.Profile)
		do      func(context.Context, *endpoint, *sandbox) error
	}{
		"run":         {func(*sandboxcore.Profile) {}, run(sandboxcore.RunScript, "")},
		"run, input":  {func(*sandboxcore.Profile) {}, run(sandboxcore.RunScript, "x")},
		"interpreter": {interpreted, run(sandboxcore.RunCode, "")},
		"read": {nil, func(ctx context.Context, _ *endpoint, s *sandbox) error {
			return second(s.ReadFile(ctx, "/etc/passwd", 1<<20))
		}},
		"write": {nil, func(ctx context.Context, _ *endpoint, s *sandbox) error {
			return s.WriteFile(ctx, "f", []byte("x"), 0o600)
		}},
		"pause": {nil, func(ctx context.Context, _ *endpoint, s *sandbox) error { return s.Pause(ctx) }},
		"update": {nil, func(ctx context.Context, _ *endpoint, s *sandbox) error {
			return s.Update(ctx, profile(deny), s.info.Marks)
		}},
		"destroy": {nil, func(ctx context.Context, _ *endpoint, s *sandbox) error { return s.Destroy(ctx) }},
		"create": {nil, func(ctx context.Context, e *endpoint, _ *sandbox) error {
			return second2(e.Create(ctx, request(t, profile(deny)), nil))
		}},
		"find": {nil, func(ctx context.Context, e *endpoint, s *sandbox) error {
			return second2(e.Find(ctx, s.info.NativeID, false))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			peer := newPeer(t, e2bpeer.Options{Plain: op.profile == nil && name != "read" && name != "write"})
			e := dial(t, provider(peer), quick, func(b *backend) { b.times.call, b.times.upload = time.Minute, time.Minute })
			for n := 1; ; n++ {
				for _, carriedOut := range []bool{false, true} {
					p := op.profile
					if p == nil {
						p = func(*sandboxcore.Profile) {}
					}
					s := create(t, e, profile(p))
					ctx, cancel := context.WithCancel(t.Context())
					var count int
					var mu sync.Mutex
					peer.Intercept(func(_ string, w http.ResponseWriter, r *http.Request, next http.Handler) {
						mu.Lock()
						count++
						hit := count == n
						mu.Unlock()
						if !hit {
							next.ServeHTTP(w, r)
							return
						}
						if carriedOut {
							next.ServeHTTP(httptest.NewRecorder(), r)
						} else {
							_, _ = io.Copy(io.Discard, r.Body)
						}
						cancel()
						<-r.Context().Done()
					})
					began := time.Now()
					err := op.do(ctx, e, s)
					if took := time.Since(began); took > 15*time.Second {
						t.Errorf("call %d, carried out %v: it took %s", n, carriedOut, took)
					}
					mu.Lock()
					over := count < n
					mu.Unlock()
					cancelled := ctx.Err() != nil
					cancel()
					peer.Intercept(nil)
					if cancelled && err == nil && name == "create" {
						t.Errorf("call %d, carried out %v: no error", n, carriedOut)
					}
					if err != nil {
						checkFault(t, name, peer, err)
					}
					for id := range peer.States() {
						if id != s.info.NativeID && name == "create" && cancelled {
							t.Errorf("call %d, carried out %v: %s is left: %v", n, carriedOut, id, err)
						}
						peer.Kill(id)
					}
					if over && carriedOut {
						return
					}
				}
			}
		})
	}
}

// TestInterpreterWithOtherNames: what code did to the names of its interpreter keeps no later run from its environment, and
// lets none of it stay.
func TestInterpreterWithOtherNames(t *testing.T) {
	peer := newPeer(t, e2bpeer.Options{})
	s := create(t, dial(t, provider(peer)), profile(interpreted))
	for _, c := range []struct{ language, code string }{
		{"python", "__import__ = exec = open = None"},
		{"python", "import builtins; builtins.exec = builtins.open = None"},
		{"python", "import sys; sys._agentkernel_before = {'PATH': '/evil'}"},
		{"python", "import os; os.environ = {}"},
		{"bash", "command() { echo evil; }; export() { echo evil; }; rm() { :; }"},
		{"bash", "unset() { :; }; shopt -s expand_aliases; alias export=false"},
		{"bash", "builtin() { :; }; function . { :; }; function [ { false; }"},
		{"bash", "set -u; IFS=x"},
		{"bash", "POSIXLY_CORRECT=1"},
	} {
		see := "import os; print(os.environ.get('SECRET'))"
		if c.language == "bash" {
			see = `echo "${SECRET-None}"; sh -c 'echo "${SECRET-None}"'`
		}
		runCode(t, t.Context(), s, c.language, c.code)
		with := runCode(t, t.Context(), s, c.language, see, withEnv("SECRET", "value-of-one"))
		if with.failure != nil || strings.ReplaceAll(with.out, "value-of-one\n", "") != "" || with.out == "" {
			t.Errorf("%s: %q %q, %v", c.code, with.out, with.err, with.failure)
		}
		without := runCode(t, t.Context(), s, c.language, see)
		if without.failure != nil || strings.ReplaceAll(without.out, "None\n", "") != "" || without.out == "" {
			t.Errorf("%s, afterwards: %q %q, %v", c.code, without.out, without.err, without.failure)
		}
		if c.language == "bash" {
			mode := runCode(t, t.Context(), s, c.language, `case ${POSIXLY_CORRECT-no} in no) echo plain ;; *) echo posix ;; esac`)
			if want := map[bool]string{true: "posix\n", false: "plain\n"}[strings.HasPrefix(c.code, "POSIX")]; mode.out != want {
				t.Errorf("%s: the shell is %q", c.code, mode.out)
			}
		}
		if err := (&cellRun{s: s, req: sandboxcore.RunRequest{Language: c.language}, daemon: must(s.daemonAt(portInterpreter, s.o.user))}).restart(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

func must(d *daemon, err error) *daemon {
	if err != nil {
		panic(err)
	}
	return d
}

// TestReadLiveOddEntries: an egress policy that no profile can say is told, and makes no spec that nobody can read.
func TestReadLiveOddEntries(t *testing.T) {
	peer := newPeer(t, e2bpeer.Options{Plain: true})
	e := dial(t, provider(peer))
	id := create(t, e, profile()).info.NativeID
	for entry, fine := range map[string]bool{"192.0.2.0/24": true, "192.0.2.7": true, "example.org": true, "evil\x1b[1m": false, "192.0.2.0/99": false, "": false, "a b": false} {
		peer.Tamper(func(d map[string]any) {
			d["allowInternetAccess"], d["network"] = false, map[string]any{"allowOut": []string{entry}, "denyOut": []string{everything}}
		})
		p := profile()
		err := e.ReadLive(t.Context(), id, p)
		if fine {
			if spec, serr := sandboxcore.EncodeSpec(p); err != nil || serr != nil || !strings.Contains(spec, "192.0.2") && !strings.Contains(spec, entry) {
				t.Errorf("%q: %s, %v, %v", entry, spec, err, serr)
			}
			continue
		}
		wantError(t, err, sandboxcore.CodeAllowEntry)
		if strings.Contains(err.Error(), "\x1b") {
			t.Errorf("%q", err)
		}
	}
}

// TestEndlessList: pages that lead on and on fill no memory.
func TestEndlessList(t *testing.T) {
	page := "[" + strings.Repeat(" ", 1<<16-2) + "]"
	pages := 0
	e := dial(t, farAway, func(b *backend) {
		b.transport = transportFunc(func(*http.Request) *http.Response {
			pages++
			return answer(200, page, "X-Next-Token", fmt.Sprint(pages))
		})
	})
	e.api.listed = 1 << 20
	_, err := e.List(t.Context())
	wantError(t, err, sandboxcore.CodeUnreachable)
	if pages != 17 {
		t.Errorf("%d pages were read, want those that fit and one", pages)
	}
}
