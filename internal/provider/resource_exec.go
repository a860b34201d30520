package provider

import (
	"context"

	"github.com/hashicorp/terraform-plugin-framework-timetypes/timetypes"
	"github.com/hashicorp/terraform-plugin-framework-validators/int64validator"
	"github.com/hashicorp/terraform-plugin-framework-validators/listvalidator"
	"github.com/hashicorp/terraform-plugin-framework-validators/mapvalidator"
	"github.com/hashicorp/terraform-plugin-framework-validators/resourcevalidator"
	"github.com/hashicorp/terraform-plugin-framework-validators/stringvalidator"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/planmodifier"
	"github.com/hashicorp/terraform-plugin-framework/schema/validator"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

var (
	_ resource.Resource                     = (*execResource)(nil)
	_ resource.ResourceWithConfigure        = (*execResource)(nil)
	_ resource.ResourceWithConfigValidators = (*execResource)(nil)
	_ resource.ResourceWithModifyPlan       = (*execResource)(nil)
)

// runsAgain ends the descriptions of the arguments that the run depends on.
const runsAgain = " A change runs the code again."

func newExecResource(reg *sandboxcore.Registry) *execResource {
	return &execResource{registry: reg}
}

// execResource is the record of one run. It runs when it is created and when something changes that the run depends on.
type execResource struct {
	registry *sandboxcore.Registry
	data     *providerData
}

func (r *execResource) Metadata(_ context.Context, req resource.MetadataRequest, resp *resource.MetadataResponse) {
	resp.TypeName = req.ProviderTypeName + "_exec"
}

func (r *execResource) Schema(_ context.Context, _ resource.SchemaRequest, resp *resource.SchemaResponse) {
	text := func(d string) schema.StringAttribute {
		return schema.StringAttribute{MarkdownDescription: d, Optional: true}
	}
	result := func(d string) schema.StringAttribute {
		return schema.StringAttribute{MarkdownDescription: d, Computed: true}
	}
	count := func(d string) schema.Int64Attribute {
		return schema.Int64Attribute{MarkdownDescription: d, Computed: true}
	}
	flag := func(d string) schema.BoolAttribute {
		return schema.BoolAttribute{MarkdownDescription: d, Computed: true}
	}
	noNulls := []validator.Map{mapvalidator.NoNullValues()}
	attributes := map[string]schema.Attribute{
		"binding": bindingAttribute(false),
		"profile": text("The `spec` of an `agentkernel_profile`: a sandbox is made for this run and destroyed after it, also when the run fails. Exactly one of `binding` and `profile`." + runsAgain),
		"code":    text("Code in `language`. Exactly one of `code`, `script` and `command`." + runsAgain),
		"script":  text("Shell text." + runsAgain),
		"command": schema.ListAttribute{
			MarkdownDescription: "Program and arguments, without a shell." + runsAgain,
			Optional:            true, ElementType: types.StringType,
			Validators: []validator.List{listvalidator.NoNullValues(), listvalidator.SizeAtLeast(1)},
		},
		"language": schema.StringAttribute{
			MarkdownDescription: "Language of `code` and `destroy_code`. Defaults to `python`." + runsAgain,
			Optional:            true,
			Validators:          []validator.String{stringvalidator.LengthAtLeast(1)},
		},
		"stdin": text("Standard input." + runsAgain),
		"env": schema.MapAttribute{
			MarkdownDescription: "Environment of the run, over that of the sandbox." + runsAgain,
			Optional:            true, ElementType: types.StringType, Validators: noNulls,
		},
		"secret_env": schema.MapAttribute{
			MarkdownDescription: "Environment whose values are secrets: variable to name in the provider's `secrets`. A change of the map runs the code again, a new value alone does not.",
			Optional:            true, ElementType: types.StringType, Validators: noNulls,
		},
		"env_wo": schema.MapAttribute{
			MarkdownDescription: "Environment that is not kept in plan or state. Change `env_wo_version` to run again with new values.",
			Optional:            true, WriteOnly: true, ElementType: types.StringType, Validators: noNulls,
		},
		"env_wo_version": schema.Int64Attribute{
			MarkdownDescription: "Number of the values in `env_wo`." + runsAgain,
			Optional:            true,
		},
		"working_directory": text("Directory to run in; a relative one is below the environment's default." + runsAgain),
		"output_files": schema.ListAttribute{
			MarkdownDescription: "Files to bring back in `files` after the run: at most 1 MiB each and 4 MiB together. A relative path is below the environment's default directory (`/workspace`), whatever `working_directory` is; on `bubblewrap` and `local_subprocess` only files of the workspace can be brought back. One that is missing, or that holds a known secret, is an error." + runsAgain,
			Optional:            true, ElementType: types.StringType,
			Validators: []validator.List{listvalidator.NoNullValues()},
		},
		"principal": principalAttribute(true),
		"triggers": schema.MapAttribute{
			MarkdownDescription: "Anything whose change runs the code again.",
			Optional:            true, ElementType: types.StringType,
		},
		"timeout": schema.StringAttribute{
			MarkdownDescription: "Longest time of the run, such as `\"90s\"`; not beyond the policy's `timeout`, which is the default.",
			Optional:            true, CustomType: timetypes.GoDurationType{},
			PlanModifiers: []planmodifier.String{equalDuration{}},
		},
		"success_exit_codes": schema.ListAttribute{
			MarkdownDescription: "Exit statuses that are no error. Defaults to `[0]`.",
			Optional:            true, ElementType: types.Int64Type,
			Validators: []validator.List{listvalidator.NoNullValues(), listvalidator.SizeAtLeast(1), listvalidator.ValueInt64sAre(int64validator.Between(0, 255))},
		},
		"max_output_bytes": schema.Int64Attribute{
			MarkdownDescription: "How much of each stream is kept, half of it from the end. Defaults to 65536.",
			Optional:            true,
			Validators:          []validator.Int64{int64validator.Between(2, sandboxcore.MaxOutputBytes)},
		},
		"base64_output": schema.BoolAttribute{
			MarkdownDescription: "Whether the streams are also kept byte for byte, in `stdout_base64` and `stderr_base64`. A change counts from the next run on.",
			Optional:            true,
		},
		"background": schema.StringAttribute{
			MarkdownDescription: "What happens to processes that the run leaves behind: `kill` (the default) or `keep`, which is refused where the backend cannot keep them (`keep_background` in its capabilities).",
			Optional:            true,
			Validators:          []validator.String{oneOf(backgroundKill, backgroundKeep)},
		},
		"destroy_script": text("Shell text to run when the object is destroyed, with `env` and `secret_env` only. When it is set, a first run that fails keeps the object as tainted, so that the clean-up runs. An environment that is gone by then is a warning."),
		"destroy_code":   text("The same as code in `language`."),
		"exit_code":      count("Exit status; 128 plus the signal when a signal ended it."),
		"duration_ms":    count("How long the run took, in milliseconds."),
		"notice":         result("What the machinery has to say about the run; empty if nothing."),
		"run_id":         result("Id of the run, also in the audit log."),
		"files": schema.MapNestedAttribute{
			MarkdownDescription: "The files of `output_files`, by the path given there.",
			Computed:            true,
			NestedObject: schema.NestedAttributeObject{Attributes: map[string]schema.Attribute{
				"content_base64": result("Content as base64."),
				"sha256":         result("SHA-256 of the content, in hexadecimal."),
				"size":           count("Size in bytes."),
			}},
		},
	}
	for name, stream := range map[string]string{"stdout": "Standard output", "stderr": "Standard error"} {
		attributes[name] = result(stream + " as text: valid UTF-8, control characters other than newline and tab as escapes, known secrets as `***`, the middle left out when it is longer than `max_output_bytes`.")
		attributes[name+"_bytes"] = count("Length of the whole stream after secrets were hidden.")
		attributes[name+"_sha256"] = result("SHA-256 of the whole stream after secrets were hidden, in hexadecimal.")
		attributes[name+"_truncated"] = flag("Whether something was left out.")
		attributes[name+"_base64"] = result("What was kept of the stream, byte for byte, as base64; null unless `base64_output = true`.")
	}
	resp.Schema = schema.Schema{
		MarkdownDescription: "One run of code, shell text or a command: in an environment that exists (`binding`), or in a sandbox made for it (`profile`). " +
			"It runs when it is created and again, in place, when something changes that the run depends on. The result is a record: a refresh asks no backend, and there is no import. " +
			"A first run that fails leaves no object; a run again that fails keeps the last good record, so that the next plan shows the change again. Runs in one sandbox are parallel: order them with `depends_on`.",
		Attributes: attributes,
	}
}

func (r *execResource) Configure(_ context.Context, req resource.ConfigureRequest, resp *resource.ConfigureResponse) {
	r.data = configured("agentkernel_exec", req.ProviderData, &resp.Diagnostics)
}

func (r *execResource) ConfigValidators(context.Context) []resource.ConfigValidator {
	at := path.MatchRoot
	return []resource.ConfigValidator{
		resourcevalidator.ExactlyOneOf(at("binding"), at("profile")),
		resourcevalidator.ExactlyOneOf(at("code"), at("script"), at("command")),
		resourcevalidator.Conflicting(at("destroy_script"), at("destroy_code")),
	}
}

// ModifyPlan decides whether the code will run, and checks the run as far as it is known.
func (r *execResource) ModifyPlan(ctx context.Context, req resource.ModifyPlanRequest, resp *resource.ModifyPlanResponse) {
	if req.Plan.Raw.IsNull() || r.data == nil {
		return
	}
	var plan execModel
	resp.Diagnostics.Append(req.Plan.Get(ctx, &plan)...)
	envWO, diags := writeOnlyEnv(ctx, req.Config)
	resp.Diagnostics.Append(diags...)
	who, diags := planPrincipal(ctx, req.Config, r.data.principal, &plan.Principal)
	resp.Diagnostics.Append(diags...)
	runs := true
	if req.State.Raw.IsNull() {
		plan.unknownResults()
	} else {
		var state execModel
		resp.Diagnostics.Append(req.State.Get(ctx, &state)...)
		must, may := plan.runsAgain(&state)
		if runs = must || may; runs {
			plan.unknownResults()
		}
		switch {
		case !runs:
			plan.keepResults(&state)
		case !must:
			plan.perhapsKept(&state)
		}
	}
	if resp.Diagnostics.HasError() {
		return
	}
	resp.Diagnostics.Append(resp.Plan.Set(ctx, &plan)...)
	ctx, redact := r.data.request(ctx, envWO)
	report := reporter{diags: &resp.Diagnostics, schema: req.Plan.Schema, fallback: plan.place(), redact: redact}
	if runs {
		r.data.checkRun(ctx, &plan, who, envWO, report)
	}
	if plan.destroyArgument() != "" {
		if request, ok := plan.destroyRequest(who); ok {
			_, _, err := r.data.engine.CheckExec(request)
			report.error(ctx, renamed(err, plan.destroyArgument()), sandboxcore.CodeValue)
		}
	}
}

// place names the argument that says where the code runs.
func (m *execModel) place() string {
	if m.Profile.IsNull() {
		return "binding"
	}
	return "profile"
}

// renamed blames a clean-up's faults on its own argument.
func renamed(err error, argument string) error {
	if err == nil {
		return nil
	}
	var out sandboxcore.Violations
	for _, v := range sandboxcore.AllErrors(err, sandboxcore.CodeValue) {
		e := *v
		if len(e.Attribute) == 1 && (e.Attribute[0] == "script" || e.Attribute[0] == "code" || e.Attribute[0] == "language") {
			e.Attribute = []string{argument}
		}
		out = append(out, &e)
	}
	return out
}

// checkRun judges a run that is planned, as far as it is known.
func (d *providerData) checkRun(ctx context.Context, plan *execModel, who principal, envWO map[string]string, report reporter) {
	request, ok, diags := plan.request(ctx, who, envWO)
	report.diags.Append(diags...)
	if !ok || diags.HasError() {
		return
	}
	p, verdict, err := d.engine.CheckExec(request)
	if err == nil {
		err = d.checkSecrets(request.SecretEnv)
	}
	if err == nil {
		err = d.engine.Admit(ctx, p, sandboxcore.Operation{
			Name: sandboxcore.OpRun, Kind: request.Kind, Language: request.Language, Stdin: len(request.Stdin) > 0,
			Files: len(request.OutputFiles) > 0, KeepBackground: request.KeepBackground, Timeout: request.Timeout,
		}, true)
	}
	report.error(ctx, err, sandboxcore.CodeUnreachable)
	if err == nil {
		report.diags.Append(unenforcedWarnings(path.Root(plan.place()), p, verdict)...)
	}
}
