//go:build linux

package e2b

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/e2bpeer"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// fault is one way in which a server, or what stands before it, answers wrongly.
type fault struct {
	name string
	// after: the server has done its work, and only the answer is wrong.
	after bool
	serve func(w http.ResponseWriter, r *http.Request)
}

func status(code int, header, body string) fault {
	return fault{name: fmt.Sprintf("%d", code), serve: func(w http.ResponseWriter, _ *http.Request) {
		if header != "" {
			k, v, _ := strings.Cut(header, ": ")
			w.Header().Set(k, v)
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		_, _ = io.WriteString(w, body)
	}}
}

func faults() []fault {
	var out []fault
	for _, code := range []int{400, 401, 403, 404, 409, 429, 500, 502, 503, 504} {
		f := status(code, "", fmt.Sprintf(`{"code":%d,"message":"the server's own words"}`, code))
		out = append(out, f)
		if code >= 500 { // a server that refuses a request has not carried it out
			f.name, f.after = f.name+" after the work", true
			out = append(out, f)
		}
		html := status(code, "Content-Type: text/html", "<!DOCTYPE html><h1>sign in</h1>")
		html.name += " HTML"
		out = append(out, html)
		empty := status(code, "", "")
		empty.name += " empty"
		out = append(out, empty)
	}
	redirect := status(307, "Location: http://127.0.0.1:1/elsewhere", "")
	redirect.name = "redirect"
	limited := status(429, "Retry-After: 1", `{"code":429,"message":"rate limit exceeded"}`)
	limited.name = "429 for ever"
	return append(out, redirect, limited,
		fault{name: "200 HTML", after: true, serve: func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<html>welcome</html>") }},
		fault{name: "200 empty", after: true, serve: func(http.ResponseWriter, *http.Request) {}},
		fault{name: "200 of another shape", after: true, serve: func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{"hello":["world"]}`) }},
		fault{name: "200 truncated", after: true, serve: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "1000")
			_, _ = io.WriteString(w, `{"sandboxID":"iab`)
		}},
		fault{name: "100 MB", after: true, serve: func(w http.ResponseWriter, _ *http.Request) { flood(w, http.StatusOK) }},
		fault{name: "100 MB of an error", serve: func(w http.ResponseWriter, _ *http.Request) { flood(w, http.StatusInternalServerError) }},
		fault{name: "hang", serve: func(_ http.ResponseWriter, r *http.Request) {
			// Go notices that the client is gone only after the body was read.
			_, _ = io.Copy(io.Discard, r.Body)
			<-r.Context().Done()
		}},
		fault{name: "hang after the work", after: true, serve: func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }},
		fault{name: "cut", serve: func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }},
		fault{name: "cut after the work", after: true, serve: func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }},
	)
}

func flood(w http.ResponseWriter, status int) {
	w.WriteHeader(status)
	block := bytes.Repeat([]byte("x"), 1<<20)
	_, _ = io.WriteString(w, `"`)
	for range 100 {
		if _, err := w.Write(block); err != nil {
			return
		}
	}
}

// strike makes the n-th request of a plane fail, or every one from the n-th on.
func strike(peer *e2bpeer.Peer, plane string, n int64, all bool, f fault) {
	var count atomic.Int64
	peer.Intercept(func(on string, w http.ResponseWriter, r *http.Request, next http.Handler) {
		hit := false
		if on == plane {
			c := count.Add(1)
			hit = c == n || (all && c > n)
		}
		if !hit {
			next.ServeHTTP(w, r)
			return
		}
		if f.after {
			body, _ := io.ReadAll(r.Body)
			again := r.Clone(r.Context())
			again.Body = io.NopCloser(bytes.NewReader(body))
			next.ServeHTTP(httptest.NewRecorder(), again)
		}
		f.serve(w, r)
	})
}

func quick(b *backend) {
	b.times.call, b.times.upload, b.times.start, b.times.kill = 250*time.Millisecond, 400*time.Millisecond, 2*time.Second, 3*time.Second
	b.times.backoff, b.times.poll, b.times.lost, b.times.gone, b.times.rateLimit = time.Millisecond, time.Millisecond, 20*time.Millisecond, 100*time.Millisecond, time.Second
	sleep := b.times.wait
	b.times.wait = func(ctx context.Context, d time.Duration) error { return sleep(ctx, min(d, 5*time.Millisecond)) }
}

// TestFaultsOfTheAPI: every operation, with each of its calls failing in each way, once and for good. One error with a code
// and something to do, no secret in it, and afterwards no sandbox that nobody knows of.
func TestFaultsOfTheAPI(t *testing.T) {
	denied := func(p *sandboxcore.Profile) { p.Policy.NetworkEgress = sandboxcore.NetworkDeny }
	type world struct {
		peer *e2bpeer.Peer
		e    *endpoint
		s    *sandbox
		told string
	}
	operations := []struct {
		name  string
		calls int64
		fresh bool // starts without a sandbox
		do    func(ctx context.Context, w *world) error
	}{
		{"create", 2, true, func(ctx context.Context, w *world) error {
			m, err := w.e.Create(ctx, request(t, profile(denied)), func(i sandboxcore.SandboxInfo) { w.told = i.NativeID })
			if err == nil && m.Info().NativeID != w.told {
				return errors.New("not told")
			}
			return err
		}},
		{"find", 1, false, func(ctx context.Context, w *world) error {
			_, err := w.e.Find(ctx, w.s.info.NativeID, true)
			return err
		}},
		{"list", 1, false, func(ctx context.Context, w *world) error {
			list, err := w.e.List(ctx)
			if err == nil && len(list) != 1 {
				return fmt.Errorf("listed %d", len(list))
			}
			return err
		}},
		{"refresh", 2, false, func(ctx context.Context, w *world) error {
			w.e.listing.drop()
			_, err := w.e.Find(ctx, w.s.info.NativeID, false)
			return err
		}},
		{"pause", 2, false, func(ctx context.Context, w *world) error { return w.s.Pause(ctx) }},
		{"resume", 1, false, func(ctx context.Context, w *world) error { return w.s.Resume(ctx) }},
		{"update", 3, false, func(ctx context.Context, w *world) error {
			return w.s.Update(ctx, profile(func(p *sandboxcore.Profile) {
				p.Policy.NetworkEgress, p.Policy.NetworkAllow = sandboxcore.NetworkAllowlist, []string{"192.0.2.0/24"}
			}), w.s.info.Marks)
		}},
		{"wake", 3, false, func(ctx context.Context, w *world) error {
			w.peer.Pause(w.s.info.NativeID)
			w.s.info.Status, w.s.info.Dormant = sandboxcore.StatusPaused, true
			_, err := w.s.wake(ctx, w.s.o.idle)
			return err
		}},
		{"renewal by a refresh", 3, false, func(ctx context.Context, w *world) error {
			e := w.e.b.options
			w.e.b.options = func(s sandboxcore.Settings, idle float64) options {
				o := e(s, idle)
				o.renewOnRefresh = true
				return o
			}
			w.e.listing.drop()
			_, err := w.e.Find(ctx, w.s.info.NativeID, false)
			return err
		}},
		{"live policy", 1, false, func(ctx context.Context, w *world) error {
			return w.e.ReadLive(ctx, w.s.info.NativeID, profile())
		}},
		{"measurements", 2, false, func(ctx context.Context, w *world) error {
			got := w.e.Measure(ctx, []string{w.s.info.NativeID})
			for id, facts := range got {
				if id != w.s.info.NativeID || len(facts) > 7 {
					return fmt.Errorf("%v", got)
				}
			}
			return nil
		}},
		{"offers", 1, false, func(ctx context.Context, w *world) error {
			_, err := w.e.Offers(ctx)
			return err
		}},
		{"destroy", 2, false, func(ctx context.Context, w *world) error { return w.s.Destroy(ctx) }},
	}
	for _, op := range operations {
		t.Run(op.name, func(t *testing.T) {
			t.Parallel() // nearly all of it is waiting for answers that do not come
			peer := newPeer(t, e2bpeer.Options{Plain: true})
			for _, f := range faults() {
				for n := int64(1); n <= op.calls; n++ {
					for _, all := range []bool{false, true} {
						name := fmt.Sprintf("%s, call %d, from then on %v", f.name, n, all)
						peer.Intercept(nil)
						w := &world{peer: peer, e: dial(t, provider(peer), quick)}
						if !op.fresh {
							// Made without the short waits of the test, which a busy machine does not keep.
							w.s = create(t, dial(t, provider(peer)), profile(denied))
							w.s.e = w.e
						}
						strike(peer, "api", n, all, f)
						ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
						began := time.Now()
						err := op.do(ctx, w)
						cancel()
						if took := time.Since(began); took > 15*time.Second {
							t.Errorf("%s: took %s", name, took)
						}
						peer.Intercept(nil)
						checkFault(t, name, peer, err)
						judge := w.told != "" || op.fresh
						left := peer.States()
						if err != nil && judge {
							// Known to the caller: may be there, and can be destroyed. Unknown: must not be there, unless the
							// server was away for good and the error says what to look for.
							if w.told == "" && len(left) > 0 && !strings.Contains(err.Error(), sandboxcore.MarkRequest) {
								t.Errorf("%s: an orphan, and %v", name, err)
							}
						}
						if sandboxcore.IsCode(err, sandboxcore.CodeGone) && !strings.HasPrefix(f.name, "404") {
							t.Errorf("%s: taken for gone: %v", name, err)
						}
						if (strings.Contains(f.name, "HTML") || strings.Contains(f.name, "empty")) && sandboxcore.IsCode(err, sandboxcore.CodeGone) {
							t.Errorf("%s: somebody else's 404 was taken for gone: %v", name, err)
						}
						if op.name == "destroy" && err == nil && len(left) > 0 && !strings.HasPrefix(f.name, "404") {
							t.Errorf("%s: destroyed, and still there", name)
						}
						for id := range left {
							peer.Kill(id)
						}
					}
				}
			}
		})
	}
}

func checkFault(t *testing.T, name string, peer *e2bpeer.Peer, err error) {
	t.Helper()
	if err == nil {
		return
	}
	for _, e := range sandboxcore.AllErrors(err, "") {
		if e.Code == "" || e.Attempted == "" || e.Next == "" {
			t.Errorf("%s: an error that helps nobody: %#v", name, e)
		}
	}
	text := err.Error()
	if strings.Contains(text, peer.Key()) || strings.ContainsAny(text, "\x00\x1b") || len(text) > 4000 {
		t.Errorf("%s: unfit to be shown: %.500q", name, text)
	}
}

// TestTLS: another name, an unknown authority, and the right one.
func TestTLS(t *testing.T) {
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-API-Key") != "" {
			w.Header().Set("Saw-Key", "yes")
		}
		_, _ = io.WriteString(w, "[]")
	}))
	server.StartTLS()
	defer server.Close()
	var authority bytes.Buffer
	_ = encodeCertificate(&authority, server.TLS.Certificates[0])
	_, port, _ := strings.Cut(strings.TrimPrefix(server.URL, "https://"), ":")
	for name, c := range map[string]struct {
		url, ca, says string
	}{
		"right":             {server.URL, authority.String(), ""},
		"unknown authority": {server.URL, "", "signed by nobody"},
		"another name":      {"https://localhost:" + port, authority.String(), "belongs to another name"},
		"no TLS there":      {"https://" + strings.TrimPrefix(newPeer(t, e2bpeer.Options{Plain: true}).APIURL(), "http://"), authority.String(), "does not speak TLS"},
	} {
		s := sandboxcore.Settings{keyAPIKey: "e2b_secret1", keyAPIURL: c.url, keySandboxURL: "http://127.0.0.1:1"}
		if c.ca != "" {
			s[keyCACertificate] = c.ca
		}
		_, err := dial(t, s).List(t.Context())
		if c.says == "" {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		wantError(t, err, sandboxcore.CodeUnreachable)
		if !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "e2b_secret1") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestRunFaults: with each call to the sandbox failing in each way, user code runs once at most, what is not known is
// called unknown, and nothing of it is left.
func TestRunFaults(t *testing.T) {
	peer := newPeer(t, e2bpeer.Options{})
	healthy := dial(t, provider(peer))
	s := create(t, healthy, profile())
	read := func(name string) string {
		peer.Intercept(nil)
		text, _, err := s.ReadFile(t.Context(), name, 1<<20)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
		return string(text)
	}
	for _, f := range faults() {
		for n := int64(1); n <= 3; n++ { // upload, start, kill
			name := fmt.Sprintf("%s, call %d", f.name, n)
			if f.after && n == 2 && !strings.HasPrefix(f.name, "200") && f.name != "cut after the work" {
				continue // one of each kind is enough where a process is really started
			}
			file := "ran-" + newRunID()
			e := dial(t, provider(peer), quick)
			m, err := e.Find(t.Context(), s.info.NativeID, true)
			if err != nil {
				t.Fatal(err)
			}
			strike(peer, "sandbox", n, false, f)
			var out bytes.Buffer
			res, err := m.Run(t.Context(), sandboxcore.RunRequest{
				Kind: sandboxcore.RunScript, Text: []byte("echo x >>" + file + "; echo done"), Timeout: 5 * time.Second, Grace: 100 * time.Millisecond,
			}, &out, io.Discard)
			checkFault(t, name, peer, err)
			ran := read(file)
			switch {
			case len(ran) > 2:
				t.Errorf("%s: it ran %d times", name, len(ran)/2)
			case err == nil && (ran != "x\n" || out.String() != "done\n" || res.ExitCode != 0):
				t.Errorf("%s: a success without a run: %q, %q", name, ran, out.String())
			case err != nil && ran != "" && sandboxcore.IsCode(err, sandboxcore.CodeProvision):
				t.Errorf("%s: it ran, and the error says that it did not: %v", name, err)
			}
			if err != nil && strings.Contains(err.Error(), s.session.token) {
				t.Errorf("%s: the token is in the error", name)
			}
		}
	}
}

// TestFileFaults: each call for a file failing in each way. A read gives the whole content or an error, a write leaves the
// old content or the new one and nothing besides, and a file is absent only if the daemon says so.
func TestFileFaults(t *testing.T) {
	peer := newPeer(t, e2bpeer.Options{})
	s := create(t, dial(t, provider(peer)), profile(set(keyAllowPublicTraffic, true)))
	const before, after = "the old content", "the new content, which is longer"
	for _, f := range faults() {
		for n := int64(1); n <= 3; n++ {
			for _, op := range []string{"read", "write", "remove"} {
				name := fmt.Sprintf("%s, %s, call %d", op, f.name, n)
				if err := s.WriteFile(t.Context(), "file", []byte(before), 0o640); err != nil {
					t.Fatal(err)
				}
				m, err := dial(t, provider(peer), quick).Find(t.Context(), s.info.NativeID, true)
				if err != nil {
					t.Fatal(err)
				}
				strike(peer, "sandbox", n, false, f)
				var got []byte
				switch op {
				case "read":
					got, _, err = m.ReadFile(t.Context(), "file", 1<<20)
				case "write":
					err = m.WriteFile(t.Context(), "file", []byte(after), 0o640)
				case "remove":
					err = m.RemoveFile(t.Context(), "file")
				}
				peer.Intercept(nil)
				if err != nil && (strings.Contains(err.Error(), s.session.token) || strings.Contains(err.Error(), peer.Key())) {
					t.Errorf("%s: a secret is in the error", name)
				}
				if errors.Is(err, fs.ErrNotExist) && !strings.HasPrefix(f.name, "404") {
					t.Errorf("%s: taken for absent: %v", name, err)
				}
				if errors.Is(err, fs.ErrNotExist) && (strings.Contains(f.name, "HTML") || strings.Contains(f.name, "empty")) {
					t.Errorf("%s: somebody else's 404 was taken for absent: %v", name, err)
				}
				is, _, rerr := s.ReadFile(t.Context(), "file", 1<<20)
				switch {
				case op == "read" && err == nil && string(got) != before:
					t.Errorf("%s: read %q", name, got)
				case op == "write" && (rerr != nil || string(is) != before && string(is) != after || err == nil && string(is) != after):
					t.Errorf("%s: %v, and it is %q, %v", name, err, is, rerr)
				case op == "remove" && err == nil && !errors.Is(rerr, fs.ErrNotExist):
					t.Errorf("%s: removed, and there", name)
				}
			}
		}
	}
	d, err := s.daemon(s.o.user)
	if err != nil {
		t.Fatal(err)
	}
	no := false
	out, _, err := d.small(t.Context(), &startRequest{Stdin: &no, Process: processConfig{Cmd: "/bin/sh", Args: []string{"-c", "find ~ -name '.agentkernel-*' | wc -l"}}})
	if err != nil || strings.TrimSpace(out) != "0" {
		t.Errorf("parts of uploads left after all faults: %s %v", strings.TrimSpace(out), err)
	}
}

// TestStdinFaults: the calls that bring input. The program gets all of it and its end, or the run is no success.
func TestStdinFaults(t *testing.T) {
	peer := newPeer(t, e2bpeer.Options{})
	s := create(t, dial(t, provider(peer)), profile())
	input := bytes.Repeat([]byte("0123456789abcdef"), 3*stdinChunk/16)
	for _, f := range faults() {
		for _, call := range []string{"/SendInput", "/CloseStdin"} {
			name := f.name + ", " + call
			m, err := dial(t, provider(peer), quick).Find(t.Context(), s.info.NativeID, true)
			if err != nil {
				t.Fatal(err)
			}
			var n atomic.Int64
			peer.Intercept(func(_ string, w http.ResponseWriter, r *http.Request, next http.Handler) {
				if strings.HasSuffix(r.URL.Path, call) && n.Add(1) == 1 {
					if f.after {
						body, _ := io.ReadAll(r.Body)
						r.Body = io.NopCloser(bytes.NewReader(body))
						next.ServeHTTP(httptest.NewRecorder(), r.Clone(r.Context()))
					}
					f.serve(w, r)
					return
				}
				next.ServeHTTP(w, r)
			})
			var out bytes.Buffer
			res, err := m.Run(t.Context(), sandboxcore.RunRequest{Kind: sandboxcore.RunCommand, Argv: []string{"wc", "-c"}, Stdin: input, Timeout: 1500 * time.Millisecond, Grace: 100 * time.Millisecond}, &out, io.Discard)
			peer.Intercept(nil)
			checkFault(t, name, peer, err)
			if err == nil && (res.ExitCode != 0 || strings.TrimSpace(out.String()) != fmt.Sprint(len(input))) {
				t.Errorf("%s: a success, and the program read %s of %d", name, strings.TrimSpace(out.String()), len(input))
			}
		}
	}
}

// TestStreamCut: the connection breaks after each frame of a run. Only the end event is an end.
func TestStreamCut(t *testing.T) {
	peer := newPeer(t, e2bpeer.Options{})
	e := dial(t, provider(peer), quick, func(b *backend) { b.times.call = 5 * time.Second; b.times.upload = 5 * time.Second })
	s := create(t, e, profile())
	for frames := range 7 {
		var hit atomic.Bool
		peer.Intercept(func(plane string, w http.ResponseWriter, r *http.Request, next http.Handler) {
			if strings.HasSuffix(r.URL.Path, "/Start") && hit.CompareAndSwap(false, true) {
				next.ServeHTTP(&cutter{ResponseWriter: w, left: frames}, r)
				return
			}
			next.ServeHTTP(w, r)
		})
		file := "cut-" + newRunID()
		var out bytes.Buffer
		res, err := s.Run(t.Context(), sandboxcore.RunRequest{
			Kind: sandboxcore.RunScript, Text: []byte("echo x >>" + file + "; for i in 1 2 3; do echo $i; sleep 0.15; done; exit 4"), Timeout: 20 * time.Second, Grace: 100 * time.Millisecond,
		}, &out, io.Discard)
		peer.Intercept(nil)
		text, _, rerr := s.ReadFile(t.Context(), file, 100)
		if rerr == nil && string(text) != "x\n" {
			t.Errorf("cut after %d frames: ran as %q", frames, text)
		}
		if err == nil {
			if res.ExitCode != 4 || out.String() != "1\n2\n3\n" {
				t.Errorf("cut after %d frames: exit %d, %q", frames, res.ExitCode, out.String())
			}
			if frames < 5 {
				t.Errorf("cut after %d frames, and yet an end", frames)
			}
			continue
		}
		wantError(t, err, sandboxcore.CodeUnknownOutcome)
		if !strings.Contains(err.Error(), "ended with exit status 4") || frames < 4 && !strings.HasSuffix(out.String(), "3\n") {
			t.Errorf("cut after %d frames: not found again: %v, %q", frames, err, out.String())
		}
	}
}

// TestStreamCutForGood: what cannot be found again is ended.
func TestStreamCutForGood(t *testing.T) {
	peer := newPeer(t, e2bpeer.Options{})
	e := dial(t, provider(peer))
	s := create(t, e, profile())
	for name, again := range map[string]func(w http.ResponseWriter, r *http.Request, next http.Handler){
		"another cut": func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			next.ServeHTTP(&cutter{ResponseWriter: w, left: 1}, r)
		},
		"no such process": func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
			status(404, "", `{"code":"not_found","message":"process not found"}`).serve(w, nil)
		},
		"no such call":      func(w http.ResponseWriter, _ *http.Request, _ http.Handler) { w.WriteHeader(http.StatusNotFound) },
		"somebody's answer": func(w http.ResponseWriter, _ *http.Request, _ http.Handler) { _, _ = io.WriteString(w, "<html>") },
	} {
		peer.Intercept(func(_ string, w http.ResponseWriter, r *http.Request, next http.Handler) {
			switch {
			case strings.HasSuffix(r.URL.Path, "/Start") && !strings.Contains(r.Header.Get("Authorization"), "cm9vd"): // not the helper, which is root
				next.ServeHTTP(&cutter{ResponseWriter: w, left: 2}, r)
			case strings.HasSuffix(r.URL.Path, "/Connect"):
				again(w, r, next)
			default:
				next.ServeHTTP(w, r)
			}
		})
		_, err := s.Run(t.Context(), sandboxcore.RunRequest{
			Kind: sandboxcore.RunScript, Text: []byte("echo begun; while :; do echo x >>goes-on; sleep 0.05; done"), Timeout: 30 * time.Second, Grace: 100 * time.Millisecond,
		}, io.Discard, io.Discard)
		peer.Intercept(nil)
		wantError(t, err, sandboxcore.CodeUnknownOutcome)
		if !strings.Contains(err.Error(), "was ended because of it") {
			t.Errorf("%s: %v", name, err)
		}
		d, derr := s.daemon("root")
		if derr != nil {
			t.Fatal(derr)
		}
		no := false
		out, _, err := d.small(t.Context(), &startRequest{Stdin: &no, Process: processConfig{Cmd: "/bin/sh", Args: []string{"-c", "grep -lsF -e " + runVariable + "= /proc/[0-9]*/environ; :"}}})
		if err != nil || strings.TrimSpace(out) != "" {
			t.Errorf("%s: left: %q, %v", name, out, err)
		}
	}
	// One that is over its time while it is followed is a timeout.
	var cut atomic.Bool
	peer.Intercept(func(_ string, w http.ResponseWriter, r *http.Request, next http.Handler) {
		if strings.HasSuffix(r.URL.Path, "/Start") && cut.CompareAndSwap(false, true) {
			next.ServeHTTP(&cutter{ResponseWriter: w, left: 2}, r)
			return
		}
		next.ServeHTTP(w, r)
	})
	_, err := s.Run(t.Context(), sandboxcore.RunRequest{Kind: sandboxcore.RunScript, Text: []byte("echo begun; echo more; exec sleep 60"), Timeout: time.Second, Grace: 100 * time.Millisecond}, io.Discard, io.Discard)
	wantError(t, err, sandboxcore.CodeTimeout)
}

// TestStreamCutAnywhere: the connection breaks in the middle of messages, of the run's own stream and of the helper's that
// ends what is left. One run, no success without an end, and nothing left.
func TestStreamCutAnywhere(t *testing.T) {
	peer := newPeer(t, e2bpeer.Options{})
	e := dial(t, provider(peer))
	s := create(t, e, profile())
	for call := int64(1); call <= 2; call++ { // the run, the helper
		for bytes := 1; bytes < 420; bytes += 19 {
			var n atomic.Int64
			peer.Intercept(func(_ string, w http.ResponseWriter, r *http.Request, next http.Handler) {
				if strings.HasSuffix(r.URL.Path, "/Start") && n.Add(1) == call {
					next.ServeHTTP(&cutter{ResponseWriter: w, left: -1, bytes: bytes}, r)
					return
				}
				next.ServeHTTP(w, r)
			})
			file := "cut-" + newRunID()
			res, err := s.Run(t.Context(), sandboxcore.RunRequest{Kind: sandboxcore.RunScript, Text: []byte("echo x >>" + file + "; echo out; echo err >&2; exit 4"), Timeout: 20 * time.Second, Grace: 100 * time.Millisecond}, io.Discard, io.Discard)
			peer.Intercept(nil)
			text, _, rerr := s.ReadFile(t.Context(), file, 100)
			switch {
			case rerr != nil || string(text) != "x\n":
				t.Errorf("call %d cut after %d bytes: ran as %q, %v", call, bytes, text, rerr)
			case err == nil && res.ExitCode != 4:
				t.Errorf("call %d cut after %d bytes: exit %d", call, bytes, res.ExitCode)
			case err != nil && !sandboxcore.IsCode(err, sandboxcore.CodeUnknownOutcome):
				t.Errorf("call %d cut after %d bytes: %v", call, bytes, err)
			case err == nil && call == 1 && bytes < 200:
				t.Errorf("cut after %d bytes, and yet an end", bytes)
			}
		}
	}
}

// cutter ends a connection after a number of messages, or with left < 0 of bytes.
type cutter struct {
	http.ResponseWriter
	left, bytes int
}

func (c *cutter) Unwrap() http.ResponseWriter { return c.ResponseWriter }

func (c *cutter) Flush() { _ = http.NewResponseController(c.ResponseWriter).Flush() }

func (c *cutter) Write(p []byte) (int, error) {
	if c.left < 0 && len(p) > c.bytes {
		_, _ = c.ResponseWriter.Write(p[:c.bytes])
		c.left = 0
	}
	if c.left == 0 {
		c.Flush()
		panic(http.ErrAbortHandler)
	}
	c.bytes -= len(p)
	c.left--
	return c.ResponseWriter.Write(p)
}

func encodeCertificate(w io.Writer, c tls.Certificate) error {
	return pem.Encode(w, &pem.Block{Type: "CERTIFICATE", Bytes: c.Certificate[0]})
}
