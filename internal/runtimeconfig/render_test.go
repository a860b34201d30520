package runtimeconfig_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/backends"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/runtimeconfig"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

const manifestSum = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

// full are specs with everything set that a backend's profile can say, one at least for every registered backend.
var full = map[sandboxcore.BackendType][]string{
	sandboxcore.BackendBubblewrap: {
		`{"bubblewrap":{"pids_limit":64},"name":"jail","policy":{"network_egress":"deny"},"type":"bubblewrap","v":1}`,
	},
	sandboxcore.BackendDocker: {
		`{"docker":{"cap_add":["CHOWN"],"image":"registry.example.org/py:3","isolation":"syscall_filter","no_new_privileges":false,"pids_limit":64,` +
			`"pull_policy":"never","runtime":"runsc","user":"1000:1000","workspace":"memory","workspace_size_mb":64},"idle_timeout":600.5,"name":"boxed",` +
			`"policy":{"cpu":1.5,"fs_allow_write":["/tmp","/workspace"],"memory_mb":512,"min_isolation":"syscall_filter","network_egress":"deny","timeout":30},"scope":"per_call","type":"docker","v":1}`,
		`{"name":"on","type":"docker","v":1}`,
		`{"docker":{"network":"agents","seccomp_profile":"unconfined"},"name":"wired","type":"docker","v":1}`,
		`{"docker":{"attach_to":"box"},"environment":"attached","name":"theirs","type":"docker","v":1}`,
	},
	sandboxcore.BackendE2B: {
		`{"e2b":{"auto_pause":false,"metadata":{"team":"data"},"template":"team/python:3","user":"runner"},"idle_timeout":300,"name":"cloud",` +
			`"policy":{"network_allow":["192.0.2.0/24"],"network_egress":"allowlist"},"type":"e2b","v":1}`,
		`{"name":"cloud-domain","policy":{"network_allow":["*.example.org"],"network_egress":"allowlist"},"type":"e2b","v":1}`,
		`{"e2b":{"allow_host_mount":true,"allow_public_traffic":true,"auto_resume":true,"code_runner":"code_interpreter","renew_on_refresh":true,"secure":false},"name":"cloud-open","type":"e2b","v":1}`,
	},
	sandboxcore.BackendEC2SSM: {
		`{"ec2_ssm":{"allow_secrets_in_command_history":true,"attach_to":"i-0123456789abcdef0","document":"Run-Shell","output_s3":{"bucket":"out-put","prefix":"runs","region":"eu-west-2"},"region":"eu-west-1"},` +
			`"environment":"attached","identity":{"mode":"user"},"name":"machine","type":"ec2_ssm","v":1}`,
	},
	sandboxcore.BackendKubernetes: {
		`{"identity":{"mode":"user"},"kubernetes":{"architecture":"arm64","container_security_context":{"allow_privilege_escalation":true,"capabilities_add":["CHOWN"],"read_only_root_filesystem":true},` +
			`"create_timeout":240.5,"env":{"MODE":"yes","PORT":"0x10"},"image":"py","image_pull_secrets":["regcred"],"isolation":"micro_vm","labels":{"team":"data"},"namespace":"agents",` +
			`"network_policy":true,"node_selector":{"pool":"sandbox"},"runtime_class_name":"kata","security_context":{"fs_group":2000,"run_as_group":2000,"run_as_non_root":true,"run_as_user":2000,` +
			`"seccomp_profile":"RuntimeDefault","supplemental_groups":["3000"]},"service_account":"runner","tolerations":["dedicated=agents:NoSchedule"],"wait_for_node":true},` +
			`"name":"pods","policy":{"cpu":0.5,"fs_allow_write":["/workspace"],"memory_mb":256,"min_isolation":"micro_vm","network_allow":["192.0.2.0/24"],"network_egress":"allowlist"},"type":"kubernetes","v":1}`,
		`{"kubernetes":{"network_allow_dns":true,"network_policy":true,"priority_class_name":"low","pull_policy":"never","workload":"sandbox","workspace_size_mb":64,"workspace_storage_class":"fast"},` +
			`"name":"pods-kept","policy":{"network_allow":["192.0.2.0/24"],"network_egress":"allowlist"},"type":"kubernetes","v":1}`,
		`{"kubernetes":{"workspace_claim":"files"},"name":"pods-claim","type":"kubernetes","v":1}`,
		`{"environment":"attached","kubernetes":{"attach_to":"agents/job-0"},"name":"theirs","type":"kubernetes","v":1}`,
	},
	sandboxcore.BackendLocalSubprocess: {
		`{"local_subprocess":{"workdir":"/srv/agents"},"name":"1e3","policy":{"network_egress":"deny","strict":false},"scope":"per_runtime","type":"local_subprocess","v":1}`,
	},
	sandboxcore.BackendPlugin: {
		`{"name":"served","plugin":{"features":["exec"],"manifest":"/srv/abx-provider.toml","sha256":"` + manifestSum + `"},"type":"plugin","v":1}`,
		`{"name":"served-open","plugin":{"allow_host_mount":true,"allow_public_traffic":true,"auto_pause":false,"auto_resume":true,"code_runner":"code_interpreter","manifest":"/srv/abx-provider.toml","metadata":{"team":"data"},` +
			`"renew_on_refresh":true,"secure":false,"sha256":"` + manifestSum + `","template":"py","user":"runner"},"type":"plugin","v":1}`,
	},
}

func parse(t *testing.T, specs ...string) []*sandboxcore.Profile {
	t.Helper()
	out := make([]*sandboxcore.Profile, len(specs))
	for i, s := range specs {
		p, err := backends.Registry().ParseSpec(s)
		if err != nil {
			t.Fatalf("%s: %v", s, err)
		}
		out[i] = p
	}
	return out
}

func render(t *testing.T, o runtimeconfig.Options, specs ...string) runtimeconfig.Result {
	t.Helper()
	got, err := runtimeconfig.Render(parse(t, specs...), o)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// TestGolden: one file per registered backend. AGENTKERNEL_TEST_WRITE_GOLDEN=1 writes them.
func TestGolden(t *testing.T) {
	for _, kind := range backends.Registry().Types() {
		t.Run(string(kind), func(t *testing.T) {
			specs := full[kind]
			if len(specs) == 0 {
				t.Fatalf("there is no spec of the backend %s", kind)
			}
			o := runtimeconfig.Options{}
			if len(specs) > 1 && kind != sandboxcore.BackendPlugin {
				o.DefaultProfile = new(parse(t, specs[0])[0].Name)
			}
			got := render(t, o, specs...)
			var b strings.Builder
			b.WriteString(got.YAML + "--- json\n" + got.JSON + "\n--- env\n")
			for _, name := range slices.Sorted(maps.Keys(got.Env)) {
				fmt.Fprintf(&b, "%s=%s\n", name, got.Env[name])
			}
			b.WriteString("--- omitted\n" + strings.Join(append(got.Omitted, ""), "\n") + "--- warnings\n")
			for _, w := range got.Warnings {
				fmt.Fprintf(&b, "%s %s: %s\n", w.Profile, w.Dimension, w.Said)
			}
			file := filepath.Join("testdata", string(kind)+".golden")
			if os.Getenv("AGENTKERNEL_TEST_WRITE_GOLDEN") != "" {
				if err := os.WriteFile(file, []byte(b.String()), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if b.String() != string(want) {
				t.Errorf("%s is\n%s\nand should be\n%s", file, b.String(), want)
			}
		})
	}
}

// TestRoundTrip: what is written is read back by a strict reader of Agent Kernel's keys, in all three forms, and gives the
// same profile but for what was listed as omitted.
func TestRoundTrip(t *testing.T) {
	reg := backends.Registry()
	for _, kind := range reg.Types() {
		for _, spec := range append(full[kind], fmt.Sprintf(`{"name":"plain","type":%q,"v":1}`, kind)) {
			p := parse(t, spec)[0]
			t.Run(string(kind)+" "+p.Name, func(t *testing.T) {
				got := render(t, runtimeconfig.Options{}, spec)
				if slices.Contains(got.Omitted, "profiles."+p.Name) {
					if kind != sandboxcore.BackendBubblewrap && kind != sandboxcore.BackendPlugin {
						t.Errorf("all of a profile of %s is left out", kind)
					}
					return
				}
				for form, text := range map[string]string{"yaml": got.YAML, "json": got.JSON, "env": readVariables(t, got.Env)} {
					read, err := readStrictly(text)
					if err != nil {
						t.Fatalf("%s: %v\n%s", form, err, text)
					}
					if !read.Enabled || read.DefaultProfile != p.Name || len(read.Profiles) != 1 {
						t.Errorf("%s: %+v", form, read)
					}
					back, err := reg.Resolve(read.Profiles[p.Name].input(t, p.Name, text))
					if err != nil {
						t.Fatalf("%s: %v", form, err)
					}
					spec, err := sandboxcore.EncodeSpec(back)
					if err != nil {
						t.Fatal(err)
					}
					if want := without(t, p, got.Omitted); spec != want {
						t.Errorf("%s gave\n%s\nand should have given\n%s", form, spec, want)
					}
				}
			})
		}
	}
}

// without gives the spec of p less what is listed as omitted.
func without(t *testing.T, p *sandboxcore.Profile, omitted []string) string {
	t.Helper()
	q := *p
	q.Settings = sandboxcore.Settings{}
	for k, v := range p.Settings {
		if !slices.Contains(omitted, "profiles."+p.Name+"."+string(p.Type)+"."+k) {
			q.Settings[k] = v
		}
	}
	if slices.Contains(omitted, "profiles."+p.Name+".policy.min_isolation") {
		q.Policy.MinIsolation = ""
	}
	spec, err := sandboxcore.EncodeSpec(&q)
	if err != nil {
		t.Fatal(err)
	}
	return spec
}

func TestOptions(t *testing.T) {
	o := runtimeconfig.Options{
		Enabled: new(false), Agents: &[]string{"coder", "no"}, DefaultProfile: new("b"), PrincipalResolver: new("app.identity.Resolver"), ToolOutputMaxChars: new(int64(4000)),
		Broker: runtimeconfig.Broker{
			Flavor: new("queue"), WaitTimeout: new(0.5), WaitPollInterval: new(0.25), InlinePayloadMaxBytes: new(int64(1 << 20)),
			ResponseTTL: new(3600.0), SweepInterval: new(60.0), WorkerTimeoutCeiling: new(840.0),
		},
		APIKeyEnv: map[string]string{"e2b": "TEAM_KEY"},
	}
	got := render(t, o, `{"name":"b","type":"e2b","v":1}`, `{"name":"a","type":"e2b","v":1}`)
	for form, text := range map[string]string{"yaml": got.YAML, "json": got.JSON, "env": readVariables(t, got.Env)} {
		read, err := readStrictly(text)
		if err != nil {
			t.Fatalf("%s: %v\n%s", form, err, text)
		}
		broker := akBroker{
			Flavor: "queue", WaitTimeout: new(0.5), WaitPollInterval: new(0.25), InlinePayloadMaxBytes: new(int64(1 << 20)),
			ResponseTTL: new(3600.0), SweepInterval: new(60.0), WorkerTimeoutCeiling: new(840.0),
		}
		if read.Enabled || read.DefaultProfile != "b" || !reflect.DeepEqual(read.Agents, &[]string{"coder", "no"}) || *read.PrincipalResolver != "app.identity.Resolver" ||
			*read.ToolOutputMaxChars != 4000 || !reflect.DeepEqual(*read.Broker, broker) {
			t.Errorf("%s: %+v", form, read)
		}
		if read.Profiles["a"].E2B.APIKeyEnv != "TEAM_KEY" {
			t.Errorf("%s: %+v", form, read.Profiles["a"].E2B)
		}
	}
	none := render(t, runtimeconfig.Options{Agents: &[]string{}}, `{"name":"a","type":"e2b","v":1}`)
	if read, err := readStrictly(none.YAML); err != nil || read.Agents == nil || len(*read.Agents) != 0 || none.Env["AK_SANDBOX__AGENTS"] != "[]" {
		t.Errorf("no agents: %s %v", none.YAML, err)
	}
	if read, err := readStrictly(render(t, runtimeconfig.Options{}, `{"name":"a","type":"e2b","v":1}`).YAML); err != nil || read.Agents != nil {
		t.Errorf("all agents: %+v %v", read, err)
	}
}

// TestNamesThatLookLikeSomethingElse: Agent Kernel reads YAML 1.1. Whatever could be taken for a number, a boolean, a date
// or a null is quoted.
func TestNamesThatLookLikeSomethingElse(t *testing.T) {
	for _, name := range []string{"on", "NO", "y", "null", "None", "123", "1e3", "0x10", "0o7", "1_000", "2024-01-01", "1.5", "a.b-c_d", "true"} {
		got := render(t, runtimeconfig.Options{}, fmt.Sprintf(`{"name":%q,"type":"e2b","v":1}`, name))
		if quoted := strings.Contains(got.YAML, "\n    \""+name+"\":"); quoted == (name == "a.b-c_d") {
			t.Errorf("%s:\n%s", name, got.YAML)
		}
		if read, err := readStrictly(got.YAML); err != nil || read.DefaultProfile != name {
			t.Errorf("%s: %v\n%s", name, err, got.YAML)
		}
	}
	labels := map[string]string{"a": "yes", "b": "12:30:45", "c": "", "d": " x", "e": "a: b", "f": "#x", "g": "=", "h": "<<", "i": "é\u2028", "j": "line\nbreak", "k": "- x", "l": "!t", "m": "~"}
	text, err := json.Marshal(labels)
	if err != nil {
		t.Fatal(err)
	}
	spec := canonical(t, sandboxcore.ProfileInput{Name: "p", Type: "kubernetes", Blocks: map[string]sandboxcore.Settings{"kubernetes": {"env": decoded(t, text)}}})
	read, err := readStrictly(render(t, runtimeconfig.Options{}, spec).YAML)
	if err != nil || !reflect.DeepEqual(read.Profiles["p"].Kubernetes.Env, labels) {
		t.Errorf("%v %v", read.Profiles["p"].Kubernetes, err)
	}
}

func canonical(t *testing.T, in sandboxcore.ProfileInput) string {
	t.Helper()
	p, err := backends.Registry().Resolve(in)
	if err != nil {
		t.Fatal(err)
	}
	spec, err := sandboxcore.EncodeSpec(p)
	if err != nil {
		t.Fatal(err)
	}
	return spec
}

func decoded(t *testing.T, text []byte) any {
	t.Helper()
	var v map[string]any
	if err := yaml.Unmarshal(text, &v); err != nil {
		t.Fatal(err)
	}
	return v
}

func TestRefusals(t *testing.T) {
	const a, b = `{"name":"a","type":"e2b","v":1}`, `{"name":"b","type":"docker","v":1}`
	const key = "e2b_0123456789abcdef"
	for name, c := range map[string]struct {
		specs []string
		o     runtimeconfig.Options
		at    string
		said  string
	}{
		"one name twice":           {[]string{a, `{"name":"a","type":"docker","v":1}`}, runtimeconfig.Options{}, "profiles", `"a"`},
		"no default":               {[]string{a, b}, runtimeconfig.Options{}, "default_profile", "none is called"},
		"unknown default":          {[]string{a}, runtimeconfig.Options{DefaultProfile: new("c")}, "default_profile", `"c"`},
		"default that is left out": {[]string{a, `{"name":"j","type":"bubblewrap","v":1}`}, runtimeconfig.Options{DefaultProfile: new("j")}, "default_profile", `"j"`},
		"a key, not its name":      {[]string{a}, runtimeconfig.Options{APIKeyEnv: map[string]string{"e2b": key}}, "api_key_env", "no name of an environment variable"},
		"a backend without keys":   {[]string{a}, runtimeconfig.Options{APIKeyEnv: map[string]string{"docker": "KEY"}}, "api_key_env", `"docker"`},
		"a file would be read": {
			[]string{`{"kubernetes":{"env":{"A":"\u003cfile:token\u003e"}},"name":"k","type":"kubernetes","v":1}`}, runtimeconfig.Options{}, "profiles", "<file:",
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := runtimeconfig.Render(parse(t, c.specs...), c.o)
			all := sandboxcore.AllErrors(err, "")
			if len(all) != 1 || all[0].Code != sandboxcore.CodeValue || !slices.Equal(all[0].Attribute, []string{c.at}) || !strings.Contains(all[0].Said, c.said) || all[0].Next == "" {
				t.Fatalf("%v", err)
			}
			if strings.Contains(err.Error(), key) {
				t.Errorf("the key is in the error: %v", err)
			}
		})
	}
}

// TestWarnings: what Agent Kernel has a key for and does not do, one case a line.
func TestWarnings(t *testing.T) {
	for name, c := range map[string]struct {
		p    sandboxcore.Profile
		at   string
		said string
	}{
		"nothing to say":               {profile(sandboxcore.BackendDocker, sandboxcore.Policy{NetworkEgress: "deny"}), "", ""},
		"docker, workspace":            {profile(sandboxcore.BackendDocker, sandboxcore.Policy{FSAllowWrite: []string{"/workspace"}}), "", ""},
		"docker, other paths":          {profile(sandboxcore.BackendDocker, sandboxcore.Policy{FSAllowWrite: []string{"/data"}}), "policy.fs_allow_write", "ignores the paths"},
		"docker, allow-list":           {profile(sandboxcore.BackendDocker, sandboxcore.Policy{NetworkEgress: "allowlist", NetworkAllow: []string{"192.0.2.0/24"}}), "policy.network_egress", "refuses every run"},
		"docker, user":                 {user(profile(sandboxcore.BackendDocker, sandboxcore.Policy{})), "identity.mode", "refuses every run"},
		"kubernetes, reading":          {profile(sandboxcore.BackendKubernetes, sandboxcore.Policy{FSAllowRead: []string{"/x"}}), "policy.fs_allow_read", "can still be read"},
		"kubernetes, no assertion":     {profile(sandboxcore.BackendKubernetes, sandboxcore.Policy{NetworkEgress: "deny"}), "policy.network_egress", "refuses every run"},
		"kubernetes, domain":           {asserted(profile(sandboxcore.BackendKubernetes, sandboxcore.Policy{NetworkEgress: "allowlist", NetworkAllow: []string{"example.org"}})), "policy.network_allow", "no domains"},
		"kubernetes, address":          {asserted(profile(sandboxcore.BackendKubernetes, sandboxcore.Policy{NetworkEgress: "allowlist", NetworkAllow: []string{"192.0.2.0/24"}})), "", ""},
		"kubernetes, user":             {user(profile(sandboxcore.BackendKubernetes, sandboxcore.Policy{})), "identity.mode", "principal_resolver"},
		"kubernetes, tier":             {profile(sandboxcore.BackendKubernetes, sandboxcore.Policy{MinIsolation: "micro_vm"}), "policy.min_isolation", `"container"`},
		"attached, limits":             {attached(profile(sandboxcore.BackendKubernetes, sandboxcore.Policy{CPU: new(1.0)})), "policy.cpu", "applies none of it"},
		"e2b, deny":                    {profile(sandboxcore.BackendE2B, sandboxcore.Policy{NetworkEgress: "deny", MinIsolation: "micro_vm"}), "", ""},
		"e2b, addresses":               {profile(sandboxcore.BackendE2B, sandboxcore.Policy{NetworkEgress: "allowlist", NetworkAllow: []string{"192.0.2.0/24"}}), "policy.network_egress", "NOTHING IS KEPT"},
		"e2b, a domain":                {profile(sandboxcore.BackendE2B, sandboxcore.Policy{NetworkEgress: "allowlist", NetworkAllow: []string{"example.org"}}), "policy.network_allow", "refuses to create"},
		"e2b, limits":                  {profile(sandboxcore.BackendE2B, sandboxcore.Policy{MemoryMB: new(int64(512))}), "policy.memory_mb", "refuses every run"},
		"daytona, a domain":            {profile(sandboxcore.BackendDaytona, sandboxcore.Policy{NetworkEgress: "allowlist", NetworkAllow: []string{"example.org"}}), "policy.network_allow", "domains are none"},
		"daytona, cores":               {profile(sandboxcore.BackendDaytona, sandboxcore.Policy{CPU: new(0.5)}), "policy.cpu", "up to 1."},
		"daytona, memory":              {profile(sandboxcore.BackendDaytona, sandboxcore.Policy{MemoryMB: new(int64(1500))}), "policy.memory_mb", "2048"},
		"daytona, snapshot":            {snapshot(profile(sandboxcore.BackendDaytona, sandboxcore.Policy{CPU: new(1.0)})), "daytona.snapshot", "only where"},
		"daytona, whole":               {profile(sandboxcore.BackendDaytona, sandboxcore.Policy{CPU: new(2.0), MemoryMB: new(int64(2048))}), "", ""},
		"ec2_ssm, limits":              {profile(sandboxcore.BackendEC2SSM, sandboxcore.Policy{CPU: new(1.0)}), "policy.cpu", "refuses every run"},
		"local_subprocess, not strict": {lax(profile(sandboxcore.BackendLocalSubprocess, sandboxcore.Policy{NetworkEgress: "deny"})), "", ""},
		"unknown to it":                {profile(sandboxcore.BackendBubblewrap, sandboxcore.Policy{}), "type", "left out"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := runtimeconfig.Render([]*sandboxcore.Profile{&c.p}, runtimeconfig.Options{})
			if err != nil {
				t.Fatal(err)
			}
			if c.at == "" {
				if len(got.Warnings) > 0 {
					t.Errorf("warnings %v", got.Warnings)
				}
				return
			}
			if len(got.Warnings) != 1 || got.Warnings[0].Dimension != c.at || got.Warnings[0].Profile != "p" || !strings.Contains(got.Warnings[0].Said, c.said) {
				t.Errorf("warnings %v", got.Warnings)
			}
		})
	}
}

// TestWarningsOfTheSection: what is beside the profiles decides whether Agent Kernel runs anything under one.
func TestWarningsOfTheSection(t *testing.T) {
	p := user(profile(sandboxcore.BackendEC2SSM, sandboxcore.Policy{}))
	for name, c := range map[string]struct {
		o    runtimeconfig.Options
		want []string
	}{
		"no resolver":          {runtimeconfig.Options{}, []string{"identity.mode"}},
		"resolver":             {runtimeconfig.Options{PrincipalResolver: new("app.Resolver")}, nil},
		"a queue with time":    {runtimeconfig.Options{PrincipalResolver: new("r"), Broker: runtimeconfig.Broker{Flavor: new("queue"), WorkerTimeoutCeiling: new(120.0)}}, nil},
		"a queue without":      {runtimeconfig.Options{PrincipalResolver: new("r"), Broker: runtimeconfig.Broker{Flavor: new("queue"), WorkerTimeoutCeiling: new(119.5)}}, []string{"policy.timeout"}},
		"threads have no such": {runtimeconfig.Options{PrincipalResolver: new("r"), Broker: runtimeconfig.Broker{WorkerTimeoutCeiling: new(1.0)}}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := runtimeconfig.Render([]*sandboxcore.Profile{&p}, c.o)
			if err != nil {
				t.Fatal(err)
			}
			var at []string
			for _, w := range got.Warnings {
				at = append(at, w.Dimension)
			}
			if !slices.Equal(at, c.want) {
				t.Errorf("warnings %v", got.Warnings)
			}
		})
	}
}

func snapshot(p sandboxcore.Profile) sandboxcore.Profile {
	p.Settings["snapshot"] = "base"
	return p
}

func profile(kind sandboxcore.BackendType, pol sandboxcore.Policy) sandboxcore.Profile {
	if pol.NetworkEgress == "" {
		pol.NetworkEgress = sandboxcore.NetworkAllow
	}
	pol.Strict, pol.Timeout = true, sandboxcore.DefaultTimeout
	return sandboxcore.Profile{
		Name: "p", Type: kind, Environment: sandboxcore.EnvironmentManaged, Scope: sandboxcore.ScopePerSession, IdleTimeout: sandboxcore.DefaultIdleTimeout,
		Identity: sandboxcore.IdentityAgent, Policy: pol, Settings: sandboxcore.Settings{},
	}
}

func user(p sandboxcore.Profile) sandboxcore.Profile {
	p.Identity = sandboxcore.IdentityUser
	return p
}

func attached(p sandboxcore.Profile) sandboxcore.Profile {
	p.Environment = sandboxcore.EnvironmentAttached
	return p
}

func asserted(p sandboxcore.Profile) sandboxcore.Profile {
	p.Settings["network_policy"] = true
	return p
}

func lax(p sandboxcore.Profile) sandboxcore.Profile {
	p.Policy.Strict = false
	return p
}

// TestGoldenSpecsAreWhole: the golden files show every setting that a profile of the backend can have, so that a new one is
// either written or listed as omitted before it is released.
func TestGoldenSpecsAreWhole(t *testing.T) {
	for _, f := range backends.Registry().Factories() {
		set := map[string]bool{}
		var note func(at string, v any)
		note = func(at string, v any) {
			set[at] = true
			if m, ok := v.(sandboxcore.Settings); ok {
				v = map[string]any(m)
			}
			if m, ok := v.(map[string]any); ok {
				for k, e := range m {
					note(at+"."+k, e)
				}
			}
		}
		for _, p := range parse(t, full[f.Type]...) {
			note(string(f.Type), p.Settings)
		}
		var missing func(at string, settings []sandboxcore.Setting)
		missing = func(at string, settings []sandboxcore.Setting) {
			for _, s := range settings {
				if name := at + "." + s.Name; !set[name] {
					t.Errorf("no spec sets %s", name)
				} else {
					missing(name, s.Fields)
				}
			}
		}
		missing(string(f.Type), f.Settings)
	}
}
