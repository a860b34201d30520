package provider

import (
	"context"

	"github.com/hashicorp/terraform-plugin-framework/attr"
	"github.com/hashicorp/terraform-plugin-framework/datasource"
	"github.com/hashicorp/terraform-plugin-framework/datasource/schema"
	"github.com/hashicorp/terraform-plugin-framework/path"
	resourceschema "github.com/hashicorp/terraform-plugin-framework/resource/schema"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

var (
	_ datasource.DataSource              = (*attachedEnvironmentDataSource)(nil)
	_ datasource.DataSourceWithConfigure = (*attachedEnvironmentDataSource)(nil)
)

func newAttachedEnvironmentDataSource() *attachedEnvironmentDataSource {
	return &attachedEnvironmentDataSource{}
}

// attachedEnvironmentDataSource binds to an environment that somebody else owns. It is a data source and nothing else:
// what has no resource cannot be destroyed.
type attachedEnvironmentDataSource struct {
	data *providerData
}

func (d *attachedEnvironmentDataSource) Metadata(_ context.Context, req datasource.MetadataRequest, resp *datasource.MetadataResponse) {
	resp.TypeName = req.ProviderTypeName + "_attached_environment"
}

func (d *attachedEnvironmentDataSource) Schema(_ context.Context, _ datasource.SchemaRequest, resp *datasource.SchemaResponse) {
	shared := map[string]resourceschema.Attribute{
		"profile": resourceschema.StringAttribute{
			MarkdownDescription: "The `spec` of an attached profile. Take it from the data source `agentkernel_profile`: everything that uses the environment is then checked in the very first plan, because Terraform puts off reading a data source that refers to a resource with changes.",
			Required:            true,
		},
		"principal": principalAttribute(true),
		"binding":   attachedBindingAttribute(),
		"status": resourceschema.StringAttribute{
			MarkdownDescription: "`running`, `paused`, `stopped`, or `away` (known, but it does not answer now). Only `running` can run anything; the others are no error until something has to run.",
			Computed:            true,
		},
		"platform": resourceschema.StringAttribute{MarkdownDescription: "System of the environment, as its backend tells it.", Computed: true},
		"details": resourceschema.MapAttribute{
			MarkdownDescription: "What else the backend tells of it.",
			Computed:            true, ElementType: types.StringType,
		},
	}
	resp.Schema = schema.Schema{
		MarkdownDescription: "An environment that somebody else owns: a machine, a container, a pod. It is never created, started, stopped, changed or destroyed; only what an `agentkernel_exec` runs and an `agentkernel_file` writes there has an effect. " +
			"Reading it is an error when it does not exist. A policy that attaching cannot enforce counts as unenforced, so a strict profile that asks for it is refused.",
		Attributes: dataSourceAttributes(shared),
	}
}

// attachedBindingAttribute is the binding, with the words of what somebody else made.
func attachedBindingAttribute() resourceschema.SingleNestedAttribute {
	binding := bindingAttribute(true)
	binding.MarkdownDescription = "Names this environment to `agentkernel_exec` and `agentkernel_file`."
	for name, text := range map[string]string{
		"endpoint":    "Identity of the place: account and region of AWS, id of a Docker engine, identity of a cluster.",
		"environment": "`attached`.",
		"id":          "`<backend>/<native id>`: id of the machine, full id of the container, or namespace, pod, container and uid.",
		"spec":        "The spec of the profile.",
	} {
		binding.Attributes[name] = resourceschema.StringAttribute{MarkdownDescription: text, Computed: true}
	}
	return binding
}

func (d *attachedEnvironmentDataSource) Configure(_ context.Context, req datasource.ConfigureRequest, resp *datasource.ConfigureResponse) {
	d.data = configured("agentkernel_attached_environment", req.ProviderData, &resp.Diagnostics)
}

func (d *attachedEnvironmentDataSource) Read(ctx context.Context, req datasource.ReadRequest, resp *datasource.ReadResponse) {
	if d.data == nil {
		resp.Diagnostics.Append(unconfiguredError("agentkernel_attached_environment"))
		return
	}
	var spec types.String
	var who types.Object
	resp.Diagnostics.Append(req.Config.GetAttribute(ctx, path.Root("profile"), &spec)...)
	resp.Diagnostics.Append(req.Config.GetAttribute(ctx, path.Root("principal"), &who)...)
	principal, diags := resolvePrincipal(ctx, who, d.data.principal)
	resp.Diagnostics.Append(diags...)
	if resp.Diagnostics.HasError() {
		return
	}
	if !principal.known {
		resp.Diagnostics.Append(unknownPrincipalError())
		return
	}
	ctx, redact := d.data.request(ctx, nil)
	report := reporter{diags: &resp.Diagnostics, schema: req.Config.Schema, fallback: "profile", redact: redact}
	p, verdict, err := d.data.engine.CheckAttach(spec.ValueString(), &principal.value)
	if err != nil {
		report.error(ctx, err, sandboxcore.CodeValue)
		return
	}
	at, err := d.data.engine.Attach(ctx, spec.ValueString(), principal.value)
	if err != nil {
		report.error(ctx, err, sandboxcore.CodeUnreachable)
		return
	}
	resp.Diagnostics.Append(unenforcedWarnings(path.Root("profile"), p, verdict)...)
	details := make(map[string]string, len(at.Details))
	for k, v := range at.Details {
		details[sandboxcore.Printable(k)] = sandboxcore.Clean(v)
	}
	resp.State.Raw = req.Config.Raw
	resp.Diagnostics.Append(setAll(ctx, &resp.State, map[string]attr.Value{
		"principal": principalObject(principal),
		"binding":   bindingObject(p, spec.ValueString(), types.StringValue(at.Binding.Endpoint), types.StringValue(at.Binding.ID)),
		"status":    types.StringValue(string(at.Status)),
		"platform":  types.StringValue(sandboxcore.Clean(at.Platform)),
		"details":   mapValue(details),
	})...)
}
