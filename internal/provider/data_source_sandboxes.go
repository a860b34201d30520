package provider

import (
	"context"
	"maps"
	"strings"

	"github.com/hashicorp/terraform-plugin-framework/attr"
	"github.com/hashicorp/terraform-plugin-framework/datasource"
	"github.com/hashicorp/terraform-plugin-framework/datasource/schema"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

var (
	_ datasource.DataSource              = (*sandboxesDataSource)(nil)
	_ datasource.DataSourceWithConfigure = (*sandboxesDataSource)(nil)
)

func newSandboxesDataSource(reg *sandboxcore.Registry) *sandboxesDataSource {
	return &sandboxesDataSource{registry: reg}
}

// sandboxesDataSource finds the sandboxes that exist, whatever state knows them.
type sandboxesDataSource struct {
	registry *sandboxcore.Registry
	data     *providerData
}

func (d *sandboxesDataSource) Metadata(_ context.Context, req datasource.MetadataRequest, resp *datasource.MetadataResponse) {
	resp.TypeName = req.ProviderTypeName + "_sandboxes"
}

var foundTypes = map[string]attr.Type{
	"id": types.StringType, "backend": types.StringType, "endpoint": types.StringType, "native_id": types.StringType,
	"name": types.StringType, "labels": types.MapType{ElemType: types.StringType}, "spec": types.StringType, "fingerprint": types.StringType,
	"status": types.StringType, "created_at": types.StringType, "expires_at": types.StringType, "details": types.MapType{ElemType: types.StringType},
}

func (d *sandboxesDataSource) Schema(_ context.Context, _ datasource.SchemaRequest, resp *datasource.SchemaResponse) {
	text := func(description string) schema.StringAttribute {
		return schema.StringAttribute{MarkdownDescription: description, Computed: true}
	}
	attributes := map[string]schema.Attribute{
		"sandboxes": schema.ListNestedAttribute{
			MarkdownDescription: "What was found, by backend and age.",
			Computed:            true,
			NestedObject: schema.NestedAttributeObject{Attributes: map[string]schema.Attribute{
				"id":          text("`<backend>/<native id>`, which `terraform import` takes."),
				"backend":     text("Backend type."),
				"endpoint":    text("Identity of the place where the sandbox is."),
				"native_id":   text("The backend's own id of the sandbox."),
				"name":        text("Its name."),
				"labels":      schema.MapAttribute{MarkdownDescription: "Its labels.", Computed: true, ElementType: types.StringType},
				"spec":        text("The spec that it was made with."),
				"fingerprint": text("SHA-256 of `spec`, in hexadecimal."),
				"status":      text("`running`, `paused` or `stopped`."),
				"created_at":  text("When it was created, in RFC 3339."),
				"expires_at":  text("When the backend itself ends or pauses it, in RFC 3339; null where there is no such time."),
				"details":     schema.MapAttribute{MarkdownDescription: "Facts that the backend tells, such as an image or a template. With `metrics` also what the sandbox uses.", Computed: true, ElementType: types.StringType},
			}},
		},
		"metrics": schema.BoolAttribute{
			MarkdownDescription: "Whether to ask what each sandbox uses (CPU, memory, disk) for `details`. Only `e2b` can tell, and a server that does not leaves it out. " +
				"The values change from look to look, and so does an output that has them. Defaults to false.",
			Optional: true,
		},
		"unreachable": schema.MapAttribute{
			MarkdownDescription: "Backends that were left out because they could not be asked, with the reason. A backend that stands in the provider block, or in `backend`, is never left out: that it does not answer is an error.",
			Computed:            true, ElementType: types.StringType,
		},
	}
	maps.Copy(attributes, dataSourceAttributes(searchAttributes(d.registry)))
	resp.Schema = schema.Schema{
		MarkdownDescription: "The sandboxes that exist: everything that carries the marks of this provider, whatever state knows it, orphans of runs that were killed included. " +
			"The list resource of the name `agentkernel_sandbox` gives the same to `terraform query`, to import it.",
		Attributes: attributes,
	}
}

func (d *sandboxesDataSource) Configure(_ context.Context, req datasource.ConfigureRequest, resp *datasource.ConfigureResponse) {
	d.data = configured("agentkernel_sandboxes", req.ProviderData, &resp.Diagnostics)
}

func (d *sandboxesDataSource) Read(ctx context.Context, req datasource.ReadRequest, resp *datasource.ReadResponse) {
	if d.data == nil {
		resp.Diagnostics.Append(unconfiguredError("agentkernel_sandboxes"))
		return
	}
	search, diags := readSearch(ctx, req.Config)
	resp.Diagnostics.Append(diags...)
	ctx, redact := d.data.request(ctx, nil)
	report := reporter{diags: &resp.Diagnostics, schema: req.Config.Schema, fallback: "backend", redact: redact}
	found, unreachable := []attr.Value{}, map[string]string{}
	var metrics types.Bool
	resp.Diagnostics.Append(req.Config.GetAttribute(ctx, path.Root("metrics"), &metrics)...)
	for answer := range d.data.sandboxes(ctx, search) {
		if metrics.ValueBool() {
			d.data.engine.Measure(ctx, answer.backend, answer.found)
		}
		switch {
		case answer.skipped:
			unreachable[string(answer.backend)] = redact.String(sandboxcore.Clean(answer.err.Error()))
		case answer.err != nil:
			report.error(ctx, answer.err, sandboxcore.CodeUnreachable)
		}
		for _, info := range answer.found {
			found = append(found, foundObject(answer.backend, info))
		}
	}
	if resp.Diagnostics.HasError() {
		return
	}
	resp.State.Raw = req.Config.Raw
	resp.Diagnostics.Append(setAll(ctx, &resp.State, map[string]attr.Value{
		"sandboxes": types.ListValueMust(types.ObjectType{AttrTypes: foundTypes}, found), "unreachable": mapValue(unreachable),
	})...)
}

// labelKey shows the key of a label: as it is where a label of ours can have it.
func labelKey(k string) string {
	if shown := sandboxcore.Clean(k); shown == k && len(k) <= sandboxcore.MaxLabelBytes && !strings.ContainsAny(k, "\n\t") {
		return k
	}
	return sandboxcore.Printable(k)
}

// foundObject shows a sandbox. Whoever may write its marks could have put anything there, so all of it is cleaned.
func foundObject(t sandboxcore.BackendType, info sandboxcore.SandboxInfo) types.Object {
	labels := map[string]string{}
	for k, v := range info.Marks.Args.Labels {
		labels[labelKey(k)] = sandboxcore.Clean(v)
	}
	details := map[string]string{}
	for k, v := range info.Details {
		details[sandboxcore.Printable(k)] = sandboxcore.Clean(v)
	}
	return types.ObjectValueMust(foundTypes, map[string]attr.Value{
		"id": types.StringValue(sandboxcore.SandboxID(t, info.NativeID)), "backend": types.StringValue(string(t)),
		"endpoint": types.StringValue(info.Endpoint), "native_id": types.StringValue(info.NativeID),
		"name": types.StringValue(sandboxcore.Printable(info.Marks.Name)), "labels": mapValue(labels),
		"spec": types.StringValue(sandboxcore.Clean(info.Marks.Spec)), "fingerprint": types.StringValue(sandboxcore.Fingerprint(info.Marks.Spec)),
		"status": types.StringValue(string(info.Status)), "created_at": createdAt(info), "expires_at": timeText(info.ExpiresAt), "details": mapValue(details),
	})
}
