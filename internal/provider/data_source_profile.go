package provider

import (
	"context"

	"github.com/hashicorp/terraform-plugin-framework/datasource"
	"github.com/hashicorp/terraform-plugin-framework/datasource/schema"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

var (
	_ datasource.DataSource                   = (*profileDataSource)(nil)
	_ datasource.DataSourceWithValidateConfig = (*profileDataSource)(nil)
)

func newProfileDataSource(reg *sandboxcore.Registry) *profileDataSource {
	return &profileDataSource{registry: reg}
}

type profileDataSource struct {
	registry *sandboxcore.Registry
}

func (d *profileDataSource) Metadata(_ context.Context, req datasource.MetadataRequest, resp *datasource.MetadataResponse) {
	resp.TypeName = req.ProviderTypeName + "_profile"
}

func (d *profileDataSource) Schema(_ context.Context, _ datasource.SchemaRequest, resp *datasource.SchemaResponse) {
	resp.Schema = schema.Schema{
		MarkdownDescription: "The same profile as the resource `agentkernel_profile`, without a place in the state. " +
			"Terraform reads a data source during the plan when nothing that it refers to is about to change, so that everything that uses the profile is checked in the very first plan.",
		Attributes: dataSourceAttributes(profileAttributes(d.registry)),
	}
}

func (d *profileDataSource) ValidateConfig(ctx context.Context, req datasource.ValidateConfigRequest, resp *datasource.ValidateConfigResponse) {
	_, _ = evaluateFrom(ctx, d.registry, req.Config, reporter{diags: &resp.Diagnostics, schema: req.Config.Schema})
}

func (d *profileDataSource) Read(ctx context.Context, req datasource.ReadRequest, resp *datasource.ReadResponse) {
	result, ok := evaluateFrom(ctx, d.registry, req.Config, reporter{diags: &resp.Diagnostics, schema: req.Config.Schema})
	if !ok {
		return
	}
	resp.Diagnostics.Append(result.warnings...)
	resp.State.Raw = req.Config.Raw
	resp.Diagnostics.Append(setAll(ctx, &resp.State, profileValues(result))...)
}
