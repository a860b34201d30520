package provider

import (
	"context"

	"github.com/hashicorp/terraform-plugin-framework-validators/datasourcevalidator"
	"github.com/hashicorp/terraform-plugin-framework/datasource"
	"github.com/hashicorp/terraform-plugin-framework/datasource/schema"
	"github.com/hashicorp/terraform-plugin-framework/path"
	resourceschema "github.com/hashicorp/terraform-plugin-framework/resource/schema"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

var (
	_ datasource.DataSource                     = (*capabilitiesDataSource)(nil)
	_ datasource.DataSourceWithConfigure        = (*capabilitiesDataSource)(nil)
	_ datasource.DataSourceWithConfigValidators = (*capabilitiesDataSource)(nil)
)

func newCapabilitiesDataSource(reg *sandboxcore.Registry) *capabilitiesDataSource {
	return &capabilitiesDataSource{registry: reg}
}

// capabilitiesDataSource says what a backend enforces. It refuses nothing: what a policy would lack is a list to decide by.
type capabilitiesDataSource struct {
	registry *sandboxcore.Registry
	data     *providerData
}

func (d *capabilitiesDataSource) Metadata(_ context.Context, req datasource.MetadataRequest, resp *datasource.MetadataResponse) {
	resp.TypeName = req.ProviderTypeName + "_capabilities"
}

func (d *capabilitiesDataSource) Schema(_ context.Context, _ datasource.SchemaRequest, resp *datasource.SchemaResponse) {
	shared := capabilityAttributes()
	shared["backend"] = resourceschema.StringAttribute{
		MarkdownDescription: "Backend type, with its default settings: " + codeList(d.registry.Types()) + ". Exactly one of `backend` and `profile`.",
		Optional:            true,
	}
	shared["profile"] = resourceschema.StringAttribute{
		MarkdownDescription: "The `spec` of an `agentkernel_profile`: its backend with its settings.",
		Optional:            true,
	}
	shared["policy"] = policyAttribute("A policy to hold against the capabilities. Defaults to the profile's.")
	shared["probe"] = resourceschema.BoolAttribute{
		MarkdownDescription: "Whether the machine or engine is asked what it really offers. It is never asked otherwise.",
		Optional:            true,
	}
	shared["unenforced"] = resourceschema.ListAttribute{
		MarkdownDescription: "Keys of the policy that the backend does not enforce, whatever `strict` says.",
		Computed:            true, ElementType: types.StringType,
	}
	shared["offer"] = offerAttribute()
	resp.Schema = schema.Schema{
		MarkdownDescription: "What a backend supports and enforces, with its default settings or with those of a profile. Never more than the truth.",
		Attributes:          dataSourceAttributes(shared),
	}
}

func (d *capabilitiesDataSource) ConfigValidators(context.Context) []datasource.ConfigValidator {
	return []datasource.ConfigValidator{datasourcevalidator.ExactlyOneOf(path.MatchRoot("backend"), path.MatchRoot("profile"))}
}

func (d *capabilitiesDataSource) Configure(_ context.Context, req datasource.ConfigureRequest, resp *datasource.ConfigureResponse) {
	d.data = configured("agentkernel_capabilities", req.ProviderData, &resp.Diagnostics)
}

func (d *capabilitiesDataSource) Read(ctx context.Context, req datasource.ReadRequest, resp *datasource.ReadResponse) {
	if d.data == nil {
		resp.Diagnostics.Append(unconfiguredError("agentkernel_capabilities"))
		return
	}
	var backend, spec types.String
	var policy types.Object
	var probe types.Bool
	resp.Diagnostics.Append(req.Config.GetAttribute(ctx, path.Root("backend"), &backend)...)
	resp.Diagnostics.Append(req.Config.GetAttribute(ctx, path.Root("profile"), &spec)...)
	resp.Diagnostics.Append(req.Config.GetAttribute(ctx, path.Root("policy"), &policy)...)
	resp.Diagnostics.Append(req.Config.GetAttribute(ctx, path.Root("probe"), &probe)...)
	if resp.Diagnostics.HasError() {
		return
	}
	report := reporter{diags: &resp.Diagnostics, schema: req.Config.Schema}
	p, err := d.profile(backend, spec, policy)
	if err != nil {
		report.error(ctx, err, sandboxcore.CodeValue)
		return
	}
	caps, err := d.registry.Capabilities(p)
	var unenforced []string
	if err == nil {
		unenforced, err = d.registry.Unenforceable(p)
	}
	if err != nil {
		report.error(ctx, err, sandboxcore.CodeValue)
		return
	}
	values := capabilityValues(caps)
	values["unenforced"] = stringsValue(unenforced)
	values["offer"] = types.ObjectNull(offerTypes)
	if probe.ValueBool() {
		offer, err := d.data.engine.Offers(ctx, p.Type)
		if err != nil {
			report.error(ctx, err, sandboxcore.CodeUnreachable)
			return
		}
		obj, diags := offerObject(ctx, offer)
		resp.Diagnostics.Append(diags...)
		values["offer"] = obj
	}
	resp.State.Raw = req.Config.Raw
	resp.Diagnostics.Append(setAll(ctx, &resp.State, values)...)
}

// profile gives the profile whose backend and policy are looked at.
func (d *capabilitiesDataSource) profile(backend, spec types.String, policy types.Object) (*sandboxcore.Profile, error) {
	if spec.IsNull() {
		return plainProfile(d.registry, backend.ValueString(), policyInput(policy, unknownPaths{}))
	}
	p, err := d.registry.ParseSpec(spec.ValueString())
	if err != nil || policy.IsNull() {
		return p, err
	}
	other, err := plainProfile(d.registry, string(p.Type), policyInput(policy, unknownPaths{}))
	if err != nil {
		return nil, err
	}
	p.Policy = other.Policy
	return p, nil
}

// plainProfile is a profile of a backend with default settings.
func plainProfile(reg *sandboxcore.Registry, backend string, policy sandboxcore.PolicyInput) (*sandboxcore.Profile, error) {
	p, err := reg.Resolve(sandboxcore.ProfileInput{Name: "capabilities", Type: backend, Policy: policy, Blocks: map[string]sandboxcore.Settings{backend: {}}})
	if err != nil {
		for _, v := range sandboxcore.AllErrors(err, sandboxcore.CodeValue) {
			if dotted(v.Attribute) == "type" {
				v.Attribute = []string{"backend"}
			}
		}
	}
	return p, err
}
