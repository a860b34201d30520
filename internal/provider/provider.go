// Package provider is the Terraform layer: schemas, plan logic, state. What it decides about sandboxes it asks
// internal/sandboxcore; it knows no backend by name.
package provider

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/hashicorp/terraform-plugin-framework/datasource"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/provider"
	"github.com/hashicorp/terraform-plugin-framework/provider/schema"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	resourceschema "github.com/hashicorp/terraform-plugin-framework/resource/schema"
	"github.com/hashicorp/terraform-plugin-framework/schema/validator"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// auditLogVariable names the audit log when the configuration does not.
const auditLogVariable = "AGENTKERNEL_AUDIT_LOG"

var _ provider.Provider = (*agentKernelProvider)(nil)

// Option changes what New makes, for tests.
type Option func(*agentKernelProvider)

// WithGetenv replaces the environment of the process.
func WithGetenv(getenv func(string) string) Option {
	return func(p *agentKernelProvider) { p.getenv = getenv }
}

// New gives the constructor of the provider with the backends of reg.
func New(version string, reg *sandboxcore.Registry, options ...Option) func() provider.Provider {
	return func() provider.Provider {
		p := &agentKernelProvider{version: version, registry: reg, getenv: os.Getenv}
		for _, o := range options {
			o(p)
		}
		return p
	}
}

type agentKernelProvider struct {
	version  string
	registry *sandboxcore.Registry
	getenv   func(string) string
	tracer   sandboxcore.Tracer
}

func (p *agentKernelProvider) Metadata(_ context.Context, _ provider.MetadataRequest, resp *provider.MetadataResponse) {
	resp.TypeName = "agentkernel"
	resp.Version = p.version
}

func (p *agentKernelProvider) Schema(_ context.Context, _ provider.SchemaRequest, resp *provider.SchemaResponse) {
	shared := map[string]resourceschema.Attribute{"principal": principalAttribute(false)}
	for _, f := range p.registry.Factories() {
		if f.ProviderSettings != nil {
			shared[f.ProviderAttribute()] = settingsAttribute(fmt.Sprintf("How the backend `%s` is reached and set up. %s", f.Type, f.Describe), f.ProviderSettings)
		}
	}
	attributes := providerAttributes(shared)
	attributes["secrets"] = schema.MapAttribute{
		MarkdownDescription: fmt.Sprintf("Named values that sandboxed code can be given through `secret_env = { VARIABLE = \"name\" }`. "+
			"Takes ephemeral values. They are hidden from output, logs and diagnostics, also in their base64, URL and hexadecimal forms; "+
			"a value that is empty or shorter than %d bytes is refused, because hiding it would blank out ordinary text.", sandboxcore.MinSecretBytes),
		Optional: true, Sensitive: true, ElementType: types.StringType,
		Validators: []validator.Map{secretsNotNull{}},
	}
	attributes["audit_log"] = schema.StringAttribute{
		MarkdownDescription: "File to which one JSON line is appended for each operation: what, verdict and reasons, fingerprint of the profile, principal, backend, sizes and digests, never content. " +
			"Defaults to `" + auditLogVariable + "`. When it is set and cannot be written, nothing is done.",
		Optional: true,
	}
	resp.Schema = schema.Schema{
		MarkdownDescription: "Runs code written by agents in sandboxes: profiles say what a sandbox may do, a backend says honestly what it can enforce, " +
			"and what cannot be enforced is refused before anything is created. Brings the sandbox model of Agent Kernel, the agent framework by Yaala Labs, to Terraform and OpenTofu.",
		Attributes: attributes,
	}
}

// Configure makes the engine. It makes no network call: backends connect when they are first used.
func (p *agentKernelProvider) Configure(ctx context.Context, req provider.ConfigureRequest, resp *provider.ConfigureResponse) {
	report := reporter{diags: &resp.Diagnostics, schema: req.Config.Schema}
	data := &providerData{registry: p.registry}
	cfg := sandboxcore.EngineConfig{
		Registry: p.registry, Getenv: p.getenv, Tracer: p.tracer,
		Provider: map[sandboxcore.BackendType]sandboxcore.Settings{}, Unknown: map[sandboxcore.BackendType]bool{},
	}

	for _, f := range p.registry.Factories() {
		if f.ProviderSettings == nil {
			continue
		}
		var obj types.Object
		resp.Diagnostics.Append(req.Config.GetAttribute(ctx, path.Root(f.ProviderAttribute()), &obj)...)
		unknown := unknownPaths{}
		settings, present, err := settingsFromObject(obj, unknown, f.ProviderAttribute())
		if err != nil {
			resp.Diagnostics.AddAttributeError(path.Root(f.ProviderAttribute()), "Unreadable Setting", err.Error())
		}
		// One value that is not known yet makes the whole backend wait: half of its settings could mean another place.
		if len(unknown) > 0 {
			cfg.Unknown[f.Type] = true
		} else if present {
			cfg.Provider[f.Type] = settings
		}
	}

	data.readSecrets(ctx, req, resp)
	cfg.Secrets = data.secrets

	var principalArg types.Object
	resp.Diagnostics.Append(req.Config.GetAttribute(ctx, path.Root("principal"), &principalArg)...)
	who, diags := resolvePrincipal(ctx, principalArg, principal{known: true, value: sandboxcore.DefaultPrincipal()})
	resp.Diagnostics.Append(diags...)
	data.principal = who

	var auditLog types.String
	resp.Diagnostics.Append(req.Config.GetAttribute(ctx, path.Root("audit_log"), &auditLog)...)
	if resp.Diagnostics.HasError() {
		return
	}
	file := auditLog.ValueString()
	if auditLog.IsNull() {
		file = p.getenv(auditLogVariable)
	}
	if file != "" {
		log, err := sandboxcore.OpenAuditLog(file)
		if err != nil {
			report.error(ctx, err, sandboxcore.CodeValue)
			return
		}
		cfg.Audit = log
	}

	engine, err := sandboxcore.NewEngine(cfg)
	if err == nil {
		err = engine.CheckBackends()
	}
	if err != nil {
		report.error(ctx, err, sandboxcore.CodeValue)
		return
	}
	data.engine = engine
	resp.DataSourceData, resp.ResourceData, resp.EphemeralResourceData = data, data, data
	resp.ActionData, resp.ListResourceData = data, data
}

func (p *agentKernelProvider) Resources(context.Context) []func() resource.Resource {
	return []func() resource.Resource{
		func() resource.Resource { return newProfileResource(p.registry) },
		func() resource.Resource { return newSandboxResource(p.registry) },
		func() resource.Resource { return newExecResource(p.registry) },
		func() resource.Resource { return newFileResource() },
	}
}

func (p *agentKernelProvider) DataSources(context.Context) []func() datasource.DataSource {
	return []func() datasource.DataSource{
		func() datasource.DataSource { return newProfileDataSource(p.registry) },
		func() datasource.DataSource { return newCapabilitiesDataSource(p.registry) },
		func() datasource.DataSource { return newBackendsDataSource(p.registry) },
		func() datasource.DataSource { return newSandboxesDataSource(p.registry) },
		func() datasource.DataSource { return newAttachedEnvironmentDataSource() },
		func() datasource.DataSource { return newRuntimeConfigDataSource(p.registry) },
	}
}

// secretsNotNull says what a secret without a value comes from.
type secretsNotNull struct{}

func (secretsNotNull) Description(context.Context) string { return "no secret may be null" }

func (v secretsNotNull) MarkdownDescription(ctx context.Context) string { return v.Description(ctx) }

func (secretsNotNull) ValidateMap(_ context.Context, req validator.MapRequest, resp *validator.MapResponse) {
	for _, name := range slices.Sorted(maps.Keys(req.ConfigValue.Elements())) {
		if !req.ConfigValue.Elements()[name].IsNull() {
			continue
		}
		resp.Diagnostics.AddAttributeError(req.Path, sandboxcore.CodeValue.Title(), errorDetail(&sandboxcore.Error{
			Code: sandboxcore.CodeValue, Attempted: "the provider configuration was refused", Object: "secret " + sandboxcore.Printable(name), Said: "its value is null.",
			Next: "An ephemeral value is kept in no plan: give its variable again to `terraform apply` of a saved plan and to `-invoke` " +
				"(-var or TF_VAR_…), or leave the name out of secrets.",
			Attribute: []string{"secrets"},
		}, ""))
	}
}

// codeList writes values as a list for Markdown: `a`, `b`.
func codeList[T ~string](values []T) string {
	out := make([]string, len(values))
	for i, v := range values {
		out[i] = "`" + string(v) + "`"
	}
	return strings.Join(out, ", ")
}
