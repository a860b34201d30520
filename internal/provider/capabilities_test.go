package provider_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/protocoltest"
)

const (
	tCapabilities = "agentkernel_capabilities"
	tBackends     = "agentkernel_backends"
)

func list(v any) string {
	l, _ := v.([]any)
	out := make([]string, len(l))
	for i, e := range l {
		out[i], _ = e.(string)
	}
	return strings.Join(out, " ")
}

func TestCapabilitiesDataSource(t *testing.T) {
	fake := newFake()
	s := newServer(t, fake, config{})
	wish := config{"network_egress": "deny", "fs_allow_read": []string{"/x"}, "memory_mb": 64, "min_isolation": "micro_vm"}
	got, d := s.ReadData(tCapabilities, config{"backend": "docker", "policy": wish})
	noErrors(t, d)
	if list(got.Get("unenforced")) != "fs_allow_read min_isolation" || got.Get("pause") != true || list(got.Get("network_modes")) != "allow deny" || got.Get("offer") != nil {
		t.Errorf("docker: %s", got.JSON())
	}
	got, d = s.ReadData(tCapabilities, config{"backend": "local_subprocess", "policy": wish})
	noErrors(t, d)
	if list(got.Get("unenforced")) != "network_egress fs_allow_read memory_mb min_isolation" || got.Get("isolation") != "none" {
		t.Errorf("local: %s", got.JSON())
	}
	spec := profile(t, s, config{"policy": config{"cpu": 1}})
	got, d = s.ReadData(tCapabilities, config{"profile": spec})
	noErrors(t, d)
	if list(got.Get("unenforced")) != "" {
		t.Errorf("profile: %s", got.JSON())
	}
	got, d = s.ReadData(tCapabilities, config{"profile": spec, "policy": wish})
	noErrors(t, d)
	if list(got.Get("unenforced")) != "fs_allow_read min_isolation" {
		t.Errorf("profile with another policy: %s", got.JSON())
	}
	if calls := fake.Calls(); len(calls) > 0 {
		t.Errorf("asked without probe: %v", calls)
	}
	got, d = s.ReadData(tCapabilities, config{"backend": "docker", "probe": true})
	noErrors(t, d)
	if got.Get("offer", "reachable") != true || got.Get("offer", "facts", "kind") != "fake" {
		t.Errorf("probe: %s", got.JSON())
	}
	for name, c := range map[string]struct {
		cfg  config
		want []string
	}{
		"nothing":   {config{}, []string{"backend", "profile"}},
		"both":      {config{"backend": "docker", "profile": spec}, []string{"backend", "profile"}},
		"unknown":   {config{"backend": "nope"}, []string{"AK1001", "at backend"}},
		"bad spec":  {config{"profile": "x"}, []string{"AK1005"}},
		"bad value": {config{"backend": "docker", "policy": config{"cpu": -1}}, []string{"AK1003", "policy.cpu"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, d := s.ReadData(tCapabilities, c.cfg)
			wantError(t, d, c.want...)
		})
	}
}

func TestBackendsDataSource(t *testing.T) {
	fake := newFake()
	s := newServer(t, fake, config{"docker": config{"host": "x"}})
	got, d := s.ReadData(tBackends, config{})
	noErrors(t, d)
	if got.Get("backends", "docker", "configured") != true || got.Get("backends", "local_subprocess", "configured") != false ||
		got.Get("backends", "docker", "capabilities", "isolation") != "container" || got.Get("backends", "docker", "offer") != nil {
		t.Errorf("%s", got.JSON())
	}
	if calls := fake.Calls(); len(calls) > 0 {
		t.Errorf("asked without probe: %v", calls)
	}
	fake.SetFail(func(_ context.Context, call string) error {
		if call == "connect" {
			return errors.New("nobody there")
		}
		return nil
	})
	got, d = s.ReadData(tBackends, config{"probe": true})
	noErrors(t, d)
	if reason, _ := got.Get("backends", "docker", "offer", "reason").(string); got.Get("backends", "docker", "offer", "reachable") != false || !strings.Contains(reason, "nobody there") {
		t.Errorf("%s", got.JSON())
	}
}

// TestPrincipalOfTheProvider: it counts where a construct names none, and a change of it counts too.
func TestPrincipalOfTheProvider(t *testing.T) {
	fake := newFake()
	before := newServer(t, fake, config{"principal": config{"subject": "first"}})
	after := newServer(t, fake, config{"principal": config{"subject": "second", "groups": []string{"g"}}})
	spec := profile(t, before, nil)
	box := before.MustApply(tSandbox, protocoltest.State{}, config{"profile": spec})
	if box.Get("principal", "subject") != "first" {
		t.Errorf("%s", box.JSON())
	}
	p := after.Plan(tSandbox, box, config{"profile": spec})
	if p.Action != protocoltest.Replace || p.Get("principal", "subject") != "second" || list(p.Get("principal", "groups")) != "g" {
		t.Errorf("%s %s", p.Action, p.JSON())
	}
	own := config{"profile": spec, "principal": config{"subject": "first"}}
	if p := after.Plan(tSandbox, box, own); p.Action != protocoltest.NoOp {
		t.Errorf("%s %s", p.Action, p.JSON())
	}
	run := before.MustApply(tExec, protocoltest.State{}, config{"profile": spec, "code": "1"})
	if p := after.Plan(tExec, run, config{"profile": spec, "code": "1"}); p.Action != protocoltest.Update || p.Get("run_id") != protocoltest.Unknown {
		t.Errorf("%s %s", p.Action, p.JSON())
	}
}

// TestAuditLogOfTheProvider: operations and refusals are recorded, content is not.
func TestAuditLogOfTheProvider(t *testing.T) {
	file := filepath.Join(t.TempDir(), "audit.log")
	s := newServer(t, newFake(), config{"audit_log": file, "secrets": config{"token": "hunter2hunter2"}})
	spec := profile(t, s, nil)
	s.MustApply(tExec, protocoltest.State{}, config{"profile": spec, "code": "print('content-of-the-code')", "secret_env": config{"T": "token"}})
	_, d := s.Apply(s.Plan(tExec, protocoltest.State{}, config{"profile": spec, "code": protocoltest.Unknown, "script": nil}), config{"code": ""})
	wantError(t, d, "AK1003")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"verdict":"allowed"`, `"verdict":"done"`, `"verdict":"refused"`, `"subject":"terraform"`, `"code_sha256"`} {
		if !strings.Contains(string(text), want) {
			t.Errorf("no %s in\n%s", want, text)
		}
	}
	for _, secret := range []string{"content-of-the-code", "hunter2"} {
		if strings.Contains(string(text), secret) {
			t.Errorf("%s is in the log", secret)
		}
	}
}
