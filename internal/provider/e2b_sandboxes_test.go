//go:build linux

package provider_test

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/e2bpeer"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/protocoltest"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/testenv"
)

// newLifetime starts a peer and a sandbox on it.
func newLifetime(t *testing.T, opt e2bpeer.Options) *lifetime {
	t.Helper()
	if !opt.Plain {
		testenv.Require(t, testenv.Local)
	}
	clock := &serverClock{now: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)}
	opt.Now = clock.Now
	peer, err := e2bpeer.Start(context.WithoutCancel(t.Context()), opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := peer.Close(); err != nil {
			t.Error(err)
		}
	})
	l := &lifetime{t: t, peer: peer, clock: clock, began: clock.Now(), block: config{}, idle: 1800}
	l.cfg = config{"profile": l.spec(config{})}
	return l
}

// TestE2BMeasurements: what sandboxes use stands in the details when it is asked for, at a server that tells all at once,
// at one that tells one by one, and nothing at one that does not tell; an end time stands there always.
func TestE2BMeasurements(t *testing.T) {
	broken := func(_ string, w http.ResponseWriter, r *http.Request, next http.Handler) {
		if strings.HasSuffix(r.URL.Path, "/metrics") {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		next.ServeHTTP(w, r)
	}
	html := func(_ string, w http.ResponseWriter, r *http.Request, next http.Handler) {
		if strings.HasSuffix(r.URL.Path, "/metrics") {
			_, _ = w.Write([]byte("<html>"))
			return
		}
		next.ServeHTTP(w, r)
	}
	for name, c := range map[string]struct {
		opt       e2bpeer.Options
		intercept func(string, http.ResponseWriter, *http.Request, http.Handler)
		metrics   bool
		requests  int // beside the list
	}{
		"all at once":    {e2bpeer.Options{}, nil, true, 1},
		"one by one":     {e2bpeer.Options{NoBatchMetrics: true}, nil, true, 3},
		"not asked":      {e2bpeer.Options{}, nil, false, 0},
		"a server error": {e2bpeer.Options{Plain: true}, broken, false, 2},
		"no JSON":        {e2bpeer.Options{Plain: true}, html, false, 2},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLifetime(t, c.opt)
			for range 2 {
				l.state = protocoltest.State{}
				l.apply()
			}
			l.peer.Intercept(c.intercept)
			l.peer.Forget()
			cfg := config{"backend": "e2b"}
			if c.requests > 0 {
				cfg["metrics"] = true
			}
			data, d := l.server().ReadData(tSandboxes, cfg)
			noErrors(t, d)
			l.peer.Intercept(nil)
			found, _ := data.Get("sandboxes").([]any)
			if len(found) != 2 {
				t.Fatalf("%s", data.JSON())
			}
			for _, f := range found {
				box, _ := f.(map[string]any)
				details, _ := box["details"].(map[string]any)
				if end := l.began.Add(30 * time.Minute).Format(time.RFC3339); box["expires_at"] != end || details["template"] != "base" {
					t.Errorf("%v, %v", box["expires_at"], details)
				}
				used, measured := details["memory_used_bytes"].(string)
				if measured != c.metrics || measured && (used == "" || strings.Trim(used, "0123456789") != "") || measured && details["disk_total_bytes"] != "8589934592" {
					t.Errorf("details %v", details)
				}
			}
			n := 0
			for _, r := range l.peer.Requests() {
				if strings.HasSuffix(r.Path, "/metrics") {
					n++
				}
			}
			if n != c.requests {
				t.Errorf("%d requests for measurements, want %d", n, c.requests)
			}
		})
	}
}

// TestE2BImportAfterUpdate: the marks of a sandbox cannot change, but an import takes over the network policy that holds.
func TestE2BImportAfterUpdate(t *testing.T) {
	for _, policy := range []config{
		{"network_egress": "deny"},
		{"network_egress": "allowlist", "network_allow": []string{"example.org", "192.0.2.0/24"}},
		{"network_egress": "allowlist", "network_allow": []string{"192.0.2.7"}},
	} {
		l := newLifetime(t, e2bpeer.Options{Plain: true})
		l.apply()
		open := l.cfg
		for _, spec := range []config{open.With(config{"profile": l.spec(policy)}), open} { // there and back
			l.cfg = spec
			l.apply()
			s := l.server()
			imported, d := s.Import(tSandbox, "e2b/"+l.id())
			noErrors(t, d)
			if imported.Get("profile") != l.state.Get("profile") {
				t.Errorf("imported as\n%v, want\n%v", imported.Get("profile"), l.state.Get("profile"))
			}
			if p := s.Plan(tSandbox, imported, l.cfg); p.Action != protocoltest.NoOp {
				t.Errorf("the plan after the import: %s", p.Action)
			}
		}
	}
}
