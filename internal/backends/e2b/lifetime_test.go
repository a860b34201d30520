//go:build linux

package e2b

import (
	"context"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/e2bpeer"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// clock is a clock that only tests move. Waiting moves it, too.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func newClock() *clock { return &clock{now: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)} }

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

func (c *clock) wait(ctx context.Context, d time.Duration) error {
	c.advance(d)
	return ctx.Err()
}

func (c *clock) drive(b *backend) { b.now, b.times.wait = c.Now, c.wait }

func minutes(n float64) func(*sandboxcore.Profile) {
	return func(p *sandboxcore.Profile) { p.IdleTimeout = n * 60 }
}

func set(key string, value any) func(*sandboxcore.Profile) {
	return func(p *sandboxcore.Profile) { p.Settings[key] = value }
}

// TestLifetime: what Terraform sees of a sandbox after time, or somebody else, has done something to it.
func TestLifetime(t *testing.T) {
	type look struct {
		status  sandboxcore.Status // "": gone
		dormant bool
		desired sandboxcore.Status // with "running" before
	}
	alive := look{sandboxcore.StatusRunning, false, sandboxcore.StatusRunning}
	dormant := look{sandboxcore.StatusPaused, true, sandboxcore.StatusRunning}
	paused := look{sandboxcore.StatusPaused, false, sandboxcore.StatusPaused}
	for _, c := range []struct {
		name    string
		change  []func(*sandboxcore.Profile)
		happens func(t *testing.T, peer *e2bpeer.Peer, k *clock, s *sandbox)
		want    look
		expires time.Duration // from the start; 0: not looked at
	}{
		{"nothing yet", nil, func(*testing.T, *e2bpeer.Peer, *clock, *sandbox) {}, alive, 30 * time.Minute},
		{"a moment before its time is over", nil, func(_ *testing.T, _ *e2bpeer.Peer, k *clock, _ *sandbox) { k.advance(30*time.Minute - time.Second) }, alive, 30 * time.Minute},
		{"time over while Terraform was away", nil, func(_ *testing.T, _ *e2bpeer.Peer, k *clock, _ *sandbox) { k.advance(31 * time.Minute) }, dormant, 30 * time.Minute},
		{"a day later", nil, func(_ *testing.T, _ *e2bpeer.Peer, k *clock, _ *sandbox) { k.advance(24 * time.Hour) }, dormant, 30 * time.Minute},
		{
			"time over, without auto_pause",
			[]func(*sandboxcore.Profile){set(keyAutoPause, false)},
			func(_ *testing.T, _ *e2bpeer.Peer, k *clock, _ *sandbox) { k.advance(31 * time.Minute) },
			look{},
			0,
		},
		{"a time of its own", []func(*sandboxcore.Profile){minutes(90)}, func(_ *testing.T, _ *e2bpeer.Peer, k *clock, _ *sandbox) { k.advance(80 * time.Minute) }, alive, 90 * time.Minute},
		{"a fraction of a second is rounded up", []func(*sandboxcore.Profile){minutes(1.0 / 40)}, func(*testing.T, *e2bpeer.Peer, *clock, *sandbox) {}, alive, 2 * time.Second},
		{
			"renewed by use", nil, func(t *testing.T, _ *e2bpeer.Peer, k *clock, s *sandbox) {
				k.advance(20 * time.Minute)
				if _, err := s.wake(t.Context(), s.o.idle); err != nil {
					t.Fatal(err)
				}
				k.advance(20 * time.Minute)
			}, alive, 50 * time.Minute,
		},
		{
			"not renewed by a refresh", nil, func(t *testing.T, _ *e2bpeer.Peer, k *clock, s *sandbox) {
				k.advance(20 * time.Minute)
				if _, err := s.e.Find(t.Context(), s.info.NativeID, false); err != nil {
					t.Fatal(err)
				}
				k.advance(20 * time.Minute)
			}, dormant, 30 * time.Minute,
		},
		{
			"renewed by a refresh, as configured", []func(*sandboxcore.Profile){set(keyRenewOnRefresh, true)}, func(t *testing.T, _ *e2bpeer.Peer, k *clock, s *sandbox) {
				k.advance(20 * time.Minute)
				if _, err := s.e.Find(t.Context(), s.info.NativeID, false); err != nil {
					t.Fatal(err)
				}
				k.advance(20 * time.Minute)
			}, alive, 0, // the looks below renew it, too
		},
		{
			"a longer time, which a run needs, is not shortened by a refresh", []func(*sandboxcore.Profile){set(keyRenewOnRefresh, true)}, func(t *testing.T, _ *e2bpeer.Peer, _ *clock, s *sandbox) {
				if _, err := s.wake(t.Context(), 3*time.Hour); err != nil {
					t.Fatal(err)
				}
			}, alive, 3 * time.Hour,
		},
		{
			"paused on purpose", nil, func(t *testing.T, _ *e2bpeer.Peer, _ *clock, s *sandbox) {
				for range 2 {
					if err := s.Pause(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
			}, paused, 30 * time.Minute,
		},
		{"paused by somebody else", nil, func(_ *testing.T, peer *e2bpeer.Peer, _ *clock, s *sandbox) { peer.Pause(s.info.NativeID) }, paused, 30 * time.Minute},
		{
			"paused and resumed", nil, func(t *testing.T, _ *e2bpeer.Peer, k *clock, s *sandbox) {
				if err := s.Pause(t.Context()); err != nil {
					t.Fatal(err)
				}
				k.advance(10 * time.Minute)
				m, err := s.e.Find(t.Context(), s.info.NativeID, true)
				if err != nil {
					t.Fatal(err)
				}
				if err := m.Resume(t.Context()); err != nil {
					t.Fatal(err)
				}
			}, alive, 40 * time.Minute,
		},
		{
			"woken after its time", nil, func(t *testing.T, _ *e2bpeer.Peer, k *clock, s *sandbox) {
				k.advance(5 * time.Hour)
				m, err := s.e.Find(t.Context(), s.info.NativeID, true)
				if err != nil {
					t.Fatal(err)
				}
				if err := m.Resume(t.Context()); err != nil {
					t.Fatal(err)
				}
			}, alive, 5*time.Hour + 30*time.Minute,
		},
		{"killed elsewhere", nil, func(_ *testing.T, peer *e2bpeer.Peer, _ *clock, s *sandbox) { peer.Kill(s.info.NativeID) }, look{}, 0},
		{"killed elsewhere while dormant", nil, func(_ *testing.T, peer *e2bpeer.Peer, k *clock, s *sandbox) {
			k.advance(time.Hour)
			peer.States()
			peer.Kill(s.info.NativeID)
		}, look{}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			k := newClock()
			peer := newPeer(t, e2bpeer.Options{Plain: true, Now: k.Now})
			e := dial(t, provider(peer), k.drive)
			s := create(t, e, profile(c.change...))
			began := k.Now()
			c.happens(t, peer, k, s)
			for _, fresh := range []bool{true, false} {
				k.advance(0)
				m, err := e.Find(t.Context(), s.info.NativeID, fresh)
				if c.want.status == "" {
					wantError(t, err, sandboxcore.CodeGone)
					continue
				}
				if err != nil {
					t.Fatal(err)
				}
				i := m.Info()
				if got := (look{i.Status, i.Dormant, i.DesiredState(sandboxcore.StatusRunning)}); got != c.want {
					t.Errorf("fresh %v: %+v, want %+v", fresh, got, c.want)
				}
				if i.DesiredState(sandboxcore.StatusPaused) != sandboxcore.StatusPaused && i.Status == sandboxcore.StatusPaused {
					t.Error("a wanted pause would be planned again")
				}
				if want := began.Add(c.expires); c.expires != 0 && !i.ExpiresAt.Equal(want) {
					t.Errorf("fresh %v: expires at %s, want %s", fresh, i.ExpiresAt, want)
				}
			}
			// Whatever became of it, it can be destroyed, and twice.
			for range 2 {
				if err := s.Destroy(t.Context()); err != nil {
					t.Error(err)
				}
			}
			if n := len(peer.States()); n != 0 {
				t.Errorf("%d left", n)
			}
		})
	}
}

// TestAutoResume: traffic to a port wakes a sandbox that its time has paused only if the profile says so.
func TestAutoResume(t *testing.T) {
	for _, on := range []bool{false, true} {
		k := newClock()
		peer := newPeer(t, e2bpeer.Options{Now: k.Now})
		s := create(t, dial(t, provider(peer), func(b *backend) { b.now = k.Now }), profile(set(keyAutoResume, on), set(keyAllowPublicTraffic, true)))
		k.advance(time.Hour)
		if got := peer.States()[s.info.NativeID]; got != "paused" {
			t.Fatalf("its time is over, and it is %s", got)
		}
		d, err := s.daemon(s.o.user)
		if err != nil {
			t.Fatal(err)
		}
		_, err = d.stat(t.Context(), "/")
		if got := peer.States()[s.info.NativeID]; (got == "running") != on || (err == nil) != on {
			t.Errorf("auto_resume %v: %s, %v", on, got, err)
		}
	}
}

// TestLifetimeBeyondThePlan: the plan's limit is told with the attribute that it is about, at create and at a long run.
func TestLifetimeBeyondThePlan(t *testing.T) {
	peer := newPeer(t, e2bpeer.Options{Plain: true, MaxLifetime: time.Hour})
	e := dial(t, provider(peer))
	_, err := e.Create(t.Context(), request(t, profile(minutes(61))), func(sandboxcore.SandboxInfo) { t.Error("created") })
	wantError(t, err, sandboxcore.CodeLifetime)
	if at := sandboxcore.AllErrors(err, "")[0].Attribute; !slices.Equal(at, []string{"idle_timeout"}) {
		t.Errorf("blames %v", at)
	}
	s := create(t, e, profile())
	_, err = s.Run(t.Context(), sandboxcore.RunRequest{Kind: sandboxcore.RunScript, Text: []byte("true"), Timeout: 2 * time.Hour}, nil, nil)
	wantError(t, err, sandboxcore.CodeLifetime)
}

// TestLimits: the two kinds of 429 are told apart, and Retry-After is obeyed by the clock.
func TestLimits(t *testing.T) {
	k := newClock()
	peer := newPeer(t, e2bpeer.Options{Plain: true, Now: k.Now, MaxSandboxes: 1})
	e := dial(t, provider(peer), k.drive)
	create(t, e, profile())
	peer.Forget()
	_, err := e.Create(t.Context(), request(t, profile()), nil)
	wantError(t, err, sandboxcore.CodeProvision)
	if n := len(peer.Requests()); n != 1 {
		t.Errorf("the cap of sandboxes was tried %d times", n)
	}
	turnedAway := 0
	peer.Intercept(func(plane string, w http.ResponseWriter, r *http.Request, next http.Handler) {
		if turnedAway < 3 && r.Method == http.MethodGet {
			turnedAway++
			w.Header().Set("Retry-After", "7")
			w.WriteHeader(http.StatusTooManyRequests)
			_, _ = w.Write([]byte(`{"code":429,"message":"rate limit exceeded"}`))
			return
		}
		next.ServeHTTP(w, r)
	})
	from := k.Now()
	if _, err := e.List(t.Context()); err != nil {
		t.Fatal(err)
	}
	if took := k.Now().Sub(from); took != 21*time.Second {
		t.Errorf("waited %s for three times seven seconds", took)
	}
}
