package provider_test

import (
	"fmt"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/hashicorp/terraform-plugin-framework/attr"
	"github.com/hashicorp/terraform-plugin-framework/function"
	"github.com/hashicorp/terraform-plugin-framework/provider"
	"github.com/hashicorp/terraform-plugin-framework/types"
	"github.com/hashicorp/terraform-plugin-testing/helper/resource"
	"github.com/hashicorp/terraform-plugin-testing/knownvalue"
	"github.com/hashicorp/terraform-plugin-testing/statecheck"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/backends"
	akprovider "github.com/agentkernel/terraform-provider-agentkernel/internal/provider"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// functions gives the functions of the provider by name.
func functions(t *testing.T) map[string]function.Function {
	t.Helper()
	p, ok := akprovider.New("test", backends.Registry())().(provider.ProviderWithFunctions)
	if !ok {
		t.Fatal("the provider has no functions")
	}
	out := map[string]function.Function{}
	for _, construct := range p.Functions(t.Context()) {
		f := construct()
		var m function.MetadataResponse
		f.Metadata(t.Context(), function.MetadataRequest{}, &m)
		out[m.Name] = f
	}
	return out
}

// runFunction runs a function without any protocol.
func runFunction(t *testing.T, name string, arguments ...string) (attr.Value, *function.FuncError) {
	t.Helper()
	f := functions(t)[name]
	var d function.DefinitionResponse
	f.Definition(t.Context(), function.DefinitionRequest{}, &d)
	none, err := d.Definition.Return.NewResultData(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	values := make([]attr.Value, len(arguments))
	for i, a := range arguments {
		values[i] = types.StringValue(a)
	}
	resp := function.RunResponse{Result: none}
	f.Run(t.Context(), function.RunRequest{Arguments: function.NewArgumentsData(values)}, &resp)
	return resp.Result.Value(), resp.Error
}

func TestFunctionsAreValid(t *testing.T) {
	found := functions(t)
	if len(found) != 2 {
		t.Errorf("found %d functions", len(found))
	}
	for name, f := range found {
		var d function.DefinitionResponse
		f.Definition(t.Context(), function.DefinitionRequest{}, &d)
		var v function.DefinitionValidateResponse
		d.Definition.ValidateImplementation(t.Context(), function.DefinitionValidateRequest{FuncName: name}, &v)
		if v.Diagnostics.HasError() {
			t.Errorf("%s: %v", name, v.Diagnostics)
		}
		if d.Definition.Summary == "" || !strings.HasSuffix(d.Definition.MarkdownDescription, ".") {
			t.Errorf("%s is not described", name)
		}
		for _, p := range d.Definition.Parameters {
			if !strings.HasSuffix(p.GetMarkdownDescription(), ".") {
				t.Errorf("%s: the parameter %s is not described", name, p.GetName())
			}
		}
	}
}

func TestIsolationAtLeast(t *testing.T) {
	s := unconfigured(t, newFake()) // functions need no configuration
	for _, tier := range sandboxcore.IsolationTiers() {
		for _, minimum := range sandboxcore.IsolationTiers() {
			want := tier.AtLeast(minimum)
			if got, err := runFunction(t, "isolation_at_least", string(tier), string(minimum)); err != nil || !got.Equal(types.BoolValue(want)) {
				t.Errorf("%s, %s: %v %v", tier, minimum, got, err)
			}
			if got, err := s.Call("isolation_at_least", string(tier), string(minimum)); err != nil || got != want {
				t.Errorf("over the protocol: %s, %s: %v %v", tier, minimum, got, err)
			}
		}
	}
	for at, arguments := range [][]string{{"vm\x1b[1m", "none"}, {"none", "Container"}} {
		_, err := runFunction(t, "isolation_at_least", arguments...)
		if err == nil || err.FunctionArgument == nil || *err.FunctionArgument != int64(at) {
			t.Fatalf("error %v", err)
		}
		for _, want := range []string{"Invalid Value", "AK1003", `"micro_vm"`} {
			if !strings.Contains(err.Text, want) {
				t.Errorf("%q is not in %s", want, err.Text)
			}
		}
		if strings.Contains(err.Text, "\x1b") {
			t.Errorf("control characters in %q", err.Text)
		}
		if _, over := s.Call("isolation_at_least", arguments[0], arguments[1]); over == nil || over.Text != err.Text || *over.FunctionArgument != int64(at) {
			t.Errorf("over the protocol: %v", over)
		}
	}
}

func TestParseSpec(t *testing.T) {
	s := newServer(t, newFake(), config{})
	everything := config{
		"environment": "managed", "scope": "per_call", "idle_timeout": 90.5, "identity": config{"mode": "agent"},
		"policy": config{
			"network_egress": "deny", "fs_allow_write": []string{"/b", "/a"}, "cpu": 0.5, "memory_mb": 64, "timeout": 7,
			"strict": false, "min_isolation": "none",
		},
		"docker": config{
			"image": "x", "pull_policy": "always", "size": 3, "ratio": 0.25, "flag": false, "caps": []string{"B", "A"}, "extra": config{"k": "v"},
			"nested": config{"deep": "y"},
		},
	}
	for name, c := range map[string]struct {
		changes config
		want    map[string]any
	}{
		"defaults": {nil, map[string]any{
			"name": "p", "type": "docker", "environment": "managed", "scope": "per_session", "idle_timeout": 1800.0, "identity": map[string]any{"mode": "agent"},
			"policy": map[string]any{
				"network_egress": "allow", "network_allow": []any{}, "fs_allow_read": []any{}, "fs_allow_write": []any{}, "cpu": nil, "memory_mb": nil,
				"timeout": 120.0, "strict": true, "min_isolation": nil,
			},
			"settings": map[string]any{
				"image": "python", "pull_policy": nil, "size": nil, "ratio": nil, "flag": true, "caps": nil, "extra": nil, "nested": nil, "attach_to": nil,
			},
		}},
		"everything": {everything, map[string]any{
			"name": "p", "type": "docker", "environment": "managed", "scope": "per_call", "idle_timeout": 90.5, "identity": map[string]any{"mode": "agent"},
			"policy": map[string]any{
				"network_egress": "deny", "network_allow": []any{}, "fs_allow_read": []any{}, "fs_allow_write": []any{"/a", "/b"}, "cpu": 0.5, "memory_mb": 64.0,
				"timeout": 7.0, "strict": false, "min_isolation": "none",
			},
			"settings": map[string]any{
				"image": "x", "pull_policy": "always", "size": 3.0, "ratio": 0.25, "flag": false, "caps": []any{"A", "B"}, "extra": map[string]any{"k": "v"},
				"nested": map[string]any{"deep": "y"}, "attach_to": nil,
			},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := s.Call("parse_spec", profile(t, s, c.changes))
			if err != nil {
				t.Fatal(err.Text)
			}
			if !reflect.DeepEqual(got, any(c.want)) {
				t.Errorf("\n got %v\nwant %v", got, c.want)
			}
		})
	}
}

// TestParseSpecOfEveryBackend: whatever a backend's settings are, the shape of the result does not depend on which are set.
func TestParseSpecOfEveryBackend(t *testing.T) {
	for _, kind := range backends.Registry().Types() {
		got, err := runFunction(t, "parse_spec", fmt.Sprintf(`{"name":"p","type":%q,"v":1}`, kind))
		if err != nil {
			t.Errorf("%s: %s", kind, err.Text)
			continue
		}
		object, ok := got.(types.Object)
		if !ok {
			t.Fatalf("%s: %T", kind, got)
		}
		settings, ok := object.Attributes()["settings"].(types.Dynamic)
		if !ok {
			t.Fatalf("%s: %v", kind, object)
		}
		inner, ok := settings.UnderlyingValue().(types.Object)
		factory, _ := backends.Registry().Factory(kind)
		if !ok || len(inner.Attributes()) != len(factory.Settings) {
			t.Errorf("%s: settings %v", kind, settings)
		}
	}
}

func TestParseSpecRefuses(t *testing.T) {
	s := unconfigured(t, newFake())
	for spec, want := range map[string][]string{
		``:                                   {"Malformed Spec", "AK1005", "agentkernel_profile"},
		`{"name":"p","type":"docker","v":2}`: {"AK1005", "newer provider"},
		`{"type":"docker","name":"p","v":1}`: {"AK1005", "canonical"},
		`{"name":"p","type":"xen","v":1}`:    {"Unknown Backend Type", "AK1001", `"docker"`},
		`{"docker":{"size":0},"name":"p","type":"docker","v":1}`: {"AK1005", "no profile can say"},
	} {
		_, err := s.Call("parse_spec", spec)
		if err == nil || err.FunctionArgument == nil || *err.FunctionArgument != 0 {
			t.Errorf("%s: %v", spec, err)
			continue
		}
		for _, text := range want {
			if !strings.Contains(err.Text, text) {
				t.Errorf("%s: %q is not in %s", spec, text, err.Text)
			}
		}
	}
}

// TestAccFunctions calls the functions from a real configuration, in places where nothing is known before the plan.
func TestAccFunctions(t *testing.T) {
	with, _ := acceptance(t)
	resource.Test(t, resource.TestCase{
		ProtoV6ProviderFactories: with,
		Steps: []resource.TestStep{{
			Config:      `output "x" { value = provider::agentkernel::parse_spec("{}") }`,
			ExpectError: regexp.MustCompile(`AK1005`),
		}, {
			Config: `
resource "agentkernel_profile" "p" {
  name = "acc"
  type = "bubblewrap"
  bubblewrap = { pids_limit = 64 }
  policy = { network_egress = "deny" }
}
locals { parsed = provider::agentkernel::parse_spec(agentkernel_profile.p.spec) }
output "strong" { value = provider::agentkernel::isolation_at_least(agentkernel_profile.p.isolation, "os_policy") }
output "weak" { value = provider::agentkernel::isolation_at_least(agentkernel_profile.p.isolation, "micro_vm") }
output "egress" { value = local.parsed.policy.network_egress }
output "limit" { value = local.parsed.settings.pids_limit }
output "cpu" { value = local.parsed.policy.cpu == null }
`,
			ConfigStateChecks: []statecheck.StateCheck{
				statecheck.ExpectKnownOutputValue("strong", knownvalue.Bool(true)),
				statecheck.ExpectKnownOutputValue("weak", knownvalue.Bool(false)),
				statecheck.ExpectKnownOutputValue("egress", knownvalue.StringExact("deny")),
				statecheck.ExpectKnownOutputValue("limit", knownvalue.Int64Exact(64)),
				statecheck.ExpectKnownOutputValue("cpu", knownvalue.Bool(true)),
			},
		}},
	})
}
