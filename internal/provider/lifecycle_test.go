package provider_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/protocoltest"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

func TestProfileIsKnownAtPlan(t *testing.T) {
	s := newServer(t, newFake(), config{})
	cfg := config{"name": "p", "type": "docker", "docker": config{"image": "x", "caps": []string{"B", "A"}, "nested": config{"deep": "y"}, "ratio": 0.1}, "policy": config{"cpu": 1.5, "memory_mb": 64}}
	p := s.Plan(tProfile, protocoltest.State{}, cfg)
	noErrors(t, p.Diags)
	if got, _ := p.Get("spec").(string); got != `{"docker":{"caps":["A","B"],"image":"x","nested":{"deep":"y"},"ratio":0.1},"name":"p","policy":{"cpu":1.5,"memory_mb":64},"type":"docker","v":1}` {
		t.Errorf("planned spec %s", got)
	}
	if got := p.Get("capabilities", "pause"); got != true {
		t.Errorf("planned capability %v", got)
	}
	state, d := s.Apply(p)
	noErrors(t, d)
	s.MustBeSettled(state, cfg)
	renamed := s.Plan(tProfile, state, cfg.With(config{"name": "q"}))
	if renamed.Action != protocoltest.Update || renamed.Get("id") != "q" {
		t.Errorf("rename: %s id %v", renamed.Action, renamed.Get("id"))
	}
	data, d := s.ReadData(tProfile, cfg)
	noErrors(t, d)
	if data.Get("spec") != state.Get("spec") || data.Get("fingerprint") != state.Get("fingerprint") {
		t.Errorf("data source differs: %s", data.JSON())
	}
}

func TestSandboxLifecycle(t *testing.T) {
	fake := newFake()
	s := newServer(t, fake, config{"secrets": config{"token": "hunter2hunter2"}})
	spec := profile(t, s, config{"policy": config{"cpu": 1}})
	cfg := config{
		"profile": spec, "env": map[string]string{"A": "1"}, "secret_env": map[string]string{"T": "token"}, "labels": map[string]string{"team": "x"},
		"packages": []string{"requests>=2", "rich"}, "env_wo": map[string]string{"W": "write-only-1"}, "env_wo_version": 1,
	}
	p := s.Plan(tSandbox, protocoltest.State{}, cfg)
	noErrors(t, p.Diags)
	if p.Get("binding", "spec") != spec || p.Get("binding", "backend") != "docker" || p.Get("binding", "id") != protocoltest.Unknown {
		t.Errorf("planned binding %v", p.Get("binding"))
	}
	if p.Get("name") != "p" || p.Get("status") != "running" || p.Get("isolation") != "container" || p.Get("principal", "subject") != "terraform" {
		t.Errorf("planned %s", p.JSON())
	}
	state, d := s.Apply(p)
	noErrors(t, d)
	if got := fake.Env("fake-1"); got["A"] != "1" || got["T"] != "hunter2hunter2" || got["W"] != "write-only-1" {
		t.Errorf("environment of the sandbox %v", got)
	}
	s.MustBeSettled(state, cfg)

	t.Run("import plans nothing", func(t *testing.T) {
		imported, d := s.Import(tSandbox, "docker/fake-1")
		noErrors(t, d)
		s.MustBeSettled(imported, cfg)
		if imported.Get("env_wo_version") != float64(1) {
			t.Errorf("imported %s", imported.JSON())
		}
	})
	t.Run("live change is an update", func(t *testing.T) {
		up := s.Plan(tSandbox, state, cfg.With(config{"profile": profile(t, s, config{"policy": config{"cpu": 2}})}))
		noErrors(t, up.Diags)
		if up.Action != protocoltest.Update || up.Get("binding", "id") != state.Get("id") {
			t.Errorf("%s %s", up.Action, up.JSON())
		}
	})
	t.Run("recorded change keeps the name", func(t *testing.T) {
		other := cfg.With(config{"profile": profile(t, s, config{"name": "q", "policy": config{"cpu": 1, "timeout": 5}})})
		up := s.Plan(tSandbox, state, other)
		if up.Action != protocoltest.Update || up.Get("name") != "p" {
			t.Errorf("%s %s", up.Action, up.JSON())
		}
		after, d := s.Apply(up)
		noErrors(t, d)
		s.MustBeSettled(after, other)
	})
	for name, change := range map[string]config{
		"image": {"profile": profile(t, s, config{"docker": config{"image": "other"}, "policy": config{"cpu": 1}})}, "env": {"env": map[string]string{"A": "2"}}, "secret_env": {"secret_env": nil},
		"env_wo_version": {"env_wo_version": 2}, "principal": {"principal": config{"subject": "other"}},
		"labels": {"labels": map[string]string{"team": "y"}}, "packages": {"packages": []string{"rich"}}, "name": {"name": "other"},
	} {
		t.Run(name+" replaces with a warning", func(t *testing.T) {
			p := s.Plan(tSandbox, state, cfg.With(change))
			noErrors(t, p.Diags)
			if p.Action != protocoltest.Replace || !p.Diags.Warnings().Has("files in it will be lost") {
				t.Errorf("%s %v\n%s", p.Action, p.RequiresReplace, p.Diags)
			}
		})
	}
	t.Run("packages are added in place", func(t *testing.T) {
		more := cfg.With(config{"packages": []string{"rich", "httpx", "requests>=2"}})
		runs := fake.Count("run")
		after := s.MustApply(tSandbox, state, more)
		if fake.Count("run") != runs+1 {
			t.Errorf("pip ran %d times", fake.Count("run")-runs)
		}
		s.MustBeSettled(after, more)
		state = after
		cfg = more
	})
	t.Run("drift", func(t *testing.T) {
		for _, status := range []sandboxcore.Status{sandboxcore.StatusPaused, sandboxcore.StatusStopped} {
			fake.SetStatus("fake-1", status)
			read, d := s.Read(state)
			noErrors(t, d)
			if read.Get("status") != string(status) {
				t.Errorf("status %v", read.Get("status"))
			}
			p := s.Plan(tSandbox, read, cfg)
			if p.Action != protocoltest.Update || p.Get("status") != "running" {
				t.Errorf("%s: %s", status, p.Action)
			}
			state, d = s.Apply(p)
			noErrors(t, d)
			s.MustBeSettled(state, cfg)
		}
		fake.SetDormant("fake-1") // asleep because its time was over: shown, and nothing to do
		asleep, d := s.Read(state)
		noErrors(t, d)
		if asleep.Get("status") != "paused" || asleep.Get("desired_state") != "running" {
			t.Errorf("asleep: status %v, desired %v", asleep.Get("status"), asleep.Get("desired_state"))
		}
		s.MustBeSettled(asleep, cfg)
		fake.SetID("another-engine")
		kept, d := s.Read(state)
		wantError(t, d, "AK5009", "fake-endpoint", "another-engine")
		if !kept.Exists() {
			t.Error("state lost")
		}
		fake.SetID("fake-endpoint")
		fake.Remove("fake-1")
		gone, d := s.Read(state)
		if gone.Exists() || !d.Warnings().Has("Sandbox Gone", "AK5002") {
			t.Errorf("gone: %s", d)
		}
	})
	t.Run("destroy", func(t *testing.T) {
		made := s.MustApply(tSandbox, protocoltest.State{}, cfg)
		left, d := s.Apply(s.PlanDestroy(made))
		noErrors(t, d)
		if left.Exists() || len(fake.Objects()) != 0 {
			t.Errorf("left %v", fake.Objects())
		}
		left, d = s.Apply(s.PlanDestroy(made))
		noErrors(t, d)
		if left.Exists() {
			t.Error("a second destroy is no success")
		}
	})
}

func TestSandboxImportBringsBackWhatWasWritten(t *testing.T) {
	for name, args := range map[string]config{
		"nothing":     {},
		"empty maps":  {"env": config{}, "labels": config{}, "secret_env": config{}, "packages": []string{}},
		"paused":      {"desired_state": "paused"},
		"timeouts":    {"timeouts": config{"create": "5m"}},
		"no timeouts": {"timeouts": config{}},
		"principal":   {"principal": config{"subject": "bot", "groups": []string{"a", "b"}}},
		"own default": {"principal": config{"mode": "agent", "subject": "terraform"}, "name": "p", "desired_state": "running"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer(t, newFake(), config{})
			cfg := config{"profile": profile(t, s, nil)}.With(args)
			state := s.MustApply(tSandbox, protocoltest.State{}, cfg)
			s.MustBeSettled(state, cfg)
			imported, d := s.Import(tSandbox, "docker/fake-1")
			noErrors(t, d)
			s.MustBeSettled(imported, cfg)
		})
	}
	s := newServer(t, newFake(), config{})
	for _, id := range []string{"", "x", "docker/", "nope/1", "docker/\x1b[31m"} {
		_, d := s.Import(tSandbox, id)
		wantError(t, d, "AK1005", "<backend>/<native id>")
	}
}

// TestImportAfterAChangeBringsBackWhatWasWritten: what is changed in place is recorded with the sandbox, in the order in
// which it was written, also when nothing of the sandbox depends on it.
func TestImportAfterAChangeBringsBackWhatWasWritten(t *testing.T) {
	fake := newFake()
	fake.Records = true
	s := newServer(t, fake, config{})
	cfg := config{"profile": profile(t, s, config{"policy": config{"cpu": 1}}), "packages": []string{"rich"}}
	state := s.MustApply(tSandbox, protocoltest.State{}, cfg)
	for _, change := range []config{
		{"timeouts": config{"create": "5m", "delete": "1m"}},
		{"packages": []string{"rich", "httpx"}},
		{"packages": []string{"httpx", "rich"}},
		{"profile": profile(t, s, config{"policy": config{"cpu": 2, "timeout": 7}})},
		{"timeouts": nil},
	} {
		cfg = cfg.With(change)
		state = s.MustApply(tSandbox, state, cfg)
		s.MustBeSettled(state, cfg)
		imported, d := s.Import(tSandbox, "docker/fake-1")
		noErrors(t, d)
		s.MustBeSettled(imported, cfg)
	}
}

// TestImportAfterALiveChange: where a change in place cannot be recorded with the object (the labels of a container stay as
// they are), the limits that hold stand in the imported spec and in the listed one.
func TestImportAfterALiveChange(t *testing.T) {
	fake := newFake()
	s := newServer(t, fake, config{})
	cfg := config{"profile": profile(t, s, config{"policy": config{"cpu": 1, "memory_mb": 64}}), "labels": map[string]string{"team": "x"}}
	state := s.MustApply(tSandbox, protocoltest.State{}, cfg)
	for _, policy := range []config{{"cpu": 2, "memory_mb": 64}, {"memory_mb": 128}, {"cpu": 0.5}, {}, {"cpu": 1, "memory_mb": 64}} {
		cfg = cfg.With(config{"profile": profile(t, s, config{"policy": policy})})
		state = s.MustApply(tSandbox, state, cfg)
		imported, d := s.Import(tSandbox, "docker/fake-1")
		noErrors(t, d)
		s.MustBeSettled(imported, cfg)
		listed := s.List(tSandbox, config{}, 0, true, 0)
		if len(listed) != 1 || !listed[0].Resource.Value.Equal(imported.Value) {
			t.Errorf("listed   %v\nimported %s", listed, imported.JSON())
		}
	}
	fake.SetFail(func(_ context.Context, call string) error {
		if call == "live" {
			return errors.New("connection refused")
		}
		return nil
	})
	_, d := s.Import(tSandbox, "docker/fake-1")
	wantError(t, d, "AK5010", "connection refused")
	listed := s.List(tSandbox, config{}, 0, true, 0)
	if len(listed) != 1 || !listed[0].Diags.Errors().Has("AK5010", "connection refused") {
		t.Errorf("listed %v", listed)
	}
	if listed := s.List(tSandbox, config{}, 0, false, 0); len(listed) != 1 || listed[0].Diags.HasError() {
		t.Errorf("listed without the objects: %v", listed)
	}
}

// TestImportOfAStoppedSandbox: Terraform writes the configuration of an import from what was read, so that nothing in it may
// be a value that no configuration can have.
func TestImportOfAStoppedSandbox(t *testing.T) {
	fake := newFake()
	s := newServer(t, fake, config{})
	cfg := config{"profile": profile(t, s, nil)}
	s.MustApply(tSandbox, protocoltest.State{}, cfg)
	for _, c := range []struct {
		status sandboxcore.Status
		want   any
	}{{sandboxcore.StatusStopped, nil}, {sandboxcore.StatusPaused, "paused"}, {sandboxcore.StatusRunning, "running"}} {
		fake.SetStatus("fake-1", c.status)
		imported, d := s.Import(tSandbox, "docker/fake-1")
		noErrors(t, d)
		if got := imported.Get("desired_state"); got != c.want || imported.Get("status") != string(c.status) {
			t.Errorf("%s is imported as %v", c.status, got)
		}
		written := cfg.With(config{"desired_state": imported.Get("desired_state")})
		p := s.Plan(tSandbox, imported, written)
		noErrors(t, p.Diags)
		if starts := c.want == nil; starts != (p.Action == protocoltest.Update) {
			t.Errorf("%s: planned %s", c.status, p.Action)
		}
		after, d := s.Apply(p)
		noErrors(t, d)
		s.MustBeSettled(after, written)
	}
}

func TestImportOfAForeignObjectIsRefused(t *testing.T) {
	fake := newFake()
	s := newServer(t, fake, config{})
	_, d := s.Import(tSandbox, "docker/"+fake.AddAlien())
	wantError(t, d, "AK5008")
}

func TestExecRunsWhenItHasTo(t *testing.T) {
	fake := newFake()
	n := 0
	fake.OnRun = func(_ context.Context, req sandboxcore.RunRequest, stdout, _ io.Writer) (sandboxcore.RunResult, error) {
		n++
		_, _ = fmt.Fprintf(stdout, "run %d of %s\x1b[31m", n, req.Text)
		return sandboxcore.RunResult{}, nil
	}
	s := newServer(t, fake, config{"secrets": config{"token": "hunter2hunter2"}})
	spec := profile(t, s, nil)
	box := s.MustApply(tSandbox, protocoltest.State{}, config{"profile": spec})
	cfg := config{"binding": binding(box), "code": "print(1)"}
	p := s.Plan(tExec, protocoltest.State{}, cfg)
	noErrors(t, p.Diags)
	state, d := s.Apply(p)
	noErrors(t, d)
	if state.Get("stdout") != `run 1 of print(1)\x1b[31m` || state.Get("exit_code") != float64(0) {
		t.Errorf("state %s", state.JSON())
	}
	s.MustBeSettled(state, cfg)

	for name, change := range map[string]config{
		"code": {"code": "print(2)"}, "script": {"code": nil, "script": "true"}, "command": {"code": nil, "command": []string{"true"}},
		"stdin": {"stdin": "x"}, "env": {"env": config{"A": "1"}}, "secret_env": {"secret_env": config{"A": "token"}}, "version": {"env_wo_version": 1},
		"working_directory": {"working_directory": "/x"}, "triggers": {"triggers": config{"a": "1"}},
		"principal": {"principal": config{"subject": "other"}}, "profile": {"binding": nil, "profile": spec},
	} {
		t.Run("again: "+name, func(t *testing.T) {
			before := n
			p := s.Plan(tExec, state, cfg.With(change))
			noErrors(t, p.Diags)
			if p.Action != protocoltest.Update || p.Get("stdout") != protocoltest.Unknown {
				t.Fatalf("%s %s", p.Action, p.JSON())
			}
			_, d := s.Apply(p)
			noErrors(t, d)
			if n != before+1 {
				t.Errorf("ran %d times", n-before)
			}
		})
	}
	for name, change := range map[string]config{
		"timeout": {"timeout": "5s"}, "success_exit_codes": {"success_exit_codes": []any{0, 1}}, "max_output_bytes": {"max_output_bytes": 100},
		"base64_output": {"base64_output": true}, "background": {"background": "keep"}, "destroy_script": {"destroy_script": "true"},
		"language default": {"language": "python"}, "same default principal": {"principal": config{"subject": "terraform"}},
	} {
		t.Run("record only: "+name, func(t *testing.T) {
			before := n
			p := s.Plan(tExec, state, cfg.With(change))
			noErrors(t, p.Diags)
			if p.Get("stdout") != state.Get("stdout") {
				t.Fatalf("%s %s", p.Action, p.JSON())
			}
			after, d := s.Apply(p)
			noErrors(t, d)
			if n != before {
				t.Errorf("ran %d times", n-before)
			}
			s.MustBeSettled(after, cfg.With(change))
		})
	}
	t.Run("an unknown binding that turns out to be the same does not run", func(t *testing.T) {
		before := n
		p := s.Plan(tExec, state, cfg.With(config{"binding": protocoltest.Unknown}))
		noErrors(t, p.Diags)
		if p.Action != protocoltest.Update || p.Get("stdout") != protocoltest.Unknown {
			t.Fatalf("%s", p.Action)
		}
		after, d := s.Apply(p, config{"binding": binding(box)})
		noErrors(t, d)
		if n != before || after.Get("stdout") != state.Get("stdout") {
			t.Errorf("ran %d times", n-before)
		}
	})
	t.Run("an unknown value that turns out to be the same keeps the bytes of the last run", func(t *testing.T) {
		with := cfg.With(config{"base64_output": true})
		last := s.MustApply(tExec, protocoltest.State{}, with)
		before := n
		off := with.With(config{"base64_output": false, "triggers": protocoltest.Unknown})
		p := s.Plan(tExec, last, off)
		noErrors(t, p.Diags)
		after, d := s.Apply(p, config{"triggers": nil})
		noErrors(t, d)
		if n != before || after.Get("stdout_base64") == nil || after.Get("stdout_base64") != last.Get("stdout_base64") {
			t.Errorf("ran %d times, stdout_base64 %v", n-before, after.Get("stdout_base64"))
		}
	})
	t.Run("a one-shot run leaves nothing", func(t *testing.T) {
		objects := len(fake.Objects())
		s.MustApply(tExec, protocoltest.State{}, config{"profile": spec, "script": "true"})
		if len(fake.Objects()) != objects {
			t.Errorf("left %v", fake.Objects())
		}
	})
	t.Run("a refresh asks nobody", func(t *testing.T) {
		before := len(fake.Calls())
		_, d := s.Read(state)
		noErrors(t, d)
		if len(fake.Calls()) != before {
			t.Errorf("calls %v", fake.Calls()[before:])
		}
	})
	t.Run("a foreign binding is refused", func(t *testing.T) {
		b := config{"backend": "docker", "endpoint": "fake-endpoint", "environment": "managed", "id": "docker/" + fake.AddAlien(), "spec": spec}
		p := s.Plan(tExec, protocoltest.State{}, config{"binding": b, "code": "1"})
		noErrors(t, p.Diags)
		left, d := s.Apply(p)
		wantError(t, d, "AK5008")
		if left.Exists() {
			t.Error("an object was left")
		}
	})
}

func TestExecFailure(t *testing.T) {
	fake := newFake()
	exit := 3
	fake.OnRun = func(_ context.Context, req sandboxcore.RunRequest, stdout, stderr io.Writer) (sandboxcore.RunResult, error) {
		if string(req.Text) == "cleanup" {
			return sandboxcore.RunResult{}, nil
		}
		_, _ = fmt.Fprint(stdout, "out-tail")
		_, _ = fmt.Fprint(stderr, "err-tail")
		return sandboxcore.RunResult{ExitCode: exit}, nil
	}
	s := newServer(t, fake, config{})
	box := s.MustApply(tSandbox, protocoltest.State{}, config{"profile": profile(t, s, nil)})
	cfg := config{"binding": binding(box), "script": "false"}
	left, d := s.Apply(s.Plan(tExec, protocoltest.State{}, cfg))
	wantError(t, d, "AK5006", "Exit status: 3", "out-tail", "err-tail")
	if left.Exists() {
		t.Error("a failed first run left an object")
	}
	kept := cfg.With(config{"destroy_script": "cleanup"})
	left, d = s.Apply(s.Plan(tExec, protocoltest.State{}, kept))
	wantError(t, d, "AK5006")
	if !left.Exists() || !left.Tainted {
		t.Fatal("the object was not kept for its clean-up")
	}
	runs := fake.Count("run")
	exit = 0
	p := s.Plan(tExec, left, kept)
	if p.Action != protocoltest.Replace {
		t.Fatalf("%s", p.Action)
	}
	good, d := s.Apply(p)
	noErrors(t, d)
	if fake.Count("run") != runs+2 {
		t.Errorf("clean-up and run: %d", fake.Count("run")-runs)
	}
	exit = 4
	p = s.Plan(tExec, good, kept.With(config{"script": "other"}))
	noErrors(t, p.Diags)
	after, d := s.Apply(p)
	wantError(t, d, "AK5006", "Exit status: 4")
	if !after.Value.Equal(good.Value) || after.Tainted {
		t.Error("a failed run again did not keep the old record")
	}
	fake.Remove("fake-1")
	gone, d := s.Apply(s.PlanDestroy(good))
	noErrors(t, d)
	if gone.Exists() || !d.Warnings().Has("Clean-Up Not Run") {
		t.Errorf("destroy after the sandbox: %s", d)
	}
}

// TestOnePlanRefusesAcrossResources: a run in a sandbox that is still to be made is checked in the very first plan.
func TestOnePlanRefusesAcrossResources(t *testing.T) {
	fake := newFake()
	s := newServer(t, fake, config{})
	box := s.Plan(tSandbox, protocoltest.State{}, config{"profile": profile(t, s, nil)})
	noErrors(t, box.Diags)
	planned := box.Get("binding")
	p := s.Plan(tExec, protocoltest.State{}, config{"binding": planned, "code": "1", "language": "cobol"})
	wantError(t, p.Diags, "AK4001", "at language")
	p = s.Plan(tExec, protocoltest.State{}, config{"binding": planned, "code": "1", "timeout": "10h"})
	wantError(t, p.Diags, "AK1003", "at timeout")
	noErrors(t, s.Plan(tExec, protocoltest.State{}, config{"binding": planned, "code": "1"}).Diags)
	if fake.Count("create")+fake.Count("run") > 0 {
		t.Errorf("calls %v", fake.Calls())
	}
}

// TestRefusedRunLeavesNothingToCleanUp: a clean-up keeps the object of a run that failed, not of one that never began.
func TestRefusedRunLeavesNothingToCleanUp(t *testing.T) {
	fake := newFake()
	s := newServer(t, fake, config{})
	box := s.MustApply(tSandbox, protocoltest.State{}, config{"profile": profile(t, s, nil)})
	p := s.Plan(tExec, protocoltest.State{}, config{"binding": binding(box), "script": "1", "destroy_script": "2"})
	noErrors(t, p.Diags)
	fake.SetStatus("fake-1", sandboxcore.StatusPaused)
	left, d := s.Apply(p)
	wantError(t, d, "AK5003", "desired_state")
	if left.Exists() {
		t.Errorf("left %s", left.JSON())
	}
}

// TestHalfKnownValuesNeverReplaceUnasked: one element that is not known yet is no reason to lose files either, and a
// default that an older configuration did not take is not planned from its state.
func TestHalfKnownValuesNeverReplaceUnasked(t *testing.T) {
	fake := newFake()
	s := newServer(t, fake, config{"secrets": config{"token": "hunter2hunter2"}})
	cfg := config{
		"profile": profile(t, s, nil), "env": config{"A": "1", "B": "2"}, "secret_env": config{"T": "token"}, "labels": config{"team": "x"},
		"principal": config{"mode": "agent", "subject": "bob"},
	}
	state := s.MustApply(tSandbox, protocoltest.State{}, cfg)
	for name, value := range map[string]any{
		"env": config{"A": "1", "B": protocoltest.Unknown}, "secret_env": config{"T": protocoltest.Unknown}, "labels": config{"team": protocoltest.Unknown},
		"principal": config{"subject": protocoltest.Unknown},
	} {
		t.Run(name, func(t *testing.T) {
			half := cfg.With(config{name: value})
			p := s.Plan(tSandbox, state, half)
			noErrors(t, p.Diags)
			if p.Action != protocoltest.Update {
				t.Fatalf("%s %v", p.Action, p.RequiresReplace)
			}
			same, d := s.Apply(p, config{name: cfg[name]})
			noErrors(t, d)
			s.MustBeSettled(same, cfg)
			kept, d := s.Apply(p, config{name: map[string]any{"env": config{"A": "1", "B": "3"}, "secret_env": config{"T": "other"}, "labels": config{"team": "y"}, "principal": config{"subject": "eve"}}[name]})
			wantError(t, d, "AK1003", "turned out to need a replacement", "Attribute: "+name)
			if !kept.Exists() {
				t.Error("state lost")
			}
		})
	}
	p := s.Plan(tSandbox, state, cfg.With(config{"env": config{"A": "9", "B": protocoltest.Unknown}}))
	if p.Action != protocoltest.Replace {
		t.Errorf("a known element that differs: %s", p.Action)
	}
	user := s.MustApply(tExec, protocoltest.State{}, config{"profile": profile(t, s, config{"identity": config{"mode": "agent"}}), "script": "1", "principal": config{"mode": "agent", "subject": "bob"}})
	again := s.Plan(tExec, user, config{"profile": cfg["profile"], "script": "1", "principal": config{"mode": protocoltest.Unknown}})
	noErrors(t, again.Diags)
	if again.Get("principal", "subject") != protocoltest.Unknown {
		t.Errorf("planned subject %v", again.Get("principal", "subject"))
	}
	_, d := s.Apply(again, config{"principal": config{"mode": "agent", "subject": "terraform"}})
	noErrors(t, d)
}

// TestZeroTimeoutIsTheDefault: a deadline of zero, which people write for "none", never ends an operation at once.
func TestZeroTimeoutIsTheDefault(t *testing.T) {
	fake := newFake()
	s := newServer(t, fake, config{})
	zero := config{"create": "0s", "read": "0s", "update": "0s", "delete": "0s"}
	cfg := config{"profile": profile(t, s, nil), "timeouts": zero}
	fake.SetFail(func(ctx context.Context, _ string) error { return ctx.Err() })
	state := s.MustApply(tSandbox, protocoltest.State{}, cfg)
	state, d := s.Read(state)
	noErrors(t, d)
	s.MustBeSettled(state, cfg)
	state = s.MustApply(tSandbox, state, cfg.With(config{"profile": profile(t, s, config{"policy": config{"cpu": 2}})}))
	_, d = s.Apply(s.PlanDestroy(state))
	noErrors(t, d)
	for name := range zero {
		wantError(t, s.Validate(tSandbox, cfg.With(config{"timeouts": config{name: "-1s"}})), "must not be negative")
	}
}

// TestUnknownProfileNeverReplacesUnasked: a spec that is not known at plan is no reason to lose files. When it turns out
// to need a replacement, the apply refuses and the next plan says so.
func TestUnknownProfileNeverReplacesUnasked(t *testing.T) {
	fake := newFake()
	s := newServer(t, fake, config{})
	spec, other := profile(t, s, nil), profile(t, s, config{"docker": config{"image": "other"}})
	state := s.MustApply(tSandbox, protocoltest.State{}, config{"profile": spec})
	p := s.Plan(tSandbox, state, config{"profile": protocoltest.Unknown})
	noErrors(t, p.Diags)
	if p.Action != protocoltest.Update {
		t.Fatalf("%s %v", p.Action, p.RequiresReplace)
	}
	same, d := s.Apply(p, config{"profile": spec})
	noErrors(t, d)
	s.MustBeSettled(same, config{"profile": spec})
	kept, d := s.Apply(p, config{"profile": other})
	wantError(t, d, "terraform apply again", "docker.image")
	if !kept.Value.Equal(state.Value) || kept.Tainted {
		t.Error("the state changed")
	}
	if again := s.Plan(tSandbox, kept, config{"profile": other}); again.Action != protocoltest.Replace {
		t.Errorf("%s", again.Action)
	}
}

// TestUpdateNeedsNoSecretOfTheCreation: secrets are resolved when a sandbox is made. One that the provider lacks since stands
// in the way of a new sandbox, and of no change in place.
func TestUpdateNeedsNoSecretOfTheCreation(t *testing.T) {
	fake := newFake()
	s := newServer(t, fake, withSecret)
	cfg := config{"profile": profile(t, s, nil), "secret_env": config{"T": "token"}}
	box := s.MustApply(tSandbox, protocoltest.State{}, cfg)

	later := newServer(t, fake, config{})
	later.MustBeSettled(box, cfg)
	p := later.Plan(tSandbox, box, cfg.With(config{"profile": profile(t, s, config{"policy": config{"cpu": 2}}), "desired_state": "paused"}))
	noErrors(t, p.Diags)
	if p.Action != protocoltest.Update {
		t.Errorf("planned %s", p.Action)
	}
	_, d := later.Apply(p)
	noErrors(t, d)

	for name, change := range map[string]config{
		"another profile": {"profile": profile(t, s, config{"docker": config{"image": "other"}})},
		"another secret":  {"secret_env": config{"U": "token"}},
	} {
		t.Run(name, func(t *testing.T) { wantError(t, later.Plan(tSandbox, box, cfg.With(change)).Diags, "AK1003", "token") })
	}
}
