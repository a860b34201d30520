package provider_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/hashicorp/terraform-plugin-framework/datasource"
	listresource "github.com/hashicorp/terraform-plugin-framework/list"
	"github.com/hashicorp/terraform-plugin-framework/provider"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-go/tfprotov6"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/backends"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/protocoltest"
	akprovider "github.com/agentkernel/terraform-provider-agentkernel/internal/provider"
)

func TestSchemasAreValid(t *testing.T) {
	ctx := t.Context()
	p := akprovider.New("test", backends.Registry())()
	var ps provider.SchemaResponse
	p.Schema(ctx, provider.SchemaRequest{}, &ps)
	if d := ps.Schema.ValidateImplementation(ctx); d.HasError() {
		t.Errorf("provider: %v", d)
	}
	for _, construct := range p.Resources(ctx) {
		r := construct()
		var m resource.MetadataResponse
		r.Metadata(ctx, resource.MetadataRequest{ProviderTypeName: "agentkernel"}, &m)
		var s resource.SchemaResponse
		r.Schema(ctx, resource.SchemaRequest{}, &s)
		if d := s.Schema.ValidateImplementation(ctx); d.HasError() {
			t.Errorf("%s: %v", m.TypeName, d)
		}
	}
	lists, _ := p.(provider.ProviderWithListResources)
	for _, construct := range lists.ListResources(ctx) {
		var s listresource.ListResourceSchemaResponse
		construct().ListResourceConfigSchema(ctx, listresource.ListResourceSchemaRequest{}, &s)
		if d := s.Schema.ValidateImplementation(ctx); d.HasError() {
			t.Errorf("list: %v", d)
		}
	}
	for _, construct := range p.DataSources(ctx) {
		r := construct()
		var m datasource.MetadataResponse
		r.Metadata(ctx, datasource.MetadataRequest{ProviderTypeName: "agentkernel"}, &m)
		var s datasource.SchemaResponse
		r.Schema(ctx, datasource.SchemaRequest{}, &s)
		if d := s.Schema.ValidateImplementation(ctx); d.HasError() {
			t.Errorf("%s: %v", m.TypeName, d)
		}
	}
}

var (
	secretName = regexp.MustCompile(`(^|_)(secret|secrets|token|password|passwd|api_key|access_key|private_key|credential|credentials|wo)($|_)`)
	// Names that look like a secret and hold none.
	noSecret = map[string]string{
		"api_key_env": "names of environment variables",
		"secret_env":  "names of secrets, not values", "env_wo_version": "a number", "content_wo_version": "a number",
		"no_new_privileges": "a switch", "allow_secrets": "a switch", "image_pull_secrets": "names of secrets in a cluster", "allow_secrets_in_command_history": "a switch",
	}
)

// walk visits every attribute with its dotted path.
func walk(attributes []*tfprotov6.SchemaAttribute, at string, visit func(at string, a *tfprotov6.SchemaAttribute)) {
	for _, a := range attributes {
		visit(at+a.Name, a)
		if a.NestedType != nil {
			walk(a.NestedType.Attributes, at+a.Name+".", visit)
		}
	}
}

func allSchemas(s *tfprotov6.GetProviderSchemaResponse) map[string]*tfprotov6.Schema {
	out := map[string]*tfprotov6.Schema{"provider": s.Provider}
	for name, x := range s.ResourceSchemas {
		out["resource "+name] = x
	}
	for name, x := range s.DataSourceSchemas {
		out["data "+name] = x
	}
	for name, x := range s.ListResourceSchemas {
		out["list "+name] = x
	}
	for name, x := range s.EphemeralResourceSchemas {
		out["ephemeral "+name] = x
	}
	for name, x := range s.ActionSchemas {
		out["action "+name] = x.Schema
	}
	return out
}

func TestEveryAttributeIsDescribedAndSecretsAreHidden(t *testing.T) {
	s := protocoltest.New(t, akprovider.New("test", backends.Registry()))
	for construct, schema := range allSchemas(s.Schema()) {
		if schema.Block.Description == "" {
			t.Errorf("%s has no description", construct)
		}
		walk(schema.Block.Attributes, "", func(at string, a *tfprotov6.SchemaAttribute) {
			if a.Description == "" || a.DescriptionKind != tfprotov6.StringKindMarkdown {
				t.Errorf("%s: %s has no Markdown description", construct, at)
			}
			if !strings.HasSuffix(a.Description, ".") && !strings.HasSuffix(a.Description, ".**") {
				t.Errorf("%s: the description of %s is no sentence: %q", construct, at, a.Description)
			}
			if _, known := noSecret[a.Name]; secretName.MatchString(a.Name) && !known && !a.Sensitive && !a.WriteOnly {
				t.Errorf("%s: %s looks like a secret and is neither sensitive nor write-only", construct, at)
			}
		})
	}
}

// minimal are configurations with every kind of attribute in them, from which one attribute at a time becomes unknown.
func minimal(t *testing.T, s *protocoltest.Server) map[string][]config {
	t.Helper()
	spec := profile(t, s, nil)
	box := s.MustApply(tSandbox, protocoltest.State{}, config{"profile": spec})
	full := config{"stdin": "x", "env": config{"A": "1"}, "triggers": config{"a": "b"}, "output_files": []string{"f"}, "timeout": "5s", "destroy_script": "true"}
	return map[string][]config{
		tProfile: {
			{"name": "p", "type": "docker", "docker": config{"image": "x", "nested": config{"deep": "y"}}, "policy": config{"cpu": 1}, "identity": config{"mode": "agent"}},
			{"name": "p", "type": "docker", "docker": config{}},
		},
		tSandbox: {
			{"profile": spec, "name": "n", "env": config{"A": "1"}, "labels": config{"a": "b"}, "packages": []string{"rich"}, "principal": config{"subject": "x"}},
			{"profile": spec},
		},
		tExec: {
			full.With(config{"binding": binding(box), "code": "1"}), full.With(config{"binding": binding(box), "script": "1"}),
			full.With(config{"profile": spec, "command": []string{"true"}}),
			{"profile": spec, "code": "1"},
		},
		tFile: {
			{"binding": binding(box), "path": "f", "content": "x", "mode": "0600", "principal": config{"subject": "x"}},
			{"binding": binding(box), "path": "f", "content_wo": "write-only-1", "content_wo_version": 1},
		},
	}
}

// TestEveryAttributeMayBeUnknown: at validate and at plan any attribute, however deep, may not be known yet. No error, no
// panic, and the plan keeps to the configuration.
func TestEveryAttributeMayBeUnknown(t *testing.T) {
	fake := newFake()
	s := newServer(t, fake, config{})
	for typeName, configs := range minimal(t, s) {
		schema := s.Schema().ResourceSchemas[typeName]
		for i, base := range configs {
			prior := s.MustApply(typeName, protocoltest.State{}, plain(base))
			walk(schema.Block.Attributes, "", func(at string, a *tfprotov6.SchemaAttribute) {
				if !a.Required && !a.Optional {
					return
				}
				cfg := setUnknown(base, strings.Split(at, "."))
				if cfg == nil {
					return
				}
				for _, existing := range []protocoltest.State{{}, prior} {
					p := s.Plan(typeName, existing, cfg)
					// A second choice beside the first is a contradiction whether known or not, once it is known.
					if p.Diags.HasError() && !exclusive(at) {
						t.Errorf("%s %d: %s unknown: %s", typeName, i, at, p.Diags)
					}
				}
			})
		}
	}
}

func exclusive(at string) bool {
	switch at {
	case "code", "script", "command", "binding", "profile", "destroy_script", "destroy_code", "local_subprocess", "content", "content_base64", "source", "content_wo":
		return true
	}
	return false
}

// plain drops what must not run twice with side effects; the fake has none.
func plain(c config) config {
	if _, ok := c["output_files"]; !ok {
		return c
	}
	return c.With(config{"output_files": nil})
}

func setUnknown(base config, at []string) config {
	if len(at) == 1 {
		return base.With(config{at[0]: protocoltest.Unknown})
	}
	inner, _ := base[at[0]].(config)
	if inner == nil {
		if m, ok := base[at[0]].(map[string]any); ok {
			inner = m
		} else {
			inner = config{}
		}
	}
	deeper := setUnknown(inner, at[1:])
	if base[at[0]] == nil {
		return nil // the object is not there; its attributes cannot be unknown
	}
	return base.With(config{at[0]: deeper})
}

func TestUnknownProfileIsJudgedAsFarAsKnown(t *testing.T) {
	s := newServer(t, newFake(), config{})
	base := config{"name": "p", "type": "docker", "docker": config{}}
	for name, c := range map[string]struct {
		cfg  config
		want []string
	}{
		"image unknown, read policy refused":      {config{"docker": config{"image": protocoltest.Unknown}, "policy": config{"fs_allow_read": []string{"/x"}}}, []string{"AK2003", "fs_allow_read"}},
		"image unknown, bad number":               {config{"docker": config{"image": protocoltest.Unknown}, "policy": config{"cpu": -1}}, []string{"AK1003", "policy.cpu"}},
		"name unknown, foreign block":             {config{"name": protocoltest.Unknown, "local_subprocess": config{}}, []string{"AK1002"}},
		"list unknown, mode allowlist refused":    {config{"policy": config{"network_egress": "allowlist", "network_allow": protocoltest.Unknown}}, []string{"AK2001"}},
		"list unknown, mode allow":                {config{"policy": config{"network_allow": protocoltest.Unknown}}, nil},
		"mode unknown, list known":                {config{"policy": config{"network_egress": protocoltest.Unknown, "network_allow": []string{"example.org"}}}, nil},
		"type unknown":                            {config{"type": protocoltest.Unknown, "local_subprocess": config{}}, nil},
		"strict unknown":                          {config{"policy": config{"strict": protocoltest.Unknown, "fs_allow_read": []string{"/x"}}}, nil},
		"environment unknown":                     {config{"environment": protocoltest.Unknown, "policy": config{"fs_allow_read": []string{"/x"}}}, nil},
		"block unknown":                           {config{"docker": protocoltest.Unknown}, nil},
		"policy unknown":                          {config{"policy": protocoltest.Unknown}, nil},
		"isolation may depend on what is unknown": {config{"docker": config{"image": protocoltest.Unknown}, "policy": config{"min_isolation": "micro_vm"}}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			p := s.Plan(tProfile, protocoltest.State{}, base.With(c.cfg))
			if c.want == nil {
				noErrors(t, p.Diags)
				if p.Get("spec") != protocoltest.Unknown {
					t.Errorf("spec %v", p.Get("spec"))
				}
				return
			}
			wantError(t, p.Diags, c.want...)
		})
	}
}

func TestUnknownProviderNeverBecomesADefault(t *testing.T) {
	fake := newFake()
	s := newServer(t, fake, config{"docker": config{"host": protocoltest.Unknown}, "secrets": protocoltest.Unknown, "principal": config{"subject": protocoltest.Unknown}})
	spec := profile(t, s, nil)
	p := s.Plan(tSandbox, protocoltest.State{}, config{"profile": spec, "secret_env": config{"A": "token"}})
	noErrors(t, p.Diags)
	run := s.Plan(tExec, protocoltest.State{}, config{"profile": spec, "code": "1", "secret_env": config{"A": "token"}})
	noErrors(t, run.Diags)
	if calls := fake.Calls(); len(calls) != 0 {
		t.Errorf("calls at plan: %v", calls)
	}
	known := newServer(t, fake, config{})
	box := known.MustApply(tSandbox, protocoltest.State{}, config{"profile": spec})
	_, d := s.Read(box)
	wantError(t, d, "AK5010", "not known yet")
}
