package provider_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/protocoltest"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore/backendtest"
)

// orphans are the objects that exist and are in none of the states.
func orphans(fake *backendtest.Fake, states ...protocoltest.State) []string {
	var out []string
	for _, id := range fake.Objects() {
		known := slices.ContainsFunc(states, func(s protocoltest.State) bool { return s.Exists() && s.Get("native_id") == id })
		if !known {
			out = append(out, id)
		}
	}
	return out
}

// failAt makes the n-th call to the backend fail, counted from now on. It reports whether it came to that.
func failAt(fake *backendtest.Fake, n int) (hit *bool) {
	hit = new(bool)
	calls := 0
	fake.SetFail(func(_ context.Context, call string) error {
		if calls++; calls == n {
			*hit = true
			return errors.New("injected failure of " + call)
		}
		return nil
	})
	return hit
}

// TestFaultsLeaveNoOrphan fails the backend at its n-th call, for every n, in every operation.
func TestFaultsLeaveNoOrphan(t *testing.T) {
	const most = 40
	sandboxArgs := func(spec string) config {
		return config{"profile": spec, "packages": []string{"rich"}, "desired_state": "paused", "env_wo": config{"W": "write-only-1"}, "env_wo_version": 1}
	}
	t.Run("create", func(t *testing.T) {
		for n := 1; ; n++ {
			fake := newFake()
			s := newServer(t, fake, config{})
			cfg := sandboxArgs(profile(t, s, nil))
			p := s.Plan(tSandbox, protocoltest.State{}, cfg)
			noErrors(t, p.Diags)
			hit := failAt(fake, n)
			state, d := s.Apply(p)
			if left := orphans(fake, state); len(left) > 0 {
				t.Errorf("n = %d: orphans %v\n%s", n, left, d)
			}
			if !*hit {
				noErrors(t, d)
				if n < 5 {
					t.Errorf("only %d calls", n-1)
				}
				break
			}
			wantError(t, d, "injected failure")
			if strings.Contains(state.JSON(), "write-only-1") {
				t.Errorf("n = %d: the write-only value is in the state", n)
			}
			if state.Exists() {
				// The next apply replaces the tainted object, and nothing is left over.
				fake.SetFail(nil)
				again, d := s.Apply(s.Plan(tSandbox, state, cfg))
				noErrors(t, d)
				if left := orphans(fake, again); len(left) > 0 || len(fake.Objects()) != 1 {
					t.Errorf("n = %d: after the replacement %v", n, fake.Objects())
				}
			}
			if n > most {
				t.Fatal("no end")
			}
		}
	})
	t.Run("delete", func(t *testing.T) {
		for n := 1; ; n++ {
			fake := newFake()
			s := newServer(t, fake, config{})
			state := s.MustApply(tSandbox, protocoltest.State{}, config{"profile": profile(t, s, nil)})
			p := s.PlanDestroy(state)
			hit := failAt(fake, n)
			left, d := s.Apply(p)
			if !*hit {
				noErrors(t, d)
				break
			}
			wantError(t, d, "injected failure")
			if !left.Exists() {
				t.Errorf("n = %d: the state forgot the sandbox", n)
			}
		}
	})
	t.Run("update", func(t *testing.T) {
		for n := 1; ; n++ {
			fake := newFake()
			s := newServer(t, fake, config{})
			spec := profile(t, s, nil)
			state := s.MustApply(tSandbox, protocoltest.State{}, config{"profile": spec})
			cfg := sandboxArgs(spec).With(config{"env_wo": nil, "env_wo_version": nil})
			p := s.Plan(tSandbox, state, cfg)
			noErrors(t, p.Diags)
			hit := failAt(fake, n)
			after, d := s.Apply(p)
			if left := orphans(fake, after); len(left) > 0 || after.Tainted {
				t.Errorf("n = %d: orphans %v, tainted %t", n, left, after.Tainted)
			}
			if !*hit {
				noErrors(t, d)
				break
			}
			fake.SetFail(nil)
			read, d := s.Read(after)
			noErrors(t, d)
			again, d := s.Apply(s.Plan(tSandbox, read, cfg))
			noErrors(t, d)
			s.MustBeSettled(again, cfg)
		}
	})
	t.Run("one-shot exec", func(t *testing.T) {
		for n := 1; ; n++ {
			fake := newFake()
			s := newServer(t, fake, config{})
			p := s.Plan(tExec, protocoltest.State{}, config{"profile": profile(t, s, nil), "script": "true"})
			noErrors(t, p.Diags)
			hit := failAt(fake, n)
			_, d := s.Apply(p)
			if !*hit {
				noErrors(t, d)
				break
			}
			// One that cannot be removed is said to be left, by name, and carries our marks.
			if left := orphans(fake); len(left) > 0 && !d.Has("AK5011", left[0]) {
				t.Errorf("n = %d: left %v and did not say so:\n%s", n, left, d)
			}
		}
	})
	t.Run("exec", func(t *testing.T) {
		for n := 1; ; n++ {
			fake := newFake()
			s := newServer(t, fake, config{})
			box := s.MustApply(tSandbox, protocoltest.State{}, config{"profile": profile(t, s, nil)})
			p := s.Plan(tExec, protocoltest.State{}, config{"binding": binding(box), "script": "true"})
			noErrors(t, p.Diags)
			hit := failAt(fake, n)
			state, d := s.Apply(p)
			if !*hit {
				noErrors(t, d)
				break
			}
			if state.Exists() {
				t.Errorf("n = %d: a failed run left an object", n)
			}
			if got := fake.Count("run"); got > 1 {
				t.Errorf("n = %d: ran %d times", n, got)
			}
		}
	})
}

// TestCancellation stops the provider while each call of create is under way.
func TestCancellation(t *testing.T) {
	for _, call := range []string{"identity", "admit", "create", "created", "run", "pause"} {
		t.Run(call, func(t *testing.T) {
			fake := newFake()
			s := newServer(t, fake, config{})
			p := s.Plan(tSandbox, protocoltest.State{}, config{"profile": profile(t, s, nil), "packages": []string{"rich"}, "desired_state": "paused"})
			noErrors(t, p.Diags)
			in := make(chan struct{}, 1)
			fake.SetFail(func(ctx context.Context, name string) error {
				if name != call {
					return nil
				}
				select {
				case in <- struct{}{}:
				default:
				}
				<-ctx.Done()
				return ctx.Err()
			})
			type result struct {
				state protocoltest.State
				diags protocoltest.Diags
			}
			done := make(chan result, 1)
			go func() {
				state, d := s.Apply(p)
				done <- result{state, d}
			}()
			<-in
			s.Stop()
			select {
			case r := <-done:
				if !r.diags.HasError() {
					t.Error("an interrupted creation reports success")
				}
				if left := orphans(fake, r.state); len(left) > 0 {
					t.Errorf("orphans %v", left)
				}
			case <-time.After(10 * time.Second):
				t.Fatal("the apply goes on after Stop")
			}
		})
	}
}

// TestOneShotCleanupOutlivesCancellation: the sandbox of a one-shot run is removed although the run was interrupted.
func TestOneShotCleanupOutlivesCancellation(t *testing.T) {
	fake := newFake()
	running := make(chan struct{})
	fake.OnRun = func(ctx context.Context, _ sandboxcore.RunRequest, _, _ io.Writer) (sandboxcore.RunResult, error) {
		close(running)
		<-ctx.Done()
		return sandboxcore.RunResult{}, ctx.Err()
	}
	s := newServer(t, fake, config{})
	p := s.Plan(tExec, protocoltest.State{}, config{"profile": profile(t, s, nil), "script": "sleep 60"})
	done := make(chan protocoltest.Diags, 1)
	go func() {
		_, d := s.Apply(p)
		done <- d
	}()
	<-running
	s.Stop()
	if d := <-done; !d.HasError() {
		t.Error("an interrupted run reports success")
	}
	if left := orphans(fake); len(left) > 0 {
		t.Errorf("left %v", left)
	}
}

// TestWriteOnlyValueNeverReachesTheState is the regression test of the worst way to lose a sandbox: a write-only value in
// the model that is set as state beside an error makes Terraform throw the new object away.
func TestWriteOnlyValueNeverReachesTheState(t *testing.T) {
	fake := newFake()
	fake.Fail = func(_ context.Context, call string) error {
		if call == "created" {
			return errors.New("it never became ready")
		}
		return nil
	}
	s := newServer(t, fake, config{})
	cfg := config{"profile": profile(t, s, nil), "env_wo": config{"TOKEN": "write-only-1"}, "env_wo_version": 1}
	state, d := s.Apply(s.Plan(tSandbox, protocoltest.State{}, cfg)) // the harness fails when env_wo comes back
	wantError(t, d, "it never became ready")
	if !state.Tainted || state.Get("native_id") != "fake-1" || state.Get("env_wo") != nil {
		t.Errorf("state %s", state.JSON())
	}
	fake.SetFail(nil)
	gone, d := s.Apply(s.PlanDestroy(state))
	noErrors(t, d)
	if gone.Exists() || len(fake.Objects()) > 0 {
		t.Errorf("left %v", fake.Objects())
	}
}

// TestSecretsAreNowhere sends a canary through every secret input, through passing and failing runs, and looks for it in
// every state, plan and diagnostic.
func TestSecretsAreNowhere(t *testing.T) {
	const named, written = "canary-named-7731", "canary-written-7731"
	fake := newFake()
	exit := 0
	fake.OnRun = func(_ context.Context, req sandboxcore.RunRequest, stdout, stderr io.Writer) (sandboxcore.RunResult, error) {
		for _, v := range req.Env {
			_, _ = fmt.Fprintln(stdout, v)
			_, _ = fmt.Fprintln(stderr, v)
		}
		return sandboxcore.RunResult{ExitCode: exit}, nil
	}
	s := newServer(t, fake, config{"secrets": config{"token": named}, "docker": config{"token": "canary-provider-7731"}})
	var texts []string
	see := func(state protocoltest.State, p protocoltest.Plan, d protocoltest.Diags) {
		texts = append(texts, state.JSON(), p.JSON(), p.Diags.String(), d.String(), string(state.Private), string(p.Private))
	}
	args := config{"secret_env": config{"A": "token"}, "env_wo": config{"B": written}, "env_wo_version": 1}
	box := args.With(config{"profile": profile(t, s, nil)})
	p := s.Plan(tSandbox, protocoltest.State{}, box)
	state, d := s.Apply(p)
	noErrors(t, d)
	see(state, p, d)
	run := args.With(config{"binding": binding(state), "script": "env"})
	p = s.Plan(tExec, protocoltest.State{}, run)
	record, d := s.Apply(p)
	noErrors(t, d)
	if out, _ := record.Get("stdout").(string); strings.Count(out, sandboxcore.Redacted) < 2 {
		t.Errorf("output %q", out)
	}
	see(record, p, d)
	exit = 1
	p = s.Plan(tExec, record, run.With(config{"env_wo_version": 2}))
	record, d = s.Apply(p)
	wantError(t, d, "AK5006")
	see(record, p, d)
	for _, call := range []string{"create", "run", "find"} {
		fake.SetFail(func(_ context.Context, name string) error {
			if name == call {
				return errors.New("the engine echoes " + named + " and " + written)
			}
			return nil
		})
		p = s.Plan(tSandbox, protocoltest.State{}, box)
		failed, d := s.Apply(p)
		see(failed, p, d)
		p = s.Plan(tExec, protocoltest.State{}, run)
		failed, d = s.Apply(p)
		see(failed, p, d)
		if !d.HasError() && call != "create" {
			t.Errorf("%s did not fail", call)
		}
	}
	fake.SetFail(nil)
	for _, text := range texts {
		if strings.Contains(text, "canary-") {
			t.Errorf("a secret shows in %s", text)
		}
	}
}
