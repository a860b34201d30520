package provider_test

import (
	"reflect"
	"slices"
	"testing"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/protocoltest"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore/backendtest"
)

const (
	dProfile  = "agentkernel_profile"
	dAttached = "agentkernel_attached_environment"
)

// attachingFake attaches; attached, it enforces nothing and has neither Python nor stdin.
func attachingFake() *backendtest.Fake {
	f := newFake()
	f.Caps = func(p *sandboxcore.Profile) sandboxcore.Capabilities {
		c := backendtest.DefaultCaps()
		if c.AttachesExternal = true; p.Environment == sandboxcore.EnvironmentAttached {
			c = sandboxcore.Capabilities{Isolation: sandboxcore.IsolationNone, Shell: true, AttachesExternal: true, PrincipalUser: true}
		}
		return c
	}
	f.SetTarget("box", &backendtest.FakeTarget{NativeID: "box-1", Status: sandboxcore.StatusRunning, Platform: "linux/amd64", Details: map[string]string{"owner": "someone"}})
	return f
}

func attachedConfig(changes config) config {
	return config{"name": "p", "type": "docker", "environment": "attached", "docker": config{"attach_to": "box"}}.With(changes)
}

// attachedSpec gives the spec of an attached profile by the data source, as the documentation tells everybody to.
func attachedSpec(t *testing.T, s *protocoltest.Server, changes config) string {
	t.Helper()
	state, d := s.ReadData(dProfile, attachedConfig(changes))
	noErrors(t, d)
	spec, _ := state.Get("spec").(string)
	return spec
}

// attempt plans and applies, and gives the diagnostics of where it ended.
func attempt(s *protocoltest.Server, typeName string, c config) protocoltest.Diags {
	p := s.Plan(typeName, protocoltest.State{}, c)
	if p.Diags.HasError() {
		return p.Diags
	}
	_, d := s.Apply(p)
	return d
}

func TestAttachedEnvironment(t *testing.T) {
	fake := attachingFake()
	s := newServer(t, fake, config{})
	spec := attachedSpec(t, s, nil)
	state, d := s.ReadData(dAttached, config{"profile": spec})
	noErrors(t, d)
	want := map[string]any{"backend": "docker", "endpoint": "fake-endpoint", "environment": "attached", "id": "docker/box-1", "spec": spec}
	if got := state.Get("binding"); !reflect.DeepEqual(got, want) {
		t.Errorf("binding %v", got)
	}
	if state.Get("status") != "running" || state.Get("platform") != "linux/amd64" || state.Get("details", "owner") != "someone" {
		t.Errorf("state %s", state.JSON())
	}
	run := s.MustApply(tExec, protocoltest.State{}, config{"binding": state.Get("binding"), "script": "true"})
	if fake.Count("run") != 1 {
		t.Errorf("calls %v", fake.Calls())
	}
	_, d = s.Apply(s.PlanDestroy(run))
	noErrors(t, d)
	for _, call := range fake.Calls() {
		if !slices.Contains([]string{"connect", "identity", "admit", "attach", "run"}, call) {
			t.Errorf("the call %q was made for an environment that is not ours", call)
		}
	}
}

// TestAttachedIsolationWarning: what is said of an attached environment is not what holds for this machine.
func TestAttachedIsolationWarning(t *testing.T) {
	s := newServer(t, attachingFake(), config{})
	_, d := s.ReadData(dProfile, attachedConfig(nil))
	noErrors(t, d)
	if w := d.Warnings(); !w.Has("No Isolation", `"p"`, "attached environment") || w.Has("this machine") || w.Has("memory of the provider") {
		t.Errorf("warnings %v", w)
	}
}

func TestAttachedEnvironmentGoneAndAway(t *testing.T) {
	fake := attachingFake()
	s := newServer(t, fake, config{})
	spec := attachedSpec(t, s, nil)
	state, d := s.ReadData(dAttached, config{"profile": spec})
	noErrors(t, d)
	bound := state.Get("binding")

	fake.SetTarget("box", &backendtest.FakeTarget{NativeID: "box-1", Status: sandboxcore.StatusAway})
	state, d = s.ReadData(dAttached, config{"profile": spec})
	noErrors(t, d)
	if state.Get("status") != "away" {
		t.Errorf("state %s", state.JSON())
	}
	d = attempt(s, tExec, config{"binding": bound, "script": "true"})
	wantError(t, d, "AK5003", "away")

	fake.SetTarget("box", nil)
	_, d = s.ReadData(dAttached, config{"profile": spec})
	wantError(t, d, "AK5002", "box")

	// Made anew under the same name it is another environment, and at another endpoint it is none at all.
	fake.SetTarget("box", &backendtest.FakeTarget{NativeID: "box-2", Status: sandboxcore.StatusRunning})
	d = attempt(s, tExec, config{"binding": bound, "script": "true"})
	wantError(t, d, "AK1005", "box-2")
	fake.SetID("elsewhere")
	d = attempt(s, tExec, config{"binding": bound, "script": "true"})
	wantError(t, d, "AK5009", "elsewhere")
	if fake.Count("run") != 0 {
		t.Error("something ran")
	}
}

// TestAttachedRefusals: both directions, and what an attached backend cannot do, before anything is asked of it.
func TestAttachedRefusals(t *testing.T) {
	fake := attachingFake()
	s := newServer(t, fake, config{})
	for name, test := range map[string]struct {
		config config
		texts  []string
	}{
		"attached without a target":      {attachedConfig(config{"docker": config{}}), []string{"AK1004", "no target"}},
		"managed with a target":          {attachedConfig(config{"environment": "managed"}), []string{"AK1004", "attach_to"}},
		"a backend that cannot":          {config{"name": "p", "type": "local_subprocess", "environment": "attached", "local_subprocess": config{}}, []string{"AK1004", "cannot bind"}},
		"egress that nobody enforces":    {attachedConfig(config{"policy": config{"network_egress": "deny"}}), []string{"AK2001"}},
		"memory that nobody enforces":    {attachedConfig(config{"policy": config{"memory_mb": 64}}), []string{"AK2004"}},
		"files that nobody protects":     {attachedConfig(config{"policy": config{"fs_allow_write": []any{"/tmp"}}}), []string{"AK2003"}},
		"isolation that nobody promises": {attachedConfig(config{"policy": config{"min_isolation": "container"}}), []string{"AK2005"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, d := s.ReadData(dProfile, test.config)
			wantError(t, d, test.texts...)
		})
	}
	spec := attachedSpec(t, s, nil)
	_, d := s.ReadData(dAttached, config{"profile": profile(t, s, nil)})
	wantError(t, d, "AK1004", "agentkernel_sandbox")
	_, d = s.ReadData(dAttached, config{"profile": spec, "principal": config{"mode": "user", "subject": "u"}})
	wantError(t, d, "AK3002")
	d = attempt(s, tSandbox, config{"profile": spec})
	wantError(t, d, "AK1004")
	d = attempt(s, tExec, config{"profile": spec, "script": "true"})
	wantError(t, d, "AK1004")

	state, d := s.ReadData(dAttached, config{"profile": spec})
	noErrors(t, d)
	for name, test := range map[string]struct {
		config config
		texts  []string
	}{
		"language":     {config{"code": "1"}, []string{"AK4001", "python"}},
		"stdin":        {config{"script": "cat", "stdin": "x"}, []string{"AK4002", "standard input"}},
		"timeout":      {config{"script": "true", "timeout": "1h"}, []string{"AK1003", "1h"}},
		"background":   {config{"script": "true", "background": "keep"}, []string{"AK4002"}},
		"output files": {config{"script": "true", "output_files": []any{"x"}}, []string{"AK4002"}},
	} {
		t.Run(name, func(t *testing.T) {
			// The very first plan: there is no state yet.
			p := s.Plan(tExec, protocoltest.State{}, test.config.With(config{"binding": state.Get("binding")}))
			wantError(t, p.Diags, test.texts...)
		})
	}
	if fake.Count("run") != 0 {
		t.Error("something ran")
	}
}

func TestPrincipalOfBackends(t *testing.T) {
	fake := attachingFake()
	ec2 := config{"role_arn": "arn:aws:iam::123456789012:role/r", "external_id": "ext", "session_tags": config{"team": "a"}, "source_identity": "me", "run_as": "alice"}
	cluster := config{"user": "u", "groups": []any{"g"}, "extra": config{"k": []any{"v"}}}
	who := config{"mode": "user", "subject": "u", "ec2_ssm": ec2, "kubernetes": cluster}
	s := newServer(t, fake, config{"principal": who})
	spec := attachedSpec(t, s, config{"identity": config{"mode": "user"}})
	state, d := s.ReadData(dAttached, config{"profile": spec})
	noErrors(t, d)
	if state.Get("principal", "ec2_ssm", "run_as") != "alice" || state.Get("principal", "ec2_ssm", "session_tags", "team") != "a" ||
		state.Get("principal", "kubernetes", "user") != "u" {
		t.Errorf("state %s", state.JSON())
	}
	// On a resource the principal comes back as it was written, null as null and empty as empty.
	for _, ec2 := range []any{nil, config{}, config{"session_tags": config{}}, ec2} {
		c := config{"binding": state.Get("binding"), "script": "true", "principal": config{"mode": "user", "subject": "u", "ec2_ssm": ec2}}
		applied := s.MustApply(tExec, protocoltest.State{}, c)
		s.MustBeSettled(applied, c)
	}
}
