//go:build linux

package e2b

import (
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/e2bpeer"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// TestPlace: where the address and the key come from, and that a key of the environment meets no server of the
// configuration.
func TestPlace(t *testing.T) {
	env := map[string]string{"E2B_API_KEY": "env-key"}
	with := func(more ...string) map[string]string {
		out := map[string]string{}
		maps.Copy(out, env)
		for i := 0; i < len(more); i += 2 {
			out[more[i]] = more[i+1]
		}
		return out
	}
	for name, c := range map[string]struct {
		settings     sandboxcore.Settings
		env          map[string]string
		api, key     string
		domain, fail string
	}{
		"nothing":                        {nil, nil, "https://api.e2b.app", "", "e2b.app", ""},
		"key of the environment":         {nil, env, "https://api.e2b.app", "env-key", "e2b.app", ""},
		"domain of the environment":      {nil, with("E2B_DOMAIN", "e2b.example.org"), "https://api.e2b.example.org", "env-key", "e2b.example.org", ""},
		"API of the environment":         {nil, with("E2B_API_URL", "https://api.one.example:8443/x/"), "https://api.one.example:8443/x", "env-key", "one.example", ""},
		"domain of the configuration":    {sandboxcore.Settings{keyDomain: "two.example"}, with("E2B_API_URL", "https://api.one.example"), "https://api.two.example", "", "two.example", ""},
		"API of the configuration":       {sandboxcore.Settings{keyAPIURL: "https://api.two.example"}, env, "https://api.two.example", "", "two.example", ""},
		"sandbox URL alone":              {sandboxcore.Settings{keySandboxURL: "https://gw.two.example"}, env, "https://api.e2b.app", "", "e2b.app", ""},
		"both of the configuration":      {sandboxcore.Settings{keyAPIURL: "https://api.two.example", keyAPIKey: "own"}, env, "https://api.two.example", "own", "two.example", ""},
		"key alone of the configuration": {sandboxcore.Settings{keyAPIKey: "own"}, with("E2B_DOMAIN", "e2b.example.org"), "https://api.e2b.example.org", "own", "e2b.example.org", ""},
		"plain http":                     {sandboxcore.Settings{keyAPIURL: "http://two.example"}, nil, "", "", "", "not encrypted"},
		"plain http on loopback":         {sandboxcore.Settings{keyAPIURL: "http://127.0.0.1:3000"}, nil, "http://127.0.0.1:3000", "", "127.0.0.1", ""},
		"plain http, allowed":            {sandboxcore.Settings{keyAPIURL: "http://two.example", keyAllowHTTP: true}, nil, "http://two.example", "", "two.example", ""},
		"plain http of the environment":  {nil, with("E2B_API_URL", "http://two.example"), "", "", "", "not encrypted"},
		"no address":                     {nil, with("E2B_API_URL", "two.example"), "", "", "", "no plain http"},
		"a password in it":               {nil, with("E2B_API_URL", "https://u:geheim@two.example"), "", "", "", "no plain http"},
		"no certificate":                 {sandboxcore.Settings{keyCACertificate: "x"}, nil, "", "", "", "PEM"},
	} {
		p, err := readPlace(c.settings, func(k string) string { return c.env[k] })
		if c.fail != "" {
			if err == nil || !strings.Contains(err.Error(), c.fail) || strings.Contains(err.Error(), "geheim") {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if p.API.String() != c.api || p.Key != c.key || p.Domain != c.domain {
			t.Errorf("%s: %s, key %q, domain %s", name, p.API, p.Key, p.Domain)
		}
	}
}

// TestRoute: a host that an answer names gets a token only if it was configured.
func TestRoute(t *testing.T) {
	place := func(s sandboxcore.Settings) *Place {
		p, err := readPlace(s, noEnvironment)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	own := place(nil)
	self := place(sandboxcore.Settings{keyDomain: "cube.example", keyAllowedDomains: []any{"other.example"}})
	byPath := place(sandboxcore.Settings{keyDomain: "cube.example", keySandboxURL: "https://gw.cube.example/box/{sandbox_id}/{port}"})
	byHeader := place(sandboxcore.Settings{keyDomain: "cube.example", keySandboxURL: "https://gw.cube.example"})
	for _, c := range []struct {
		place           *Place
		domain, envdURL string
		want            string // empty: refused
		header          bool
	}{
		{own, "", "", "https://sandbox.e2b.app", true},
		{own, "e2b.app", "", "https://sandbox.e2b.app", true},
		{own, "eu.e2b.app", "", "https://sandbox.eu.e2b.app", true},
		{own, "evil.example", "", "", false},
		{own, "e2b.app.evil.example", "", "", false},
		{own, "xe2b.app", "", "", false},
		{own, "evil.example/.e2b.app", "", "", false},
		{own, "u@evil.example?.e2b.app", "", "", false},
		{own, "evil.example#.e2b.app", "", "", false},
		{self, "", "", "https://49983-id1.cube.example", false},
		{self, "node7.cube.example", "", "https://49983-id1.node7.cube.example", false},
		{self, "a.other.example", "", "https://49983-id1.a.other.example", false},
		{self, "", "https://envd.cube.example:9000/x", "https://envd.cube.example:9000/x", false},
		{self, "", "http://envd.cube.example", "", false},
		{self, "", "https://evil.example/envd.cube.example", "", false},
		{self, "", "https://u:p@envd.cube.example", "", false},
		{self, "", "envd.cube.example", "", false},
		{byPath, "", "", "https://gw.cube.example/box/id1/49983", false},
		{byPath, "evil.example", "", "", false},
		{byHeader, "", "", "https://gw.cube.example", true},
	} {
		r, err := c.place.routeTo("id1", c.domain, c.envdURL, portEnvd)
		if c.want == "" {
			if err == nil {
				t.Errorf("%q %q leads to %s", c.domain, c.envdURL, r.base)
			} else {
				wantError(t, err, sandboxcore.CodeUnreachable)
			}
			continue
		}
		if err != nil || r.base.String() != c.want || (r.sandbox == "id1") != c.header {
			t.Errorf("%q %q: %v, %v", c.domain, c.envdURL, r, err)
		}
	}
}

// recorder keeps the requests that every host saw.
type recorder struct {
	mu   sync.Mutex
	seen map[string][]http.Header
}

func (r *recorder) server(t *testing.T, serve http.HandlerFunc) *httptest.Server {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		r.mu.Lock()
		r.seen[req.Host] = append(r.seen[req.Host], req.Header.Clone())
		r.mu.Unlock()
		serve(w, req)
	}))
	t.Cleanup(s.Close)
	return s
}

// TestKeyIsolation: each host sees its own credential and no other, redirects included.
func TestKeyIsolation(t *testing.T) {
	rec := &recorder{seen: map[string][]http.Header{}}
	stranger := rec.server(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "[]") })
	redirecting := rec.server(t, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, stranger.URL+r.URL.Path, http.StatusTemporaryRedirect)
	})
	peers := []*e2bpeer.Peer{newPeer(t, e2bpeer.Options{Key: "key-of-the-first"}), newPeer(t, e2bpeer.Options{Key: "key-of-the-second", Bearer: true})}
	for i, p := range peers {
		s := provider(p)
		if i == 1 {
			s[keyAuth] = authBearer
		}
		box := create(t, dial(t, s), profile())
		if _, err := box.Run(t.Context(), sandboxcore.RunRequest{Kind: sandboxcore.RunCommand, Argv: []string{"true"}, Timeout: 20e9}, io.Discard, io.Discard); err != nil {
			t.Fatal(err)
		}
		if _, _, err := box.ReadFile(t.Context(), "/etc/passwd", 1<<20); err != nil {
			t.Fatal(err)
		}
	}
	for i, p := range peers {
		other := peers[1-i].Key()
		for _, r := range p.Requests() {
			for k, vs := range r.Header {
				for _, v := range vs {
					switch {
					case strings.Contains(v, other):
						t.Errorf("server %d got the other's key in %s", i, k)
					case strings.Contains(v, p.Key()) && r.Plane == "sandbox":
						t.Errorf("a sandbox got the API key in %s", k)
					}
				}
			}
			if r.Plane == "api" && r.Header.Get("X-Access-Token") != "" {
				t.Error("the API got a sandbox's token")
			}
			if strings.Contains(r.Query, p.Key()) || strings.Contains(r.Path, p.Key()) {
				t.Error("a key in an address")
			}
		}
	}
	// A redirect of the API, and one of a sandbox.
	s := sandboxcore.Settings{keyAPIKey: "key-of-the-third", keyAPIURL: redirecting.URL}
	if _, err := dial(t, s).List(t.Context()); err == nil {
		t.Error("a redirect was followed")
	} else {
		wantError(t, err, sandboxcore.CodeUnreachable)
	}
	s = provider(peers[0])
	s[keySandboxURL] = redirecting.URL
	e := dial(t, s, quick)
	box := create(t, e, profile())
	if _, err := box.Run(t.Context(), sandboxcore.RunRequest{Kind: sandboxcore.RunCommand, Argv: []string{"true"}, Timeout: 5e9}, io.Discard, io.Discard); err == nil {
		t.Error("a redirect was followed")
	}
	rec.mu.Lock()
	defer rec.mu.Unlock()
	if seen := rec.seen[strings.TrimPrefix(stranger.URL, "http://")]; len(seen) > 0 {
		t.Errorf("the stranger saw %v", seen)
	}
}

// TestRefreshOfMany: a refresh of 200 sandboxes costs one list, by pages, and a miss one look of its own.
func TestRefreshOfMany(t *testing.T) {
	peer := newPeer(t, e2bpeer.Options{Plain: true})
	e := dial(t, provider(peer))
	var ids []string
	for range 200 {
		ids = append(ids, create(t, e, profile()).info.NativeID)
	}
	if _, err := peer.AddForeign(); err != nil {
		t.Fatal(err)
	}
	peer.Forget()
	e = dial(t, provider(peer)) // as a refresh of another process
	var wg sync.WaitGroup
	gate := make(chan struct{}, 10)
	for _, id := range ids {
		wg.Go(func() {
			gate <- struct{}{}
			defer func() { <-gate }()
			if _, err := e.Find(t.Context(), id, false); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := len(peer.Requests()); n != 2 {
		t.Errorf("%d requests for 200 sandboxes, want 2 pages", n)
	}
	peer.Kill(ids[7])
	peer.Forget()
	e.listing.drop()
	_, err := e.Find(t.Context(), ids[7], false)
	wantError(t, err, sandboxcore.CodeGone)
	if n := len(peer.Requests()); n != 3 {
		t.Errorf("%d requests for a miss, want 2 pages and one look", n)
	}
	list, err := e.List(t.Context())
	if err != nil || len(list) != 199 {
		t.Errorf("%d, %v", len(list), err)
	}
	// A list that leads nowhere ends with an error, not with half of it.
	peer.Intercept(func(_ string, w http.ResponseWriter, r *http.Request, next http.Handler) {
		w.Header().Set("X-Next-Token", "again")
		_, _ = io.WriteString(w, "[]")
	})
	if _, err := e.List(t.Context()); err == nil {
		t.Error("an endless list was taken for a list")
	}
}

// TestCompatibles: servers that lack a call or do not keep a promise.
func TestCompatibles(t *testing.T) {
	open := set(keyAllowPublicTraffic, true)
	t.Run("only v1", func(t *testing.T) {
		create(t, dial(t, provider(newPeer(t, e2bpeer.Options{Plain: true, NoV2: true}))), profile())
	})
	t.Run("only v2", func(t *testing.T) {
		create(t, dial(t, provider(newPeer(t, e2bpeer.Options{Plain: true, NoV1: true}))), profile())
	})
	t.Run("a version that is set is the only one", func(t *testing.T) {
		s := provider(newPeer(t, e2bpeer.Options{Plain: true, NoV1: true}))
		s[keyAPIVersion] = version1
		_, err := dial(t, s).Create(t.Context(), request(t, profile()), nil)
		wantError(t, err, sandboxcore.CodeProvision)
	})
	t.Run("secure that is not kept", func(t *testing.T) {
		peer := newPeer(t, e2bpeer.Options{Plain: true})
		peer.WithoutTokens(true)
		e := dial(t, provider(peer))
		for _, change := range [][]func(*sandboxcore.Profile){{open}, nil} {
			_, err := e.Create(t.Context(), request(t, profile(change...)), nil)
			wantError(t, err, sandboxcore.CodeProvision)
			if n := len(peer.States()); n != 0 {
				t.Errorf("%d left", n)
			}
		}
		create(t, e, profile(open, set(keySecure, false)))
	})
	t.Run("a host of somebody else", func(t *testing.T) {
		peer := newPeer(t, e2bpeer.Options{Plain: true})
		s := provider(peer)
		delete(s, keySandboxURL)
		peer.Tamper(func(d map[string]any) { d["domain"] = "evil.example" })
		box := create(t, dial(t, s), profile())
		_, err := box.Run(t.Context(), sandboxcore.RunRequest{Kind: sandboxcore.RunCommand, Argv: []string{"true"}, Timeout: 5e9}, io.Discard, io.Discard)
		wantError(t, err, sandboxcore.CodeUnreachable)
		if !strings.Contains(err.Error(), "evil.example") {
			t.Error(err)
		}
	})
	t.Run("a daemon that cannot end input", func(t *testing.T) {
		box := create(t, dial(t, provider(newPeer(t, e2bpeer.Options{Plain: true, EnvdVersion: "0.5.1"}))), profile())
		_, err := box.Run(t.Context(), sandboxcore.RunRequest{Kind: sandboxcore.RunCommand, Argv: []string{"cat"}, Stdin: []byte("x"), Timeout: 5e9}, io.Discard, io.Discard)
		wantError(t, err, sandboxcore.CodeOperation)
	})
	t.Run("a sandbox without limits that cannot be read back", func(t *testing.T) {
		peer := newPeer(t, e2bpeer.Options{Plain: true})
		peer.Intercept(func(_ string, w http.ResponseWriter, r *http.Request, next http.Handler) {
			if r.Method == http.MethodGet {
				w.WriteHeader(http.StatusInternalServerError)
				return
			}
			next.ServeHTTP(w, r)
		})
		s := create(t, dial(t, provider(peer), quick), profile())
		if s.info.ExpiresAt.IsZero() || len(peer.States()) != 1 {
			t.Errorf("%v, %v", s.info.ExpiresAt, peer.States())
		}
	})
	t.Run("no key", func(t *testing.T) {
		peer := newPeer(t, e2bpeer.Options{Plain: true})
		s := provider(peer)
		delete(s, keyAPIKey)
		_, err := dial(t, s).Create(t.Context(), request(t, profile()), nil)
		wantError(t, err, sandboxcore.CodeUnreachable)
		if n := len(peer.Requests()); n != 0 {
			t.Errorf("%d requests without a key", n)
		}
	})
}

// TestValidate: what is refused before anything is created.
func TestValidate(t *testing.T) {
	b := newBackend(&Place{Kind: sandboxcore.BackendE2B})
	allow := func(entries ...string) func(*sandboxcore.Profile) {
		return func(p *sandboxcore.Profile) {
			p.Policy.NetworkEgress, p.Policy.NetworkAllow = sandboxcore.NetworkAllowlist, entries
		}
	}
	for name, c := range map[string]struct {
		change func(*sandboxcore.Profile)
		code   sandboxcore.Code // empty: fine
	}{
		"defaults":             {func(*sandboxcore.Profile) {}, ""},
		"insecure but closed":  {set(keySecure, false), sandboxcore.CodeValue},
		"resume without pause": {func(p *sandboxcore.Profile) { p.Settings[keyAutoPause], p.Settings[keyAutoResume] = false, true }, sandboxcore.CodeValue},
		"host-mount":           {set(keyMetadata, map[string]any{"host-mount": "[]"}), sandboxcore.CodeValue},
		"host-mount, allowed": {func(p *sandboxcore.Profile) {
			p.Settings = sandboxcore.Settings{keyMetadata: map[string]any{"host-mount": "[]"}, keyAllowHostMount: true}
		}, ""},
		"our own prefix":           {set(keyMetadata, map[string]any{"agentkernel.io/spec": "x"}), sandboxcore.CodeValue},
		"domain and network":       {allow("example.org", "*.example.org", "198.51.100.0/24"), ""},
		"IPv6":                     {allow("2001:db8::/32"), sandboxcore.CodeAllowEntry},
		"everything":               {allow("0.0.0.0/0"), sandboxcore.CodeAllowEntry},
		"a range that never opens": {allow("10.1.0.0/16"), sandboxcore.CodeAllowEntry},
		"link-local":               {allow("169.254.169.254/32"), sandboxcore.CodeAllowEntry},
	} {
		got := b.Validate(profile(c.change))
		if c.code == "" && len(got) > 0 || c.code != "" && (len(got) != 1 || got[0].Code != c.code || got[0].Attribute == nil) {
			t.Errorf("%s: %v", name, sandboxcore.Violations(got))
		}
	}
}

func TestVersionsAndSignals(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want int
	}{{"0.6.13", "0.5.2", 1}, {"0.5.2", "0.5.2", 0}, {"0.5.11", "0.5.2", 1}, {"v1.0", "0.9.9", 1}, {"", "0.5.2", -1}, {"dev", "0.5.2", -1}, {"0.5.2-rc1", "0.5.2", 0}} {
		if got := compareVersions(c.a, c.b); (got > 0) != (c.want > 0) || (got < 0) != (c.want < 0) {
			t.Errorf("%q against %q: %d", c.a, c.b, got)
		}
	}
	for s, want := range map[string]int{"signal: killed": 9, "signal: terminated": 15, "signal: segmentation fault (core dumped)": 11, "signal: signal 34": 34, "exit status 3": 0, "signal: of the times": 0} {
		if got := signalOf(s); got != want {
			t.Errorf("%q: %d", s, got)
		}
	}
}

// FuzzMarkFilter: what the program wrote arrives whole, however it was cut.
func FuzzMarkFilter(f *testing.F) {
	f.Add([]byte("agentkernel-run:abc"), uint8(3))
	f.Add([]byte("hello"), uint8(1))
	f.Add([]byte("agentkernel-run:x:chdir\n"), uint8(5))
	f.Add([]byte("agentkernel-run:x:chdir\nmore"), uint8(2))
	f.Fuzz(func(t *testing.T, text []byte, piece uint8) {
		var out strings.Builder
		m := &markFilter{out: &out, prefix: "agentkernel-run:x:"}
		for p := range slices.Chunk(text, max(int(piece), 1)) {
			_, _ = m.Write(p)
		}
		word, marked := m.found()
		if want := m.prefix + word + "\n"; marked && (out.Len() > 0 || string(text) != want) {
			t.Errorf("%q was taken for %q", text, want)
		}
		for _, w := range markWords {
			if string(text) == m.prefix+w+"\n" && !marked {
				t.Errorf("%q was not known", text)
			}
		}
		if m.flush(); out.String() != string(text) {
			t.Errorf("%q came as %q", text, out.String())
		}
	})
}
