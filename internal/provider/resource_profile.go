package provider

import (
	"context"

	"github.com/hashicorp/terraform-plugin-framework/attr"
	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

var (
	_ resource.Resource                   = (*profileResource)(nil)
	_ resource.ResourceWithModifyPlan     = (*profileResource)(nil)
	_ resource.ResourceWithValidateConfig = (*profileResource)(nil)
)

func newProfileResource(reg *sandboxcore.Registry) *profileResource {
	return &profileResource{registry: reg}
}

// profileResource is data with a life cycle: it creates nothing anywhere. Everything computed follows from its arguments.
type profileResource struct {
	registry *sandboxcore.Registry
}

func (r *profileResource) Metadata(_ context.Context, req resource.MetadataRequest, resp *resource.MetadataResponse) {
	resp.TypeName = req.ProviderTypeName + "_profile"
}

func (r *profileResource) Schema(_ context.Context, _ resource.SchemaRequest, resp *resource.SchemaResponse) {
	resp.Schema = schema.Schema{
		MarkdownDescription: "What a sandbox may do, and where it runs: a backend with its settings, an identity and a policy. " +
			"Everything computed follows from the arguments and is known at plan when they are; nothing is created. " +
			"What the backend cannot enforce is refused at plan.",
		Attributes: profileAttributes(r.registry),
	}
}

func (r *profileResource) ValidateConfig(ctx context.Context, req resource.ValidateConfigRequest, resp *resource.ValidateConfigResponse) {
	report := reporter{diags: &resp.Diagnostics, schema: req.Config.Schema}
	_, _ = r.evaluate(ctx, req.Config, report)
}

// evaluate reads a profile and judges it. The second result is false after an error.
func (r *profileResource) evaluate(ctx context.Context, from attributeReader, report reporter) (profileResult, bool) {
	return evaluateFrom(ctx, r.registry, from, report)
}

func evaluateFrom(ctx context.Context, reg *sandboxcore.Registry, from attributeReader, report reporter) (profileResult, bool) {
	in, unknown, diags := readProfile(ctx, reg, from)
	report.diags.Append(diags...)
	if diags.HasError() {
		return profileResult{}, false
	}
	result, err := evaluateProfile(reg, in, unknown)
	report.error(ctx, err, sandboxcore.CodeValue)
	return result, err == nil
}

func (r *profileResource) ModifyPlan(ctx context.Context, req resource.ModifyPlanRequest, resp *resource.ModifyPlanResponse) {
	if req.Plan.Raw.IsNull() {
		return
	}
	result, ok := r.evaluate(ctx, req.Plan, reporter{diags: &resp.Diagnostics, schema: req.Plan.Schema})
	if !ok {
		return
	}
	resp.Diagnostics.Append(result.warnings...)
	resp.Diagnostics.Append(setAll(ctx, &resp.Plan, profileValues(result))...)
}

// attributeWriter is a plan or state.
type attributeWriter interface {
	SetAttribute(ctx context.Context, p path.Path, value any) diag.Diagnostics
}

func setAll(ctx context.Context, to attributeWriter, values map[string]attr.Value) diag.Diagnostics {
	var diags diag.Diagnostics
	for name, v := range values {
		diags.Append(to.SetAttribute(ctx, path.Root(name), v)...)
	}
	return diags
}

func (r *profileResource) Create(ctx context.Context, req resource.CreateRequest, resp *resource.CreateResponse) {
	result, ok := r.evaluate(ctx, req.Plan, reporter{diags: &resp.Diagnostics, schema: req.Plan.Schema})
	if !ok {
		return
	}
	resp.State.Raw = req.Plan.Raw
	resp.Diagnostics.Append(setAll(ctx, &resp.State, profileValues(result))...)
}

// Read works the results out again, so that a release that learns to say more about a backend plans nothing. Arguments
// that a newer release would refuse are left alone here: the plan refuses them.
func (r *profileResource) Read(ctx context.Context, req resource.ReadRequest, resp *resource.ReadResponse) {
	var ignored diag.Diagnostics
	result, ok := r.evaluate(ctx, req.State, reporter{diags: &ignored, schema: req.State.Schema})
	if ok && result.known {
		resp.Diagnostics.Append(setAll(ctx, &resp.State, profileValues(result))...)
	}
}

func (r *profileResource) Update(ctx context.Context, req resource.UpdateRequest, resp *resource.UpdateResponse) {
	result, ok := r.evaluate(ctx, req.Plan, reporter{diags: &resp.Diagnostics, schema: req.Plan.Schema})
	if !ok {
		return
	}
	resp.State.Raw = req.Plan.Raw
	resp.Diagnostics.Append(setAll(ctx, &resp.State, profileValues(result))...)
}

func (r *profileResource) Delete(context.Context, resource.DeleteRequest, *resource.DeleteResponse) {}
