//go:build linux

package provider_test

import (
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/backends"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/e2bpeer"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/protocoltest"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/provider"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/testenv"
)

// serverClock is the clock of a server that only a test moves.
type serverClock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *serverClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *serverClock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// lifetime is one sandbox at a server with a clock of its own. Each step is a provider process of its own, as with
// Terraform: nothing is remembered but the state.
type lifetime struct {
	t     *testing.T
	peer  *e2bpeer.Peer
	clock *serverClock
	began time.Time
	cfg   config // of the sandbox
	state protocoltest.State
	block config // of the profile
	idle  int
}

func (l *lifetime) server() *protocoltest.Server {
	l.t.Helper()
	s := protocoltest.New(l.t, provider.New("test", backends.Registry(), provider.WithGetenv(func(string) string { return "" })))
	if d := s.Configure(config{"e2b": config{"api_key": l.peer.Key(), "api_url": l.peer.APIURL(), "sandbox_url": l.peer.SandboxURL()}}); d.HasError() {
		l.t.Fatalf("configure: %s", d)
	}
	return s
}

// spec of the profile, with the policy given.
func (l *lifetime) spec(policy config) string {
	l.t.Helper()
	p := l.server().MustApply(tProfile, protocoltest.State{}, config{"name": "p", "type": "e2b", "e2b": l.block, "idle_timeout": l.idle, "policy": policy})
	spec, _ := p.Get("spec").(string)
	return spec
}

func (l *lifetime) id() string {
	id, _ := l.state.Get("native_id").(string)
	return id
}

// look refreshes and plans.
func (l *lifetime) look() protocoltest.Plan {
	l.t.Helper()
	s := l.server()
	state, d := s.Read(l.state)
	noErrors(l.t, d)
	if !state.Exists() && !d.Warnings().Has("Sandbox Gone") {
		l.t.Errorf("it is gone, and nobody is told: %s", d)
	}
	l.state = state
	p := s.Plan(tSandbox, state, l.cfg)
	noErrors(l.t, p.Diags)
	return p
}

// apply plans and applies.
func (l *lifetime) apply() {
	l.t.Helper()
	l.state = l.server().MustApply(tSandbox, l.state, l.cfg)
}

// run runs something in the sandbox, which takes no part in the plan of it.
func (l *lifetime) run() protocoltest.State {
	l.t.Helper()
	return l.server().MustApply(tExec, protocoltest.State{}, config{"binding": binding(l.state), "command": []string{"true"}})
}

// TestE2BLifetime: what plan and state show of a sandbox after time, or somebody, has done something to it; and that the
// plan after that is empty.
func TestE2BLifetime(t *testing.T) {
	testenv.Require(t, testenv.Local)
	type shown struct {
		status, desired string        // status "": gone
		expires         time.Duration // from the start
		plan            protocoltest.Action
	}
	alive := func(end time.Duration) shown { return shown{"running", "running", end, protocoltest.NoOp} }
	dormant := func(end time.Duration) shown { return shown{"paused", "running", end, protocoltest.NoOp} }
	gone := shown{plan: protocoltest.Create}
	const half = 30 * time.Minute
	deny := config{"network_egress": "deny"}
	for _, c := range []struct {
		name    string
		block   config
		idle    int // 0: 1800
		happens func(l *lifetime)
		want    shown
		then    shown // after one more apply
	}{
		{"nothing", nil, 0, func(*lifetime) {}, alive(half), alive(half)},
		{"expiry while Terraform is away", nil, 0, func(l *lifetime) { l.clock.advance(31 * time.Minute) }, dormant(half), dormant(half)},
		{"a week away", nil, 0, func(l *lifetime) { l.clock.advance(7 * 24 * time.Hour) }, dormant(half), dormant(half)},
		{"expiry that ends it", config{"auto_pause": false}, 0, func(l *lifetime) { l.clock.advance(31 * time.Minute) }, gone, alive(31*time.Minute + half)},
		{"a time of its own", nil, 5400, func(l *lifetime) { l.clock.advance(80 * time.Minute) }, alive(90 * time.Minute), alive(90 * time.Minute)},
		{"renewal by a run", nil, 0, func(l *lifetime) {
			l.clock.advance(20 * time.Minute)
			l.run()
			l.clock.advance(20 * time.Minute)
		}, alive(50 * time.Minute), alive(50 * time.Minute)},
		{"no renewal by a look", nil, 0, func(l *lifetime) {
			l.clock.advance(20 * time.Minute)
			l.look()
			l.clock.advance(20 * time.Minute)
		}, dormant(half), dormant(half)},
		{"renewal by a look, as configured", config{"renew_on_refresh": true}, 0, func(l *lifetime) {
			l.clock.advance(20 * time.Minute)
			l.look()
			l.clock.advance(20 * time.Minute)
		}, alive(70 * time.Minute), alive(70 * time.Minute)},
		{"a run wakes what slept", nil, 0, func(l *lifetime) {
			l.clock.advance(2 * time.Hour)
			if notice, _ := l.run().Get("notice").(string); !strings.Contains(notice, "woken") {
				l.t.Errorf("the notice says %q", notice)
			}
		}, alive(2*time.Hour + half), alive(2*time.Hour + half)},
		{"a change in place wakes what slept", nil, 0, func(l *lifetime) {
			l.clock.advance(time.Hour)
			l.cfg = l.cfg.With(config{"profile": l.spec(deny)})
			p := l.look()
			if p.Action != protocoltest.Update || p.Get("status") != "running" || strings.HasPrefix(asText(p.Get("expires_at")), "20") {
				l.t.Errorf("planned: %s %s", p.Action, p.JSON())
			}
			l.apply()
		}, alive(time.Hour + half), alive(time.Hour + half)},
		{"a change in place of what runs", nil, 0, func(l *lifetime) {
			l.clock.advance(10 * time.Minute)
			l.cfg = l.cfg.With(config{"profile": l.spec(deny)})
			l.apply()
		}, alive(half), alive(half)},
		{"paused as it was asked for", nil, 0, func(l *lifetime) {
			l.cfg = l.cfg.With(config{"desired_state": "paused"})
			l.apply()
		}, shown{"paused", "paused", half, protocoltest.NoOp}, shown{"paused", "paused", half, protocoltest.NoOp}},
		{"paused, and its time is over", nil, 0, func(l *lifetime) {
			l.cfg = l.cfg.With(config{"desired_state": "paused"})
			l.apply()
			l.clock.advance(5 * time.Hour)
		}, shown{"paused", "paused", half, protocoltest.NoOp}, shown{"paused", "paused", half, protocoltest.NoOp}},
		{"paused and resumed", nil, 0, func(l *lifetime) {
			l.cfg = l.cfg.With(config{"desired_state": "paused"})
			l.apply()
			l.clock.advance(5 * time.Hour)
			l.cfg = l.cfg.With(config{"desired_state": "running"})
			l.apply()
		}, alive(5*time.Hour + half), alive(5*time.Hour + half)},
		{"paused elsewhere", nil, 0, func(l *lifetime) { l.peer.Pause(l.id()) }, shown{"paused", "paused", half, protocoltest.Update}, alive(half)},
		{"resumed elsewhere", nil, 0, func(l *lifetime) {
			l.cfg = l.cfg.With(config{"desired_state": "paused"})
			l.apply()
			l.clock.advance(time.Minute)
			l.peer.Resume(l.id(), time.Hour)
		}, shown{"running", "running", 61 * time.Minute, protocoltest.Update}, shown{"paused", "paused", 61 * time.Minute, protocoltest.NoOp}},
		{"killed elsewhere", nil, 0, func(l *lifetime) { l.peer.Kill(l.id()) }, gone, alive(half)},
		{"killed elsewhere while it slept", nil, 0, func(l *lifetime) {
			l.clock.advance(time.Hour)
			l.look()
			l.peer.Kill(l.id())
		}, gone, alive(time.Hour + half)},
		{"vanished between plan and apply", nil, 0, func(l *lifetime) {
			s := l.server()
			p := s.Plan(tSandbox, l.state, l.cfg.With(config{"desired_state": "paused"}))
			l.peer.Kill(l.id())
			_, d := s.Apply(p)
			wantError(l.t, d, "AK5002")
			run := s.Plan(tExec, protocoltest.State{}, config{"binding": binding(l.state), "command": []string{"true"}})
			left, d := s.Apply(run)
			wantError(l.t, d, "AK5002")
			if left.Exists() {
				l.t.Errorf("a run that never was: %s", left.JSON())
			}
		}, gone, alive(half)},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := newLifetime(t, e2bpeer.Options{})
			l.block = config{}.With(c.block)
			if c.idle != 0 {
				l.idle = c.idle
			}
			l.cfg = config{"profile": l.spec(config{})}
			l.apply()
			c.happens(l)
			for i, want := range []shown{c.want, c.then} {
				p := l.look()
				if p.Action != want.plan {
					t.Errorf("look %d: planned %s, want %s\nstate %s\nplan  %s", i, p.Action, want.plan, l.state.JSON(), p.JSON())
				}
				if want.status == "" {
					if l.state.Exists() {
						t.Errorf("look %d: still there: %s", i, l.state.JSON())
					}
				} else {
					end := l.began.Add(want.expires).Format(time.RFC3339)
					if l.state.Get("status") != want.status || l.state.Get("desired_state") != want.desired || l.state.Get("expires_at") != end {
						t.Errorf("look %d: %v, %v, %v, want %s, %s, %s", i, l.state.Get("status"), l.state.Get("desired_state"), l.state.Get("expires_at"), want.status, want.desired, end)
					}
				}
				if i == 0 {
					l.apply()
				}
			}
			if got := l.look(); got.Action != protocoltest.NoOp {
				t.Errorf("the last plan is not empty: %s", got.Action)
			}
			if _, d := l.server().Apply(l.server().PlanDestroy(l.state)); d.HasError() || len(l.peer.States()) != 0 {
				t.Errorf("destroyed: %s, left %v", d, l.peer.States())
			}
		})
	}
}

func asText(v any) string {
	s, _ := v.(string)
	return s
}

// TestE2BLifetimeCap: a time beyond the plan of the team is told on the attribute that it is about, and nothing is left.
func TestE2BLifetimeCap(t *testing.T) {
	l := newLifetime(t, e2bpeer.Options{Plain: true, MaxLifetime: time.Hour})
	l.idle = 2 * 3600
	s := l.server()
	p := s.Plan(tSandbox, protocoltest.State{}, config{"profile": l.spec(config{})})
	noErrors(t, p.Diags)
	state, d := s.Apply(p)
	wantError(t, d, "AK2006", "idle_timeout", "1 hour")
	if state.Exists() || len(l.peer.States()) != 0 {
		t.Errorf("left: %s %v", state.JSON(), l.peer.States())
	}
	// One that the backend could never promise is refused in the plan.
	l.idle = 1800
	refused := s.Plan(tSandbox, protocoltest.State{}, config{"profile": l.spec(config{}), "max_lifetime": "10m"})
	wantError(t, refused.Diags, "AK2006", "max_lifetime")
}

// TestE2BTimeOverDuringAnUpdate: the time of a sandbox may be over between the change and the look at it. The update keeps
// what it promised, and the next look tells.
func TestE2BTimeOverDuringAnUpdate(t *testing.T) {
	l := newLifetime(t, e2bpeer.Options{Plain: true})
	l.cfg = config{"profile": l.spec(config{})}
	l.apply()
	id := l.id()
	l.cfg = config{"profile": l.spec(config{"network_egress": "deny"})}
	var looks atomic.Int64
	l.peer.Intercept(func(_ string, w http.ResponseWriter, r *http.Request, next http.Handler) {
		next.ServeHTTP(w, r)
		if r.Method == http.MethodPut {
			looks.Store(1)
		}
		if r.Method == http.MethodGet && looks.Load() > 0 && looks.Add(1) == 2 { // the change was read back
			l.clock.advance(time.Hour)
		}
	})
	l.apply()
	l.peer.Intercept(nil)
	if l.id() != id || l.state.Get("status") != "running" || l.peer.States()[id] != "paused" {
		t.Errorf("after the update: %s, %v", l.state.JSON(), l.peer.States())
	}
	if p := l.look(); p.Action != protocoltest.NoOp || l.state.Get("status") != "paused" || l.state.Get("desired_state") != "running" {
		t.Errorf("planned %s: %s", p.Action, l.state.JSON())
	}
}
