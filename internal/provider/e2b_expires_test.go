package provider_test

import (
	"testing"
	"time"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/protocoltest"
)

// TestExpiresAt: null where a backend tells no end; a new end is taken over by a refresh and plans nothing; an update that
// touches the sandbox may move it, one that does not leaves it alone.
func TestExpiresAt(t *testing.T) {
	fake := newFake()
	s := newServer(t, fake, config{})
	cfg := config{"profile": profile(t, s, nil), "name": "a"}
	state := s.MustApply(tSandbox, protocoltest.State{}, cfg)
	if state.Get("expires_at") != nil {
		t.Errorf("an end out of nothing: %v", state.Get("expires_at"))
	}
	id, _ := state.Get("native_id").(string)
	for _, end := range []string{"2026-03-01T12:00:00Z", "2026-03-01T12:30:00Z"} {
		at, err := time.Parse(time.RFC3339, end)
		if err != nil {
			t.Fatal(err)
		}
		fake.SetExpiry(id, at.In(time.FixedZone("elsewhere", 3600)))
		read, d := s.Read(state)
		noErrors(t, d)
		if read.Get("expires_at") != end {
			t.Errorf("refreshed as %v, want %s", read.Get("expires_at"), end)
		}
		s.MustBeSettled(read, cfg)
		state = read
	}
	// Touched: not known before.
	bigger := cfg.With(config{"profile": profile(t, s, config{"policy": config{"cpu": 2}})})
	p := s.Plan(tSandbox, state, bigger)
	noErrors(t, p.Diags)
	if _, known := p.Get("expires_at").(string); p.Action != protocoltest.Update || known {
		t.Errorf("planned %s, %s", p.Action, p.JSON())
	}
	fake.SetExpiry(id, time.Date(2026, 3, 1, 13, 0, 0, 0, time.UTC))
	state, d := s.Apply(p)
	noErrors(t, d)
	if state.Get("expires_at") != "2026-03-01T13:00:00Z" {
		t.Errorf("after the update: %v", state.Get("expires_at"))
	}
	s.MustBeSettled(state, bigger)
	// The spec is not known yet, and turns out to be the same: nothing moves.
	p = s.Plan(tSandbox, state, bigger.With(config{"profile": protocoltest.Unknown}))
	noErrors(t, p.Diags)
	same, d := s.Apply(p, config{"profile": bigger["profile"]})
	noErrors(t, d)
	if same.Get("expires_at") != "2026-03-01T13:00:00Z" {
		t.Errorf("after an update of nothing: %v", same.Get("expires_at"))
	}
}
