package provider_test

import (
	"context"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/terraform-plugin-framework/action"
	"github.com/hashicorp/terraform-plugin-framework/datasource"
	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/ephemeral"
	"github.com/hashicorp/terraform-plugin-framework/function"
	listresource "github.com/hashicorp/terraform-plugin-framework/list"
	"github.com/hashicorp/terraform-plugin-framework/provider"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-go/tfprotov6"
	"github.com/hashicorp/terraform-plugin-go/tftypes"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/backends"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/protocoltest"
	akprovider "github.com/agentkernel/terraform-provider-agentkernel/internal/provider"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// implementation is a schema, or the definition of a function, that can check itself.
type implementation interface {
	ValidateImplementation(ctx context.Context) diag.Diagnostics
}

// constructs asks the provider for everything that it has, by reflection: a new kind of construct fails the test until it
// is known here.
func constructs(t *testing.T, p provider.Provider) map[string]implementation {
	t.Helper()
	ctx := t.Context()
	out := map[string]implementation{}
	var ps provider.SchemaResponse
	p.Schema(ctx, provider.SchemaRequest{}, &ps)
	out["provider"] = ps.Schema
	named := func(kind string, metadata func(*resource.MetadataResponse)) string {
		var m resource.MetadataResponse
		metadata(&m)
		return kind + " " + m.TypeName
	}
	v := reflect.ValueOf(p)
	for i := range v.NumMethod() {
		method := v.Type().Method(i)
		if method.Type.NumIn() != 2 || method.Type.NumOut() != 1 || method.Type.Out(0).Kind() != reflect.Slice || method.Type.Out(0).Elem().Kind() != reflect.Func {
			continue // not of the shape func(context.Context) []func() T
		}
		made := v.Method(i).Call([]reflect.Value{reflect.ValueOf(ctx)})[0]
		for n := range made.Len() {
			switch c := made.Index(n).Call(nil)[0].Interface().(type) {
			case resource.Resource:
				name := named("resource", func(m *resource.MetadataResponse) {
					c.Metadata(ctx, resource.MetadataRequest{ProviderTypeName: "agentkernel"}, m)
				})
				var s resource.SchemaResponse
				c.Schema(ctx, resource.SchemaRequest{}, &s)
				out[name] = s.Schema
				if identified, ok := c.(resource.ResourceWithIdentity); ok {
					var is resource.IdentitySchemaResponse
					identified.IdentitySchema(ctx, resource.IdentitySchemaRequest{}, &is)
					out["identity of "+name] = is.IdentitySchema
				}
			case datasource.DataSource:
				var m datasource.MetadataResponse
				c.Metadata(ctx, datasource.MetadataRequest{ProviderTypeName: "agentkernel"}, &m)
				var s datasource.SchemaResponse
				c.Schema(ctx, datasource.SchemaRequest{}, &s)
				out["data "+m.TypeName] = s.Schema
			case ephemeral.EphemeralResource:
				var m ephemeral.MetadataResponse
				c.Metadata(ctx, ephemeral.MetadataRequest{ProviderTypeName: "agentkernel"}, &m)
				var s ephemeral.SchemaResponse
				c.Schema(ctx, ephemeral.SchemaRequest{}, &s)
				out["ephemeral "+m.TypeName] = s.Schema
			case action.Action:
				var m action.MetadataResponse
				c.Metadata(ctx, action.MetadataRequest{ProviderTypeName: "agentkernel"}, &m)
				var s action.SchemaResponse
				c.Schema(ctx, action.SchemaRequest{}, &s)
				out["action "+m.TypeName] = s.Schema
			case listresource.ListResource:
				name := named("list", func(m *resource.MetadataResponse) {
					c.Metadata(ctx, resource.MetadataRequest{ProviderTypeName: "agentkernel"}, m)
				})
				var s listresource.ListResourceSchemaResponse
				c.ListResourceConfigSchema(ctx, listresource.ListResourceSchemaRequest{}, &s)
				out[name] = s.Schema
			case function.Function:
				var m function.MetadataResponse
				c.Metadata(ctx, function.MetadataRequest{}, &m)
				var d function.DefinitionResponse
				c.Definition(ctx, function.DefinitionRequest{}, &d)
				out["function "+m.Name] = functionImplementation{m.Name, d.Definition}
			default:
				t.Errorf("%s gives a %T, which this test does not know", method.Name, c)
			}
		}
	}
	return out
}

type functionImplementation struct {
	name       string
	definition function.Definition
}

func (f functionImplementation) ValidateImplementation(ctx context.Context) diag.Diagnostics {
	var resp function.DefinitionValidateResponse
	f.definition.ValidateImplementation(ctx, function.DefinitionValidateRequest{FuncName: f.name}, &resp)
	return resp.Diagnostics
}

func TestSchemasAreValid(t *testing.T) {
	all := constructs(t, akprovider.New("test", backends.Registry())())
	for name, c := range all {
		if d := c.ValidateImplementation(t.Context()); d.HasError() {
			t.Errorf("%s: %v", name, d)
		}
		if f, ok := c.(functionImplementation); ok {
			if f.definition.Summary == "" || f.definition.MarkdownDescription == "" {
				t.Errorf("%s has no description", name)
			}
			for _, p := range f.definition.Parameters {
				if p.GetName() == "" || p.GetMarkdownDescription() == "" {
					t.Errorf("%s: parameter %q has no description", name, p.GetName())
				}
			}
		}
	}
	// What Terraform is told of is what was found, and the other way round.
	s := protocoltest.New(t, akprovider.New("test", backends.Registry()))
	told := allSchemas(s.Schema())
	for name := range told {
		if all[name] == nil {
			t.Errorf("%s was not looked at", name)
		}
	}
	if want := len(told) + len(s.Schema().Functions) + len(s.Identities()); len(all) != want {
		t.Errorf("%d constructs were looked at, and Terraform is told of %d", len(all), want)
	}
	for name, attributes := range s.Identities() {
		for attribute, description := range attributes {
			if description == "" {
				t.Errorf("identity of %s: %s has no description", name, attribute)
			}
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

// TestEveryArgumentOfAProfileSaysItsDefaultAndUnit: the descriptions are the documentation.
func TestEveryArgumentOfAProfileSaysItsDefaultAndUnit(t *testing.T) {
	s := protocoltest.New(t, akprovider.New("test", backends.Registry()))
	unit := regexp.MustCompile(`(?i)\b(seconds?|cores?|MB|MiB|bytes|number of|how many|port|user|group|processes)\b`)
	walk(s.Schema().ResourceSchemas[tProfile].Block.Attributes, "", func(at string, a *tfprotov6.SchemaAttribute) {
		if !a.Optional || a.Computed {
			return
		}
		if a.Type != nil && a.Type.Is(tftypes.Number) && !unit.MatchString(a.Description) {
			t.Errorf("%s says no unit: %s", at, a.Description)
		}
		root, _, _ := strings.Cut(at, ".")
		if slices.Contains(backends.Registry().Types(), sandboxcore.BackendType(root)) {
			return // what a backend does without a setting is in its own words
		}
		if !strings.Contains(strings.ToLower(a.Description), "default") {
			t.Errorf("%s says no default: %s", at, a.Description)
		}
		if (root == "policy" || root == "idle_timeout") && !strings.Contains(a.Description, "`") {
			t.Errorf("%s shows no value: %s", at, a.Description)
		}
	})
	// A setting with a default says it; a switch that is off when it is not set goes without saying.
	for _, f := range backends.Registry().Factories() {
		for _, setting := range f.Settings {
			if setting.Default != nil && setting.Default != false && !strings.Contains(strings.ToLower(setting.Description), "default") {
				t.Errorf("%s.%s says no default: %s", f.Type, setting.Name, setting.Description)
			}
		}
	}
}

// TestEquivalentSpellingsOfAProfileAreOneSpec: what means the same is one spec and one fingerprint, so that nothing that
// takes the spec changes.
func TestEquivalentSpellingsOfAProfileAreOneSpec(t *testing.T) {
	s := newServer(t, newFake(), config{})
	base := config{"name": "p", "type": "docker"}
	for name, pair := range map[string][2]config{
		"order of a list":                   {{"docker": config{"caps": []string{"A", "B"}}}, {"docker": config{"caps": []string{"B", "A"}}}},
		"order of paths":                    {{"docker": config{}, "policy": config{"fs_allow_write": []string{"/a", "/b"}}}, {"docker": config{}, "policy": config{"fs_allow_write": []string{"/b/", "/a", "/a"}}}},
		"defaults spelled out":              {{"docker": config{}}, {"docker": config{"image": "python", "flag": true}, "environment": "managed", "scope": "per_session", "idle_timeout": 1800, "identity": config{"mode": "agent"}, "policy": config{"network_egress": "allow", "timeout": 120, "strict": true}}},
		"empty is absent":                   {{"docker": config{}}, {"docker": config{"caps": []string{}, "extra": config{}}, "policy": config{}}},
		"whole numbers and their fractions": {{"docker": config{"ratio": 2}, "policy": config{"timeout": 60}}, {"docker": config{"ratio": 2.0}, "policy": config{"timeout": 60.0}}},
	} {
		t.Run(name, func(t *testing.T) {
			one := s.MustApply(tProfile, protocoltest.State{}, base.With(pair[0]))
			other := s.MustApply(tProfile, protocoltest.State{}, base.With(pair[1]))
			if one.Get("spec") != other.Get("spec") || one.Get("fingerprint") != other.Get("fingerprint") {
				t.Errorf("%v\n%v", one.Get("spec"), other.Get("spec"))
			}
			if p := s.Plan(tProfile, one, base.With(pair[1])); p.Diags.HasError() || p.Get("spec") != one.Get("spec") {
				t.Errorf("the spec is planned to change: %s %s", p.Diags, p.JSON())
			}
		})
	}
	// Durations are compared as such where an argument is one.
	spec := profile(t, s, nil)
	run := config{"profile": spec, "script": "x", "timeout": "60s"}
	ran := s.MustApply(tExec, protocoltest.State{}, run)
	if p := s.Plan(tExec, ran, run.With(config{"timeout": "1m"})); p.Action != protocoltest.NoOp {
		t.Errorf("a duration in other words is %s: %s", p.Action, p.JSON())
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

// TestEveryAttributeOfEveryConstructMayBeUnknown: the same for every construct that Terraform is told of, with the settings
// of the real backends, at validate and, where there is a plan without a machine, at plan. A construct without a
// configuration here fails the test, and so does an attribute that no configuration reaches.
func TestEveryAttributeOfEveryConstructMayBeUnknown(t *testing.T) {
	reg := backends.Registry()
	start := func() *protocoltest.Server {
		return protocoltest.New(t, akprovider.New("test", reg, akprovider.WithGetenv(func(string) string { return "" })))
	}
	s := start()
	if d := s.Configure(config{}); d.HasError() {
		t.Fatal(d)
	}
	profiles := []config{}
	for _, f := range reg.Factories() {
		p := config{"name": "p", "type": string(f.Type), string(f.Type): config{}}
		if f.Type == sandboxcore.BackendEC2SSM { // makes nothing
			p["environment"], p[string(f.Type)] = "attached", config{"attach_to": "i-0123456789abcdef0"}
		}
		if f.Type == sandboxcore.BackendPlugin { // is nothing without a manifest, which is read from a file
			p[string(f.Type)] = config{"manifest": protocoltest.Unknown}
		}
		profiles = append(profiles, p)
	}
	spec := `{"name":"p","type":"docker","v":1}`
	where := config{"binding": config{"backend": "docker", "endpoint": "e", "environment": "managed", "id": "docker/x", "spec": spec}}
	runs := []config{where.With(config{"code": "1"}), where.With(config{"script": "1"}), {"profile": spec, "command": []string{"true"}}}
	bases := map[string][]config{
		"provider": {{}}, "resource " + tProfile: profiles, "data " + tProfile: profiles,
		"resource " + tSandbox: {{"profile": spec}}, "resource " + tExec: runs, "ephemeral " + tExec: runs, "action " + tExec: runs,
		"resource " + tFile:                     {where.With(config{"path": "f", "content": "x"}), where.With(config{"path": "f", "content_wo": "x", "content_wo_version": 1})},
		"data agentkernel_attached_environment": {{"profile": spec}},
		"data agentkernel_backends":             {{}},
		"data agentkernel_capabilities":         {{"backend": "docker"}, {"profile": spec}},
		"data agentkernel_runtime_config":       {{"profiles": []string{spec}, "default_profile": "p"}},
		"data agentkernel_sandboxes":            {{"backend": "docker"}},
		"list " + tSandbox:                      {{"backend": "docker"}},
	}
	for construct, schema := range allSchemas(s.Schema()) {
		kind, name, _ := strings.Cut(construct, " ")
		check := map[string]func(config) protocoltest.Diags{
			"provider": func(c config) protocoltest.Diags {
				fresh := start()
				return append(fresh.ValidateProvider(c), fresh.Configure(c)...)
			},
			"resource": func(c config) protocoltest.Diags {
				return append(s.Validate(name, c), s.Plan(name, protocoltest.State{}, c).Diags...)
			},
			"data":      func(c config) protocoltest.Diags { return s.ValidateData(name, c) },
			"ephemeral": func(c config) protocoltest.Diags { return s.ValidateEphemeral(name, c) },
			"action":    func(c config) protocoltest.Diags { return s.PlanAction(name, c) },
			"list":      func(c config) protocoltest.Diags { return s.ValidateList(name, c) },
		}[kind]
		if len(bases[construct]) == 0 || check == nil {
			t.Errorf("%s: no configuration to start from", construct)
			continue
		}
		for _, base := range bases[construct] {
			if d := check(base); d.HasError() {
				t.Errorf("%s %v as it is: %s", construct, base, d)
			}
		}
		reached := 0
		walk(schema.Block.Attributes, "", func(at string, a *tfprotov6.SchemaAttribute) {
			if !a.Required && !a.Optional {
				return
			}
			reached++
			root, _, nested := strings.Cut(at, ".")
			ok, said := false, protocoltest.Diags(nil)
			for _, base := range bases[construct] {
				if nested && root == "binding" && base[root] == nil {
					continue // this one has chosen otherwise
				}
				d := check(withUnknown(base, schema.Block.Attributes, strings.Split(at, ".")))
				if !d.HasError() {
					ok = true
				} else if !exclusive(at) && !foreign(base, at, reg) {
					said = d
				}
			}
			if said != nil || !ok {
				t.Errorf("%s: %s unknown: %s", construct, at, said)
			}
		})
		if reached == 0 && kind != "data" {
			t.Errorf("%s has no arguments", construct)
		}
	}
}

// foreign reports whether an attribute belongs to another backend than the one of a profile.
func foreign(base config, at string, reg *sandboxcore.Registry) bool {
	root, _, _ := strings.Cut(at, ".")
	_, isBackend := reg.Factory(sandboxcore.BackendType(root))
	return isBackend && base["type"] != nil && base["type"] != root
}

// withUnknown makes one attribute unknown and makes the objects on the way there if they are missing.
func withUnknown(base config, attributes []*tfprotov6.SchemaAttribute, at []string) config {
	if len(at) == 1 {
		return base.With(config{at[0]: protocoltest.Unknown})
	}
	for _, a := range attributes {
		if a.Name != at[0] {
			continue
		}
		inner, _ := base[at[0]].(config)
		var value any = withUnknown(inner, a.NestedType.Attributes, at[1:])
		switch a.NestedType.Nesting {
		case tfprotov6.SchemaObjectNestingModeList:
			value = []any{value}
		case tfprotov6.SchemaObjectNestingModeMap:
			value = config{"a": value}
		default:
		}
		return base.With(config{at[0]: value})
	}
	return base
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
