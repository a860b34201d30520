package provider_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/terraform-plugin-testing/helper/resource"
	"github.com/hashicorp/terraform-plugin-testing/knownvalue"
	"github.com/hashicorp/terraform-plugin-testing/statecheck"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/backends"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/protocoltest"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/provider"
)

const (
	dRuntime = "agentkernel_runtime_config"

	e2bList  = `{"name":"cloud","policy":{"network_allow":["192.0.2.0/24"],"network_egress":"allowlist"},"type":"e2b","v":1}`
	boxed    = `{"docker":{"pids_limit":64},"name":"boxed","policy":{"network_egress":"deny"},"type":"docker","v":1}`
	jail     = `{"name":"jail","type":"bubblewrap","v":1}`
	refused  = `{"name":"host","policy":{"network_egress":"deny"},"type":"local_subprocess","v":1}`
	tolerant = `{"name":"host","policy":{"network_egress":"deny","strict":false},"type":"local_subprocess","v":1}`
)

// runtimeServer has the real backends, whose profiles mean something to Agent Kernel, and no configuration.
func runtimeServer(t *testing.T) *protocoltest.Server {
	t.Helper()
	return protocoltest.New(t, provider.New("test", backends.Registry()))
}

func TestRuntimeConfig(t *testing.T) {
	s := runtimeServer(t)
	state, d := s.ReadData(dRuntime, config{
		"profiles": []string{boxed, e2bList, jail}, "default_profile": "boxed", "agents": []string{"coder"}, "principal_resolver": "app.Resolver",
		"tool_output_max_chars": 4000, "api_key_env": config{"e2b": "TEAM_KEY"},
		"broker": config{
			"flavor": "queue", "wait_timeout": 0, "wait_poll_interval": 0.25, "inline_payload_max_bytes": 1024, "response_ttl": 60, "sweep_interval": 30, "worker_timeout_ceiling": 840,
		},
	})
	noErrors(t, d)
	var got struct {
		Sandbox struct {
			Enabled        bool           `json:"enabled"`
			Agents         []string       `json:"agents"`
			DefaultProfile string         `json:"default_profile"`
			Resolver       string         `json:"principal_resolver"`
			MaxChars       float64        `json:"tool_output_max_chars"`
			Broker         map[string]any `json:"broker"`
			Profiles       map[string]struct {
				E2B map[string]string `json:"e2b"`
			} `json:"profiles"`
		} `json:"sandbox"`
	}
	text, _ := state.Get("json").(string)
	if err := json.Unmarshal([]byte(text), &got); err != nil {
		t.Fatal(err)
	}
	section := got.Sandbox
	if !section.Enabled || !slices.Equal(section.Agents, []string{"coder"}) || section.DefaultProfile != "boxed" || section.Resolver != "app.Resolver" ||
		section.MaxChars != 4000 || len(section.Broker) != 7 || section.Broker["inline_payload_max_bytes"] != 1024.0 || len(section.Profiles) != 2 || section.Profiles["cloud"].E2B["api_key_env"] != "TEAM_KEY" {
		t.Errorf("json %s", text)
	}
	if y, _ := state.Get("yaml").(string); !strings.HasPrefix(y, "sandbox:\n  enabled: true\n") {
		t.Errorf("yaml %s", y)
	}
	if state.Get("env", "AK_SANDBOX__BROKER__FLAVOR") != "queue" || state.Get("env", "AK_SANDBOX__AGENTS") != `["coder"]` {
		t.Errorf("env %v", state.Get("env"))
	}
	omitted, _ := state.Get("omitted").([]any)
	if !slices.Equal(omitted, []any{"profiles.boxed.docker.pids_limit", "profiles.jail"}) {
		t.Errorf("omitted %v", omitted)
	}
	for _, want := range [][]string{{`"cloud"`, "policy.network_egress", "NOTHING IS KEPT"}, {`"jail"`, "left out"}} {
		if !d.Warnings().Has(want...) {
			t.Errorf("no warning with %v among:\n%s", want, d)
		}
	}
}

func TestRuntimeConfigRefuses(t *testing.T) {
	s := runtimeServer(t)
	for name, c := range map[string]struct {
		cfg  config
		want []string
	}{
		"no spec":             {config{"profiles": []string{boxed, "x"}}, []string{"profiles", "AK1005", "profiles[1]"}},
		"unknown backend":     {config{"profiles": []string{`{"name":"p","type":"xen","v":1}`}}, []string{"AK1001"}},
		"refused by the gate": {config{"profiles": []string{refused}}, []string{"AK2001", "profiles"}},
		"one name twice":      {config{"profiles": []string{boxed, boxed}}, []string{"AK1003", "profiles"}},
		"no default":          {config{"profiles": []string{boxed, e2bList}}, []string{"AK1003", "default_profile"}},
		"a key":               {config{"profiles": []string{e2bList}, "api_key_env": config{"e2b": "e2b_0123"}}, []string{"AK1003", "api_key_env"}},
		"nothing":             {config{"profiles": []string{}}, []string{"at least 1"}},
		"a fraction":          {config{"profiles": []string{boxed}, "broker": config{"inline_payload_max_bytes": 1.5}}, []string{"AK1003", "fraction"}},
		"too many bytes":      {config{"profiles": []string{boxed}, "broker": config{"inline_payload_max_bytes": 1e30}}, []string{"at most", "inline_payload_max_bytes"}},
		"too many characters": {config{"profiles": []string{boxed}, "tool_output_max_chars": 1<<53 + 1}, []string{"between", "tool_output_max_chars"}},
		"a file as an agent":  {config{"profiles": []string{boxed}, "agents": []string{"<file:/etc/passwd>"}}, []string{"AK1003", "agents", "<file:"}},
		"a file as resolver":  {config{"profiles": []string{boxed}, "principal_resolver": "<file:x>"}, []string{"AK1003", "principal_resolver"}},
		"a file as flavor":    {config{"profiles": []string{boxed}, "broker": config{"flavor": "<file:x>"}}, []string{"AK1003", "broker"}},
		"negative":            {config{"profiles": []string{boxed}, "broker": config{"wait_timeout": -1}}, []string{"at least 0"}},
	} {
		t.Run(name, func(t *testing.T) {
			// Known values are judged before any plan.
			d := s.ValidateData(dRuntime, c.cfg)
			wantError(t, d, c.want...)
			if strings.Contains(d.String(), "e2b_0123") {
				t.Errorf("what may be a key is shown: %s", d)
			}
		})
	}
}

func TestRuntimeConfigWarnsOfWhatNobodyEnforces(t *testing.T) {
	s := runtimeServer(t)
	noErrors(t, s.ValidateData(dRuntime, config{"profiles": []string{tolerant}}))
	_, d := s.ReadData(dRuntime, config{"profiles": []string{tolerant}})
	noErrors(t, d)
	if !d.Warnings().Has("Policy Not Enforced", "network_egress") {
		t.Errorf("warnings %s", d)
	}
}

// TestRuntimeConfigMayBeUnknown: any argument may depend on what is not known yet.
func TestRuntimeConfigMayBeUnknown(t *testing.T) {
	s := runtimeServer(t)
	full := config{
		"profiles": []string{boxed}, "enabled": true, "default_profile": "boxed", "agents": []string{"a"}, "principal_resolver": "x", "tool_output_max_chars": 1,
		"api_key_env": config{"e2b": "KEY"}, "broker": config{"flavor": "thread", "wait_timeout": 1},
	}
	noErrors(t, s.ValidateData(dRuntime, full))
	for name := range full {
		noErrors(t, s.ValidateData(dRuntime, full.With(config{name: protocoltest.Unknown})))
	}
	noErrors(t, s.ValidateData(dRuntime, full.With(config{"profiles": []any{boxed, protocoltest.Unknown}, "broker": config{"flavor": protocoltest.Unknown}})))
}

func TestAccRuntimeConfig(t *testing.T) {
	with, _ := acceptance(t)
	resource.Test(t, resource.TestCase{
		ProtoV6ProviderFactories: with,
		Steps: []resource.TestStep{{
			Config: `
resource "agentkernel_profile" "p" {
  name = "code"
  type = "docker"
  docker = { image = "python:3.12-slim" }
  policy = { network_egress = "deny" }
}
data "agentkernel_runtime_config" "r" {
  profiles = [agentkernel_profile.p.spec]
  broker   = { flavor = "embedded" }
}
output "type" { value = yamldecode(data.agentkernel_runtime_config.r.yaml).sandbox.profiles.code.type }
output "egress" { value = jsondecode(data.agentkernel_runtime_config.r.json).sandbox.profiles.code.policy.network_egress }
output "flavor" { value = data.agentkernel_runtime_config.r.env.AK_SANDBOX__BROKER__FLAVOR }
`,
			ConfigStateChecks: []statecheck.StateCheck{
				statecheck.ExpectKnownOutputValue("type", knownvalue.StringExact("docker")),
				statecheck.ExpectKnownOutputValue("egress", knownvalue.StringExact("deny")),
				statecheck.ExpectKnownOutputValue("flavor", knownvalue.StringExact("embedded")),
			},
		}},
	})
}
