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
	_ datasource.DataSource              = (*backendsDataSource)(nil)
	_ datasource.DataSourceWithConfigure = (*backendsDataSource)(nil)
)

func newBackendsDataSource(reg *sandboxcore.Registry) *backendsDataSource {
	return &backendsDataSource{registry: reg}
}

// backendsDataSource lists every backend that this provider has.
type backendsDataSource struct {
	registry *sandboxcore.Registry
	data     *providerData
}

func (d *backendsDataSource) Metadata(_ context.Context, req datasource.MetadataRequest, resp *datasource.MetadataResponse) {
	resp.TypeName = req.ProviderTypeName + "_backends"
}

func (d *backendsDataSource) Schema(_ context.Context, _ datasource.SchemaRequest, resp *datasource.SchemaResponse) {
	nested := dataSourceAttributes(map[string]resourceschema.Attribute{
		"description": resourceschema.StringAttribute{MarkdownDescription: "What it is.", Computed: true},
		"configured":  resourceschema.BoolAttribute{MarkdownDescription: "Whether the provider block names it. A backend that is not named may work with its defaults.", Computed: true},
		"capabilities": resourceschema.SingleNestedAttribute{
			MarkdownDescription: "What it supports and enforces with default settings.",
			Computed:            true, Attributes: capabilityAttributes(),
		},
		"offer": offerAttribute(),
	})
	resp.Schema = schema.Schema{
		MarkdownDescription: "All backends of this provider, with what they support and enforce, and on request with what this machine or engine really offers.",
		Attributes: map[string]schema.Attribute{
			"probe": schema.BoolAttribute{
				MarkdownDescription: "Whether every backend is asked what it really offers. None is asked otherwise.",
				Optional:            true,
			},
			"backends": schema.MapNestedAttribute{
				MarkdownDescription: "The backends by type.",
				Computed:            true,
				NestedObject:        schema.NestedAttributeObject{Attributes: nested},
			},
		},
	}
}

func (d *backendsDataSource) Configure(_ context.Context, req datasource.ConfigureRequest, resp *datasource.ConfigureResponse) {
	d.data = configured("agentkernel_backends", req.ProviderData, &resp.Diagnostics)
}

func (d *backendsDataSource) Read(ctx context.Context, req datasource.ReadRequest, resp *datasource.ReadResponse) {
	if d.data == nil {
		resp.Diagnostics.Append(unconfiguredError("agentkernel_backends"))
		return
	}
	var probe types.Bool
	resp.Diagnostics.Append(req.Config.GetAttribute(ctx, path.Root("probe"), &probe)...)
	report := reporter{diags: &resp.Diagnostics, schema: req.Config.Schema}
	kind := map[string]attr.Type{
		"description": types.StringType, "configured": types.BoolType,
		"capabilities": types.ObjectType{AttrTypes: capabilityTypes()}, "offer": types.ObjectType{AttrTypes: offerTypes},
	}
	backends := map[string]attr.Value{}
	for _, f := range d.registry.Factories() {
		p, err := plainProfile(d.registry, string(f.Type), sandboxcore.PolicyInput{})
		var caps sandboxcore.Capabilities
		if err == nil {
			caps, err = d.registry.Capabilities(p)
		}
		offer := types.ObjectNull(offerTypes)
		if err == nil && probe.ValueBool() {
			var o sandboxcore.Offer
			if o, err = d.data.engine.Offers(ctx, f.Type); err == nil {
				obj, diags := offerObject(ctx, o)
				resp.Diagnostics.Append(diags...)
				offer = obj
			}
		}
		if err != nil {
			report.error(ctx, err, sandboxcore.CodeUnreachable)
			return
		}
		backends[string(f.Type)] = types.ObjectValueMust(kind, map[string]attr.Value{
			"description": types.StringValue(f.Describe), "configured": types.BoolValue(d.data.engine.Configured(f.Type)),
			"capabilities": capabilitiesObject(caps), "offer": offer,
		})
	}
	resp.State.Raw = req.Config.Raw
	resp.Diagnostics.Append(resp.State.SetAttribute(ctx, path.Root("backends"), types.MapValueMust(types.ObjectType{AttrTypes: kind}, backends))...)
}
