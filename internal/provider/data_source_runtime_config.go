package provider

import (
	"context"
	"fmt"

	"github.com/hashicorp/terraform-plugin-framework-validators/float64validator"
	"github.com/hashicorp/terraform-plugin-framework-validators/int64validator"
	"github.com/hashicorp/terraform-plugin-framework-validators/listvalidator"
	"github.com/hashicorp/terraform-plugin-framework-validators/mapvalidator"
	"github.com/hashicorp/terraform-plugin-framework-validators/stringvalidator"
	"github.com/hashicorp/terraform-plugin-framework/attr"
	"github.com/hashicorp/terraform-plugin-framework/datasource"
	"github.com/hashicorp/terraform-plugin-framework/datasource/schema"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/schema/validator"
	"github.com/hashicorp/terraform-plugin-framework/tfsdk"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/runtimeconfig"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

var (
	_ datasource.DataSource                   = (*runtimeConfigDataSource)(nil)
	_ datasource.DataSourceWithValidateConfig = (*runtimeConfigDataSource)(nil)
)

func newRuntimeConfigDataSource(reg *sandboxcore.Registry) *runtimeConfigDataSource {
	return &runtimeConfigDataSource{registry: reg}
}

// runtimeConfigDataSource hands profiles to the Agent Kernel runtime.
type runtimeConfigDataSource struct {
	registry *sandboxcore.Registry
}

func (d *runtimeConfigDataSource) Metadata(_ context.Context, req datasource.MetadataRequest, resp *datasource.MetadataResponse) {
	resp.TypeName = req.ProviderTypeName + "_runtime_config"
}

func (d *runtimeConfigDataSource) Schema(_ context.Context, _ datasource.SchemaRequest, resp *datasource.SchemaResponse) {
	resp.Schema = schema.Schema{
		MarkdownDescription: "Profiles as the `sandbox:` section of Agent Kernel's configuration, so that the runtime and Terraform run code under the same limits. " +
			"Arguments have the names and the defaults of Agent Kernel; one that is not set is not written. Of the profiles every key that Agent Kernel knows is written, " +
			"also where it has its default.\n\n" +
			"What only this provider knows is left out and listed in `omitted`: the runtime does without it, and without the hardening that the provider adds by itself. " +
			"What Agent Kernel has a key for and does not enforce is a warning on every plan. The result holds no secret, only names of environment variables. " +
			"Nothing is asked over the network, and the provider needs no configuration.",
		Attributes: map[string]schema.Attribute{
			"profiles": schema.ListAttribute{
				MarkdownDescription: "The `spec` of each `agentkernel_profile` to write; their names have to differ. A profile whose backend Agent Kernel does not have (`bubblewrap`, `plugin`) is left out with a warning.",
				Required:            true, ElementType: types.StringType,
				Validators: []validator.List{listvalidator.SizeAtLeast(1), listvalidator.NoNullValues()},
			},
			"enabled": schema.BoolAttribute{
				MarkdownDescription: "Whether the runtime has sandboxes at all. Defaults to true here, unlike in Agent Kernel.",
				Optional:            true,
			},
			"default_profile": schema.StringAttribute{
				MarkdownDescription: "Name of the profile for runs that name none. Defaults to the only profile, or to the one that is called `default`; otherwise it has to be set.",
				Optional:            true,
			},
			"agents": schema.ListAttribute{
				MarkdownDescription: "Names of the agents that may use sandboxes: all of them if unset, none with an empty list.",
				Optional:            true, ElementType: types.StringType, Validators: []validator.List{listvalidator.NoNullValues()},
			},
			"principal_resolver": schema.StringAttribute{
				MarkdownDescription: "Dotted path of the Python class that finds out whose identity a run has, such as `myapp.identity.Resolver`. Profiles with `identity.mode = \"user\"` need one.",
				Optional:            true, Validators: []validator.String{stringvalidator.LengthAtLeast(1)},
			},
			"tool_output_max_chars": schema.Int64Attribute{
				MarkdownDescription: "Longest output that an agent is shown, in characters. Agent Kernel's default is 8000.",
				Optional:            true, Validators: []validator.Int64{int64validator.Between(1, maxWhole)},
			},
			"broker": schema.SingleNestedAttribute{
				MarkdownDescription: "How runs reach the backend. The connection blocks of the flavour `queue` are not written here: add them to the section yourself.",
				Optional:            true, Attributes: brokerAttributes(),
			},
			"api_key_env": schema.MapAttribute{
				MarkdownDescription: "Names of the environment variables with API keys, by backend: `e2b` (default `E2B_API_KEY`), `daytona` (default `DAYTONA_API_KEY`). " +
					"Capital letters, digits and `_` only, so that a key that stands here by mistake is refused.",
				Optional: true, ElementType: types.StringType, Validators: []validator.Map{mapvalidator.NoNullValues()},
			},
			"yaml": schema.StringAttribute{
				MarkdownDescription: "The section, with its key `sandbox`, as YAML: a whole `config.yaml`, or a part of one.",
				Computed:            true,
			},
			"json": schema.StringAttribute{
				MarkdownDescription: "The same as JSON, for `jsondecode`, `merge` and files that are read as YAML.",
				Computed:            true,
			},
			"env": schema.MapAttribute{
				MarkdownDescription: "The same as environment variables (`AK_SANDBOX__ENABLED`, `AK_SANDBOX__BROKER__FLAVOR`, …), which Agent Kernel reads before its file. All profiles are JSON in one variable, " +
					"`AK_SANDBOX__PROFILES`: the names of variables are matched without regard to case, and those of profiles are not.",
				Computed: true, ElementType: types.StringType,
			},
			"omitted": schema.ListAttribute{
				MarkdownDescription: "Paths below `sandbox` of what Agent Kernel has no key for, such as `profiles.job.docker.pids_limit`.",
				Computed:            true, ElementType: types.StringType,
			},
		},
	}
}

func brokerAttributes() map[string]schema.Attribute {
	number := func(description string, minimum float64) schema.Float64Attribute {
		return schema.Float64Attribute{MarkdownDescription: description, Optional: true, Validators: []validator.Float64{float64validator.AtLeast(minimum)}}
	}
	whole := number("Largest request that travels with its message, in bytes; a whole number. Agent Kernel's default is 131072.", 1)
	whole.Validators = append(whole.Validators, wholeNumber{})
	return map[string]schema.Attribute{
		"flavor": schema.StringAttribute{
			MarkdownDescription: "`thread` (Agent Kernel's default), `embedded`, `queue`, or the dotted path of a class.",
			Optional:            true, Validators: []validator.String{stringvalidator.LengthAtLeast(1)},
		},
		"wait_timeout":             number("Seconds that an agent waits for a run before it goes on in the background; 0 never waits. Agent Kernel's default is 60.", 0),
		"wait_poll_interval":       number("Seconds between two looks at a run. Agent Kernel's default is 0.5.", 0),
		"inline_payload_max_bytes": whole,
		"response_ttl":             number("Seconds that a result is kept. Agent Kernel's default is 86400.", 0),
		"sweep_interval":           number("Seconds between two sweeps for what is left over. Agent Kernel's default is 300.", 0),
		"worker_timeout_ceiling":   number("Seconds that a worker itself may live; a profile with a longer `policy.timeout` is refused by the runtime. Agent Kernel has no default, and advises 840 on serverless workers.", 0),
	}
}

type runtimeConfigModel struct {
	Profiles           []types.String          `tfsdk:"profiles"`
	Enabled            types.Bool              `tfsdk:"enabled"`
	DefaultProfile     types.String            `tfsdk:"default_profile"`
	Agents             types.List              `tfsdk:"agents"`
	PrincipalResolver  types.String            `tfsdk:"principal_resolver"`
	ToolOutputMaxChars types.Int64             `tfsdk:"tool_output_max_chars"`
	Broker             *runtimeBrokerModel     `tfsdk:"broker"`
	APIKeyEnv          map[string]types.String `tfsdk:"api_key_env"`
	YAML               types.String            `tfsdk:"yaml"`
	JSON               types.String            `tfsdk:"json"`
	Env                types.Map               `tfsdk:"env"`
	Omitted            types.List              `tfsdk:"omitted"`
}

type runtimeBrokerModel struct {
	Flavor                types.String  `tfsdk:"flavor"`
	WaitTimeout           types.Float64 `tfsdk:"wait_timeout"`
	WaitPollInterval      types.Float64 `tfsdk:"wait_poll_interval"`
	InlinePayloadMaxBytes types.Float64 `tfsdk:"inline_payload_max_bytes"`
	ResponseTTL           types.Float64 `tfsdk:"response_ttl"`
	SweepInterval         types.Float64 `tfsdk:"sweep_interval"`
	WorkerTimeoutCeiling  types.Float64 `tfsdk:"worker_timeout_ceiling"`
}

func (m runtimeConfigModel) options() runtimeconfig.Options {
	o := runtimeconfig.Options{
		Enabled: m.Enabled.ValueBoolPointer(), DefaultProfile: m.DefaultProfile.ValueStringPointer(), PrincipalResolver: m.PrincipalResolver.ValueStringPointer(),
		ToolOutputMaxChars: m.ToolOutputMaxChars.ValueInt64Pointer(), APIKeyEnv: map[string]string{},
	}
	if !m.Agents.IsNull() {
		agents := optionalStrings(m.Agents, unknownPaths{}, "agents")
		o.Agents = &agents
	}
	for kind, name := range m.APIKeyEnv {
		o.APIKeyEnv[kind] = name.ValueString()
	}
	if b := m.Broker; b != nil {
		o.Broker = runtimeconfig.Broker{
			Flavor: b.Flavor.ValueStringPointer(), WaitTimeout: b.WaitTimeout.ValueFloat64Pointer(), WaitPollInterval: b.WaitPollInterval.ValueFloat64Pointer(),
			ResponseTTL: b.ResponseTTL.ValueFloat64Pointer(), SweepInterval: b.SweepInterval.ValueFloat64Pointer(), WorkerTimeoutCeiling: b.WorkerTimeoutCeiling.ValueFloat64Pointer(),
		}
		if n := b.InlinePayloadMaxBytes.ValueFloat64Pointer(); n != nil {
			o.Broker.InlinePayloadMaxBytes = new(int64(*n))
		}
	}
	return o
}

// ValidateConfig judges a configuration that is known already, so that a fault shows before the plan.
func (d *runtimeConfigDataSource) ValidateConfig(ctx context.Context, req datasource.ValidateConfigRequest, resp *datasource.ValidateConfigResponse) {
	if req.Config.Raw.IsFullyKnown() {
		// Warnings come with the plan, once.
		report := datasource.ReadResponse{}
		d.render(ctx, req.Config, &report)
		resp.Diagnostics.Append(report.Diagnostics.Errors()...)
	}
}

func (d *runtimeConfigDataSource) Read(ctx context.Context, req datasource.ReadRequest, resp *datasource.ReadResponse) {
	result, ok := d.render(ctx, req.Config, resp)
	if !ok {
		return
	}
	env := make(map[string]attr.Value, len(result.Env))
	for name, value := range result.Env {
		env[name] = types.StringValue(value)
	}
	resp.State.Raw = req.Config.Raw
	resp.Diagnostics.Append(setAll(ctx, &resp.State, map[string]attr.Value{
		"yaml": types.StringValue(result.YAML), "json": types.StringValue(result.JSON),
		"env": types.MapValueMust(types.StringType, env), "omitted": stringsValue(result.Omitted),
	})...)
}

func (d *runtimeConfigDataSource) render(ctx context.Context, config tfsdk.Config, resp *datasource.ReadResponse) (runtimeconfig.Result, bool) {
	var m runtimeConfigModel
	resp.Diagnostics.Append(config.Get(ctx, &m)...)
	if resp.Diagnostics.HasError() {
		return runtimeconfig.Result{}, false
	}
	report := reporter{diags: &resp.Diagnostics, schema: config.Schema, fallback: "profiles"}
	var profiles []*sandboxcore.Profile
	for i, spec := range m.Profiles {
		p, err := d.registry.ParseSpec(spec.ValueString())
		if err != nil {
			for _, e := range sandboxcore.AllErrors(err, sandboxcore.CodeSpec) {
				if e.Object == "" {
					e.Object = fmt.Sprintf("profiles[%d]", i)
				}
			}
			report.error(ctx, err, sandboxcore.CodeSpec)
			continue
		}
		// A spec can come from anywhere: what no profile of this provider may ask for is not handed on.
		verdict, err := d.registry.Decide(p, nil, nil)
		if err != nil {
			report.error(ctx, err, sandboxcore.CodeValue)
			continue
		}
		resp.Diagnostics.Append(unenforcedWarnings(path.Root("profiles"), p, verdict)...)
		profiles = append(profiles, p)
	}
	if resp.Diagnostics.HasError() {
		return runtimeconfig.Result{}, false
	}
	result, err := runtimeconfig.Render(profiles, m.options())
	if err != nil {
		report.error(ctx, err, sandboxcore.CodeValue)
		return runtimeconfig.Result{}, false
	}
	for _, w := range result.Warnings {
		resp.Diagnostics.Append(runtimeWarning(w.Profile, w.Dimension, w.Said))
	}
	return result, true
}
