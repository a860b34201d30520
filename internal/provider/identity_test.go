package provider_test

import (
	"context"
	"errors"
	"maps"
	"testing"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/protocoltest"
)

func TestSandboxIdentity(t *testing.T) {
	fake := newFake()
	fake.Records = true
	s := newServer(t, fake, config{})
	cfg := config{"profile": profile(t, s, config{"policy": config{"cpu": 1}}), "labels": map[string]string{"team": "x"}}
	state := s.MustApply(tSandbox, protocoltest.State{}, cfg)
	want := map[string]any{"backend": "docker", "endpoint": "fake-endpoint", "native_id": "fake-1"}
	if !maps.Equal(state.Identity, want) {
		t.Fatalf("identity after the creation %v", state.Identity)
	}

	t.Run("outlives a change in place", func(t *testing.T) {
		cfg = cfg.With(config{"profile": profile(t, s, config{"name": "q", "policy": config{"cpu": 2}})})
		after := s.MustApply(tSandbox, state, cfg)
		if !maps.Equal(after.Identity, want) {
			t.Errorf("identity after the update %v", after.Identity)
		}
		read, d := s.Read(after)
		noErrors(t, d)
		if !maps.Equal(read.Identity, want) {
			t.Errorf("identity after a refresh %v", read.Identity)
		}
	})
	t.Run("is given to a state of an older release", func(t *testing.T) {
		old := state
		old.Identity = nil
		read, d := s.Read(old)
		noErrors(t, d)
		if !maps.Equal(read.Identity, want) {
			t.Errorf("identity after a refresh %v", read.Identity)
		}
	})
	for name, identity := range map[string]map[string]any{"whole": want, "without endpoint": {"backend": "docker", "native_id": "fake-1"}} {
		t.Run("imports: "+name, func(t *testing.T) {
			imported, d := s.ImportIdentity(tSandbox, identity)
			noErrors(t, d)
			if !maps.Equal(imported.Identity, want) {
				t.Errorf("identity after the import %v", imported.Identity)
			}
			s.MustBeSettled(imported, cfg)
		})
	}
	t.Run("of another place is refused", func(t *testing.T) {
		_, d := s.ImportIdentity(tSandbox, map[string]any{"backend": "docker", "endpoint": "elsewhere", "native_id": "fake-1"})
		wantError(t, d, "AK5009", "elsewhere", "fake-endpoint")
	})
	t.Run("of no backend is refused", func(t *testing.T) {
		_, d := s.ImportIdentity(tSandbox, map[string]any{"backend": "no-such", "native_id": "fake-1"})
		wantError(t, d, "AK1005", "no-such/fake-1")
	})
	t.Run("import by id gives it", func(t *testing.T) {
		imported, d := s.Import(tSandbox, "docker/fake-1")
		noErrors(t, d)
		if !maps.Equal(imported.Identity, want) {
			t.Errorf("identity after the import %v", imported.Identity)
		}
	})
}

func TestSandboxThatFailsAfterItsCreationHasAnIdentity(t *testing.T) {
	fake := newFake()
	s := newServer(t, fake, config{})
	p := s.Plan(tSandbox, protocoltest.State{}, config{"profile": profile(t, s, nil)})
	noErrors(t, p.Diags)
	fake.SetFail(func(_ context.Context, call string) error {
		if call == "created" {
			return errors.New("injected failure")
		}
		return nil
	})
	state, d := s.Apply(p)
	if !d.HasError() || !state.Tainted || state.Identity["native_id"] != "fake-1" {
		t.Errorf("tainted %v, identity %v:\n%s", state.Tainted, state.Identity, d)
	}
}
