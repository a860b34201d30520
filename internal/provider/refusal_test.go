package provider_test

import (
	"strings"
	"testing"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/protocoltest"
)

// TestRefusalsOfProfiles: each bad input has its code and names its attribute, at plan, as resource and as data source.
func TestRefusalsOfProfiles(t *testing.T) {
	s := newServer(t, newFake(), config{})
	base := config{"name": "p", "type": "docker", "docker": config{}}
	for name, c := range map[string]struct {
		cfg  config
		want []string
	}{
		"unknown type":          {config{"type": "nope", "docker": nil}, []string{"AK1001", "at type", `"docker"`}},
		"settings missing":      {config{"docker": nil}, []string{"AK1002", "at docker"}},
		"settings foreign":      {config{"local_subprocess": config{}}, []string{"AK1002", "at local_subprocess"}},
		"setting out of list":   {config{"docker": config{"pull_policy": "often"}}, []string{"at docker.pull_policy"}},
		"setting out of range":  {config{"docker": config{"size": 10}}, []string{"at docker.size"}},
		"setting fraction":      {config{"docker": config{"size": 1.5}}, []string{"at docker.size"}},
		"setting pattern":       {config{"docker": config{"caps": []string{"lower"}}}, []string{"at docker.caps"}},
		"setting null element":  {config{"docker": config{"caps": []any{nil}}}, []string{"at docker.caps"}},
		"setting NUL":           {config{"docker": config{"image": "a\x00b"}}, []string{"AK1003", "Attribute: docker.image"}},
		"name empty":            {config{"name": ""}, []string{"AK1003", "at name"}},
		"name with control":     {config{"name": "a\x1bb"}, []string{"AK1003", "at name"}},
		"environment":           {config{"environment": "borrowed"}, []string{"at environment"}},
		"attached not offered":  {config{"environment": "attached", "docker": config{"attach_to": "x"}}, []string{"AK1004", "at environment"}},
		"managed with a target": {config{"docker": config{"attach_to": "x"}}, []string{"AK1004", "Attribute: docker.attach_to"}},
		"scope":                 {config{"scope": "x"}, []string{"at scope"}},
		"idle timeout":          {config{"idle_timeout": 0}, []string{"AK1003", "at idle_timeout"}},
		"identity":              {config{"identity": config{"mode": "user"}}, []string{"AK3001", "Attribute: identity.mode"}},
		"egress":                {config{"policy": config{"network_egress": "some"}}, []string{"at policy.network_egress"}},
		"allowlist":             {config{"policy": config{"network_egress": "allowlist", "network_allow": []string{"example.org"}}}, []string{"AK2001", "Attribute: policy.network_egress"}},
		"allowlist empty":       {config{"policy": config{"network_egress": "allowlist"}}, []string{"AK1003", "Attribute: policy.network_allow"}},
		"allow with a list":     {config{"policy": config{"network_allow": []string{"example.org"}}}, []string{"AK1003", "Attribute: policy.network_allow"}},
		"malformed entry":       {config{"policy": config{"network_egress": "allowlist", "network_allow": []string{"10.0.0.1/8"}}}, []string{"AK1003", "Attribute: policy.network_allow"}},
		"entry with a port":     {config{"policy": config{"network_egress": "allowlist", "network_allow": []string{"example.org:443"}}}, []string{"AK1003", "Attribute: policy.network_allow"}},
		"path relative":         {config{"policy": config{"fs_allow_write": []string{"x"}}}, []string{"AK1003", "Attribute: policy.fs_allow_write"}},
		"path escapes":          {config{"policy": config{"fs_allow_write": []string{"/a/../b"}}}, []string{"AK1003", "Attribute: policy.fs_allow_write"}},
		"path NUL":              {config{"policy": config{"fs_allow_write": []string{"/a\x00"}}}, []string{"AK1003", "Attribute: policy.fs_allow_write"}},
		"read not enforced":     {config{"policy": config{"fs_allow_read": []string{"/a"}}}, []string{"AK2003", "Attribute: policy.fs_allow_read", "fs_allow_write only"}},
		"cpu":                   {config{"policy": config{"cpu": 0}}, []string{"AK1003", "Attribute: policy.cpu"}},
		"memory":                {config{"policy": config{"memory_mb": 1}}, []string{"AK1003", "Attribute: policy.memory_mb"}},
		"memory fraction":       {config{"policy": config{"memory_mb": 64.5}}, []string{"at policy.memory_mb"}},
		"timeout":               {config{"policy": config{"timeout": -1}}, []string{"AK1003", "Attribute: policy.timeout"}},
		"isolation":             {config{"policy": config{"min_isolation": "micro_vm"}}, []string{"AK2005", "Attribute: policy.min_isolation", `"container"`}},
		"isolation tier":        {config{"policy": config{"min_isolation": "steel"}}, []string{"at policy.min_isolation"}},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := base.With(c.cfg)
			p := s.Plan(tProfile, protocoltest.State{}, cfg)
			wantError(t, p.Diags, c.want...)
			_, d := s.ReadData(tProfile, cfg)
			wantError(t, d, c.want...)
			for _, x := range p.Diags {
				if strings.ContainsAny(x.Detail, "\x00\x1b") {
					t.Errorf("control characters in %q", x.Detail)
				}
			}
		})
	}
	t.Run("all violations of the policy in one plan", func(t *testing.T) {
		p := s.Plan(tProfile, protocoltest.State{}, config{
			"name": "p", "type": "local_subprocess", "local_subprocess": config{},
			"policy": config{"network_egress": "deny", "fs_allow_read": []string{"/a"}, "fs_allow_write": []string{"/b"}, "cpu": 1, "memory_mb": 64, "min_isolation": "container"},
		})
		for _, code := range []string{"AK2001", "AK2003", "AK2004", "AK2005"} {
			wantError(t, p.Diags, code, "local_subprocess")
		}
		if len(p.Diags.Errors()) != 6 {
			t.Errorf("%d errors: %s", len(p.Diags.Errors()), p.Diags)
		}
	})
	t.Run("strict = false warns on every plan", func(t *testing.T) {
		cfg := config{"name": "p", "type": "local_subprocess", "local_subprocess": config{}, "policy": config{"network_egress": "deny", "memory_mb": 64, "strict": false}}
		state := s.MustApply(tProfile, protocoltest.State{}, cfg)
		p := s.Plan(tProfile, state, cfg)
		for _, text := range []string{"network_egress", "memory_mb", "without any isolation"} {
			if !p.Diags.Warnings().Has(text) {
				t.Errorf("no warning of %s: %s", text, p.Diags)
			}
		}
		if p.Action != protocoltest.NoOp {
			t.Errorf("%s", p.Action)
		}
	})
}

// TestRefusalsOfSandboxes and of execs: refused at plan, before any call to a backend.
func TestRefusalsOfSandboxesAndExecs(t *testing.T) {
	fake := newFake()
	s := newServer(t, fake, config{"secrets": config{"token": "hunter2hunter2"}})
	spec := profile(t, s, nil)
	closed := profile(t, s, config{"policy": config{"network_egress": "deny"}})
	none := profile(t, s, config{"type": "local_subprocess", "docker": nil, "local_subprocess": config{}})
	bind := config{"backend": "docker", "endpoint": "e", "environment": "managed", "id": "docker/x", "spec": spec}
	sandbox := config{"profile": spec}
	run := config{"profile": spec, "code": "1"}
	for name, c := range map[string]struct {
		typeName string
		cfg      config
		want     []string
	}{
		"no JSON":                  {tSandbox, config{"profile": "x"}, []string{"AK1005", "at profile"}},
		"not canonical":            {tSandbox, config{"profile": strings.Replace(spec, `"v":1`, `"v": 1`, 1)}, []string{"AK1005", "canonical"}},
		"unknown key":              {tSandbox, config{"profile": strings.Replace(spec, `"v":1`, `"v":1,"w":2`, 1)}, []string{"AK1005"}},
		"newer version":            {tSandbox, config{"profile": strings.Replace(spec, `"v":1`, `"v":2`, 1)}, []string{"AK1005", "newer provider"}},
		"name":                     {tSandbox, sandbox.With(config{"name": "a b"}), []string{"AK1003", "at name"}},
		"env name":                 {tSandbox, sandbox.With(config{"env": config{"A=B": "x"}}), []string{"AK1003", "at env"}},
		"env NUL":                  {tSandbox, sandbox.With(config{"env": config{"A": "x\x00"}}), []string{"AK1003", "at env"}},
		"env null":                 {tSandbox, sandbox.With(config{"env": config{"A": nil}}), []string{"at env"}},
		"env twice":                {tSandbox, sandbox.With(config{"env": config{"A": "x"}, "secret_env": config{"A": "token"}}), []string{"AK1003", "env and in secret_env"}},
		"no such secret":           {tSandbox, sandbox.With(config{"secret_env": config{"A": "nope"}}), []string{"AK1003", "at secret_env", `"token"`}},
		"short write-only":         {tSandbox, sandbox.With(config{"env_wo": config{"A": "x"}}), []string{"AK1003", "at env_wo"}},
		"reserved label":           {tSandbox, sandbox.With(config{"labels": config{"agentkernel.io/managed": "x"}}), []string{"AK1003", "at labels"}},
		"package option":           {tSandbox, sandbox.With(config{"packages": []string{"--index-url=http://x"}}), []string{"AK1003", "at packages"}},
		"package path":             {tSandbox, sandbox.With(config{"packages": []string{"./x"}}), []string{"AK1003", "at packages"}},
		"package twice":            {tSandbox, sandbox.With(config{"packages": []string{"a", "a"}}), []string{"at packages"}},
		"packages under deny":      {tSandbox, config{"profile": closed, "packages": []string{"rich"}}, []string{"AK4002", "at packages"}},
		"pause not offered":        {tSandbox, config{"profile": none, "desired_state": "paused"}, []string{"AK4002", "at desired_state"}},
		"state":                    {tSandbox, sandbox.With(config{"desired_state": "stopped"}), []string{"at desired_state"}},
		"lifetime":                 {tSandbox, sandbox.With(config{"max_lifetime": "8h"}), []string{"AK2006", "at max_lifetime"}},
		"lifetime malformed":       {tSandbox, sandbox.With(config{"max_lifetime": "soon"}), []string{"at max_lifetime"}},
		"user principal":           {tSandbox, sandbox.With(config{"principal": config{"mode": "user", "subject": "ann"}}), []string{"AK3002", "at principal"}},
		"no subject":               {tSandbox, sandbox.With(config{"principal": config{"mode": "user"}}), []string{"AK3003", "at principal"}},
		"place twice":              {tExec, run.With(config{"binding": bind}), []string{"binding", "profile"}},
		"no place":                 {tExec, config{"code": "1"}, []string{"binding", "profile"}},
		"code twice":               {tExec, run.With(config{"script": "1"}), []string{"code", "script"}},
		"no code":                  {tExec, config{"profile": spec}, []string{"code", "command"}},
		"clean-up twice":           {tExec, run.With(config{"destroy_script": "1", "destroy_code": "1"}), []string{"destroy_code"}},
		"language":                 {tExec, run.With(config{"language": "cobol"}), []string{"AK4001", "at language", `"python"`}},
		"language of the clean-up": {tExec, config{"profile": none, "script": "1", "language": "cobol", "destroy_code": "1"}, []string{"AK4001", "at destroy_code"}},
		"empty code":               {tExec, run.With(config{"code": ""}), []string{"AK1003", "at code"}},
		"command NUL":              {tExec, config{"profile": spec, "command": []string{"a\x00"}}, []string{"AK1003", "at command"}},
		"empty command":            {tExec, config{"profile": spec, "command": []string{}}, []string{"at command"}},
		"timeout beyond":           {tExec, run.With(config{"timeout": "10h"}), []string{"AK1003", "at timeout"}},
		"timeout malformed":        {tExec, run.With(config{"timeout": "10"}), []string{"at timeout"}},
		"exit code":                {tExec, run.With(config{"success_exit_codes": []any{300}}), []string{"at success_exit_codes"}},
		"output":                   {tExec, run.With(config{"max_output_bytes": 1 << 30}), []string{"at max_output_bytes"}},
		"output file escapes":      {tExec, run.With(config{"output_files": []string{"../x"}}), []string{"AK1003", "at output_files"}},
		"output file twice":        {tExec, run.With(config{"output_files": []string{"x", "./x"}}), []string{"AK1003", "at output_files"}},
		"background":               {tExec, run.With(config{"background": "maybe"}), []string{"at background"}},
		"keep not offered":         {tExec, config{"profile": none, "script": "1", "background": "keep"}, []string{"AK4002", "at background"}},
		"stdin not offered":        {tExec, config{"profile": none, "script": "1", "stdin": "x"}, []string{"AK4002", "at stdin"}},
		"files not offered":        {tExec, config{"profile": none, "script": "1", "output_files": []string{"x"}}, []string{"AK4002", "at output_files"}},
		"binding of another type":  {tExec, config{"code": "1", "binding": bind.With(config{"backend": "local_subprocess"})}, []string{"AK1005", "at binding"}},
		"binding id":               {tExec, config{"code": "1", "binding": bind.With(config{"id": "x"})}, []string{"AK1005", "at binding"}},
		"binding spec":             {tExec, config{"code": "1", "binding": bind.With(config{"spec": "{}"})}, []string{"AK1005", "at binding"}},
		"binding without endpoint": {tExec, config{"code": "1", "binding": bind.With(config{"endpoint": ""})}, []string{"AK1005", "at binding"}},
	} {
		t.Run(name, func(t *testing.T) {
			p := s.Plan(c.typeName, protocoltest.State{}, c.cfg)
			wantError(t, p.Diags, c.want...)
		})
	}
	if calls := fake.Calls(); len(calls) != 0 {
		t.Errorf("a backend was called: %v", calls)
	}
}

func TestRefusalsOfTheProvider(t *testing.T) {
	for name, c := range map[string]struct {
		cfg  config
		want []string
	}{
		"short secret": {config{"secrets": config{"a": "12345"}}, []string{"AK1003", "at secrets", "6 bytes"}},
		"empty secret": {config{"secrets": config{"a": ""}}, []string{"AK1003", "at secrets"}},
		"null secret":  {config{"secrets": config{"a": nil}}, []string{"AK1003", "at secrets", "secret a", "is null", "-invoke"}},
		"audit log":    {config{"audit_log": "/nonexistent/dir/log"}, []string{"AK1003", "at audit_log"}},
		"mode":         {config{"principal": config{"mode": "root"}}, []string{"at principal.mode"}},
		"NUL":          {config{"docker": config{"host": "a\x00"}}, []string{"AK1003", "Attribute: docker.host"}},
	} {
		t.Run(name, func(t *testing.T) {
			wantError(t, unconfigured(t, newFake()).Configure(c.cfg), c.want...)
		})
	}
}
