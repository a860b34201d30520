package provider

import (
	"context"
	"regexp"
	"time"

	"github.com/hashicorp/terraform-plugin-framework-timeouts/resource/timeouts"
	"github.com/hashicorp/terraform-plugin-framework-timetypes/timetypes"
	"github.com/hashicorp/terraform-plugin-framework-validators/listvalidator"
	"github.com/hashicorp/terraform-plugin-framework-validators/mapvalidator"
	"github.com/hashicorp/terraform-plugin-framework-validators/stringvalidator"
	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/planmodifier"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/stringdefault"
	"github.com/hashicorp/terraform-plugin-framework/schema/validator"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

var (
	_ resource.Resource                = (*sandboxResource)(nil)
	_ resource.ResourceWithConfigure   = (*sandboxResource)(nil)
	_ resource.ResourceWithModifyPlan  = (*sandboxResource)(nil)
	_ resource.ResourceWithImportState = (*sandboxResource)(nil)
	_ resource.ResourceWithIdentity    = (*sandboxResource)(nil)
)

// Default time limits of operations on a sandbox. Creation includes the pull of an image and the installation of packages.
const (
	sandboxCreateTimeout = 20 * time.Minute
	sandboxReadTimeout   = 2 * time.Minute
	sandboxUpdateTimeout = 20 * time.Minute
	sandboxDeleteTimeout = 10 * time.Minute
)

func newSandboxResource(reg *sandboxcore.Registry) *sandboxResource {
	return &sandboxResource{registry: reg}
}

// sandboxResource is a long-lived sandbox that we create and destroy.
type sandboxResource struct {
	registry *sandboxcore.Registry
	data     *providerData
}

func (r *sandboxResource) Metadata(_ context.Context, req resource.MetadataRequest, resp *resource.MetadataResponse) {
	resp.TypeName = req.ProviderTypeName + "_sandbox"
}

func (r *sandboxResource) Schema(ctx context.Context, _ resource.SchemaRequest, resp *resource.SchemaResponse) {
	computed := func(d string) schema.StringAttribute {
		return schema.StringAttribute{MarkdownDescription: d, Computed: true}
	}
	noNulls := []validator.Map{mapvalidator.NoNullValues()}
	resp.Schema = schema.Schema{
		MarkdownDescription: "A sandbox that lives until it is destroyed: a container, a workspace. Code is run in it with `agentkernel_exec`. " +
			"Import it by its id, `<backend>/<native id>`, or by its identity; `terraform query` finds it with the list resource of the same name.",
		Attributes: map[string]schema.Attribute{
			"profile": schema.StringAttribute{
				MarkdownDescription: "The `spec` of an `agentkernel_profile`. A change that the sandbox does not depend on is recorded, one that the backend can make in place is made in place, every other one replaces the sandbox, and the plan warns that its files are lost. What a backend changes in place is `live_update` in its capabilities: on `docker` `cpu` and `memory_mb`, on `bubblewrap` no part of the policy.",
				Required:            true,
			},
			"name": schema.StringAttribute{
				MarkdownDescription: "Name for people: " + sandboxcore.ProfileNameHint + ". Names need not be unique. Defaults to the name that the profile had at creation.",
				Optional:            true, Computed: true,
			},
			"env": schema.MapAttribute{
				MarkdownDescription: "Environment of every run in the sandbox. A change replaces the sandbox.",
				Optional:            true, ElementType: types.StringType, Validators: noNulls,
			},
			"secret_env": schema.MapAttribute{
				MarkdownDescription: "Environment whose values are secrets: variable to name in the provider's `secrets`. They are resolved when the sandbox is created; a new value alone plans nothing. " +
					"On some backends whoever may look at the sandbox can read its environment (`docker inspect`); prefer `secret_env` of `agentkernel_exec`.",
				Optional: true, ElementType: types.StringType, Validators: noNulls,
			},
			"env_wo": schema.MapAttribute{
				MarkdownDescription: "Environment that is not kept in plan or state. Change `env_wo_version` to have new values used.",
				Optional:            true, WriteOnly: true, ElementType: types.StringType, Validators: noNulls,
			},
			"env_wo_version": schema.Int64Attribute{
				MarkdownDescription: "Number of the values in `env_wo`; a change replaces the sandbox.",
				Optional:            true,
			},
			"labels": schema.MapAttribute{
				MarkdownDescription: "Labels by which the sandbox can be found. The prefix `agentkernel.io/` is reserved. Changed in place where the backend can, otherwise a change replaces the sandbox.",
				Optional:            true, ElementType: types.StringType, Validators: noNulls,
			},
			"packages": schema.ListAttribute{
				MarkdownDescription: "Python packages to install into the workspace, as requirement specifiers such as `requests>=2.32,<3`: names and versions, no options, paths or URLs. Added in place; removing one replaces the sandbox. Refused under `network_egress = \"deny\"`.",
				Optional:            true, ElementType: types.StringType,
				Validators: []validator.List{listvalidator.NoNullValues(), listvalidator.UniqueValues()},
			},
			"principal": principalAttribute(true),
			"desired_state": schema.StringAttribute{
				MarkdownDescription: "`running` (the default) or `paused`, which is refused where the backend cannot pause. A sandbox that was paused or stopped from outside shows here what it is and is brought back in place by the next apply.",
				Optional:            true, Computed: true,
				Default:    stringdefault.StaticString(string(sandboxcore.StatusRunning)),
				Validators: []validator.String{oneOf(sandboxcore.StatusRunning, sandboxcore.StatusPaused)},
			},
			"max_lifetime": schema.StringAttribute{
				MarkdownDescription: "Time after which the backend itself ends the sandbox, such as `\"8h\"`. Refused where the backend does not do that without Terraform.",
				Optional:            true, CustomType: timetypes.GoDurationType{},
				PlanModifiers: []planmodifier.String{equalDuration{}},
			},
			"timeouts":   timeoutsAttribute(ctx),
			"id":         computed("`<backend>/<native id>`."),
			"backend":    computed("Backend type."),
			"endpoint":   computed("Identity of the place where the sandbox is: of a Docker engine its id."),
			"native_id":  computed("The backend's own id of the sandbox."),
			"binding":    bindingAttribute(true),
			"status":     computed("`running`, `paused` or `stopped`. A stopped sandbox starts when code is run in it."),
			"isolation":  computed("Isolation tier of the sandbox."),
			"created_at": computed("When it was created, in RFC 3339."),
			"expires_at": computed("When the backend itself ends the sandbox, or pauses it, in RFC 3339: as `max_lifetime` says, or on `e2b` as the `idle_timeout` of the profile, which each run renews. " +
				"Null where there is no such time. Read at each refresh; a new value alone plans nothing."),
		},
	}
}

// notNegative is of a duration.
var notNegative = stringvalidator.RegexMatches(regexp.MustCompile(`^[^-]`), "must not be negative")

// timeoutsAttribute is the usual one, with descriptions where documentation looks for them.
func timeoutsAttribute(ctx context.Context) schema.Attribute {
	a := timeouts.Attributes(ctx, timeouts.Opts{Create: true, Read: true, Update: true, Delete: true})
	object, ok := a.(schema.SingleNestedAttribute)
	if !ok {
		return a
	}
	object.MarkdownDescription = "How long operations on the sandbox may take, as durations such as `\"30m\"`. Zero is the default."
	for name, description := range map[string]string{
		"create": "Creation, image and packages included. Defaults to 20 minutes.",
		"read":   "One look at the sandbox. Defaults to 2 minutes.",
		"update": "A change in place. Defaults to 20 minutes.",
		"delete": "The removal. Defaults to 10 minutes.",
	} {
		if text, ok := object.Attributes[name].(schema.StringAttribute); ok {
			text.Description, text.MarkdownDescription = "", description
			text.Validators = append(text.Validators, notNegative)
			object.Attributes[name] = text
		}
	}
	return object
}

// timeLimit reads one time limit. Zero is as good as unset: a deadline that has passed before anything began helps nobody.
func timeLimit(ctx context.Context, read func(context.Context, time.Duration) (time.Duration, diag.Diagnostics), otherwise time.Duration) (time.Duration, diag.Diagnostics) {
	limit, diags := read(ctx, otherwise)
	if limit <= 0 {
		limit = otherwise
	}
	return limit, diags
}

func (r *sandboxResource) Configure(_ context.Context, req resource.ConfigureRequest, resp *resource.ConfigureResponse) {
	r.data = configured("agentkernel_sandbox", req.ProviderData, &resp.Diagnostics)
}

func (r *sandboxResource) Create(ctx context.Context, req resource.CreateRequest, resp *resource.CreateResponse) {
	if r.data == nil {
		resp.Diagnostics.Append(unconfiguredError("agentkernel_sandbox"))
		return
	}
	var plan sandboxModel
	resp.Diagnostics.Append(req.Plan.Get(ctx, &plan)...)
	envWO, diags := writeOnlyEnv(ctx, req.Config)
	resp.Diagnostics.Append(diags...)
	who, diags := r.principal(ctx, req.Config, &plan)
	resp.Diagnostics.Append(diags...)
	limit, diags := timeLimit(ctx, plan.Timeouts.Create, sandboxCreateTimeout)
	resp.Diagnostics.Append(diags...)
	if resp.Diagnostics.HasError() {
		return
	}
	ctx, redact := r.data.request(ctx, envWO)
	report := reporter{diags: &resp.Diagnostics, schema: req.Plan.Schema, fallback: "profile", redact: redact}
	p, caps, ok := r.profile(ctx, plan.Profile, report)
	if !ok {
		return
	}
	if plan.Name.IsUnknown() || plan.Name.IsNull() {
		plan.Name = types.StringValue(p.Name)
	}
	request := plan.request(p, who, envWO)

	work, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	record := func(info sandboxcore.SandboxInfo) {
		plan.show(p, caps, info)
		resp.Diagnostics.Append(resp.State.Set(ctx, &plan)...)
		resp.Diagnostics.Append(plan.identify(ctx, resp.Identity)...)
	}
	// The id is in the state before the next call to the backend, so that whatever fails later leaves a tainted object.
	info, err := r.data.engine.CreateSandbox(work, request, record)
	if err != nil {
		report.error(ctx, err, sandboxcore.CodeProvision)
		return
	}
	record(info)
}

// profile reads a spec and says what the backend can do under it.
func (r *sandboxResource) profile(ctx context.Context, spec types.String, report reporter) (*sandboxcore.Profile, sandboxcore.Capabilities, bool) {
	p, err := r.registry.ParseSpec(spec.ValueString())
	var caps sandboxcore.Capabilities
	if err == nil {
		caps, err = r.registry.Capabilities(p)
	}
	report.error(ctx, err, sandboxcore.CodeSpec)
	return p, caps, err == nil
}

// Read looks at the sandbox. Only the endpoint where it was made can say that it is gone; another endpoint, or none that
// answers, is an error that leaves the state alone.
func (r *sandboxResource) Read(ctx context.Context, req resource.ReadRequest, resp *resource.ReadResponse) {
	if r.data == nil {
		resp.Diagnostics.Append(unconfiguredError("agentkernel_sandbox"))
		return
	}
	var state sandboxModel
	resp.Diagnostics.Append(req.State.Get(ctx, &state)...)
	limit, diags := timeLimit(ctx, state.Timeouts.Read, sandboxReadTimeout)
	resp.Diagnostics.Append(diags...)
	if resp.Diagnostics.HasError() {
		return
	}
	ctx, redact := r.data.request(ctx, nil)
	report := reporter{diags: &resp.Diagnostics, schema: req.State.Schema, fallback: "profile", redact: redact}
	work, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	info, err := r.data.engine.ReadSandbox(work, state.ref())
	if resp.Identity != nil && resp.Identity.Raw.IsFullyNull() {
		// A state of an older release, or an import by id, has none yet, and Terraform wants one of what is gone as well.
		resp.Diagnostics.Append(state.identify(ctx, resp.Identity)...)
	}
	switch {
	case sandboxcore.IsCode(err, sandboxcore.CodeGone):
		resp.Diagnostics.Append(goneWarning(state.ID.ValueString(), err))
		resp.State.RemoveResource(ctx)
		return
	case err != nil && req.ClientCapabilities.DeferralAllowed && r.data.engine.Waits(state.ref().Backend):
		resp.Deferred = &resource.Deferred{Reason: resource.DeferredReasonProviderConfigUnknown}
		return
	case err != nil:
		report.error(ctx, err, sandboxcore.CodeUnreachable)
		return
	}
	if state.Profile.IsNull() { // an import
		err := sandboxcore.CheckMarks(state.ID.ValueString(), info.Marks)
		if err == nil {
			info.Marks.Args.Packages, err = r.data.engine.InstalledPackages(work, state.ref().Backend, info)
		}
		if err == nil {
			info.Marks.Spec, err = r.data.engine.LiveSpec(work, state.ref().Backend, info)
		}
		if err != nil {
			report.error(ctx, err, sandboxcore.CodeUnreachable)
			return
		}
		resp.Diagnostics.Append(state.adopt(ctx, info)...)
	}
	p, caps, ok := r.profile(ctx, state.Profile, report)
	if !ok {
		return
	}
	state.show(p, caps, info)
	// What the sandbox is stands where the configuration says what it should be, so that a difference plans an update.
	// One that only sleeps because its time was over is as it was wanted.
	state.DesiredState = desiredState(state.DesiredState, info)
	resp.Diagnostics.Append(resp.State.Set(ctx, &state)...)
	resp.Diagnostics.Append(state.identify(ctx, resp.Identity)...)
}

func (r *sandboxResource) Update(ctx context.Context, req resource.UpdateRequest, resp *resource.UpdateResponse) {
	if r.data == nil {
		resp.Diagnostics.Append(unconfiguredError("agentkernel_sandbox"))
		return
	}
	var plan, state sandboxModel
	resp.Diagnostics.Append(req.Plan.Get(ctx, &plan)...)
	resp.Diagnostics.Append(req.State.Get(ctx, &state)...)
	who, diags := r.principal(ctx, req.Config, &plan)
	resp.Diagnostics.Append(diags...)
	limit, diags := timeLimit(ctx, plan.Timeouts.Update, sandboxUpdateTimeout)
	resp.Diagnostics.Append(diags...)
	if resp.Diagnostics.HasError() {
		return
	}
	ctx, redact := r.data.request(ctx, nil)
	report := reporter{diags: &resp.Diagnostics, schema: req.Plan.Schema, fallback: "profile", redact: redact}
	p, caps, ok := r.profile(ctx, plan.Profile, report)
	if !ok {
		return
	}
	if plan.Name.IsUnknown() {
		plan.Name = state.Name
	}
	change, err := r.change(&state, &plan, p)
	if err == nil && len(change.replace) > 0 {
		err = lateReplacementError(state.ID.ValueString(), change)
	}
	if err != nil {
		report.error(ctx, err, sandboxcore.CodeSpec)
		return
	}
	info := sandboxcore.SandboxInfo{NativeID: state.NativeID.ValueString(), Endpoint: state.Endpoint.ValueString(), Status: sandboxcore.Status(state.Status.ValueString())}
	if change.touch {
		paused := plan.DesiredState.ValueString() == string(sandboxcore.StatusPaused)
		labels, _ := stringMap(plan.Labels)
		packages, _ := stringList(plan.Packages)
		work, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		info, err = r.data.engine.UpdateSandbox(work, state.ref(), sandboxcore.SandboxUpdate{
			Spec: plan.Profile.ValueString(), Name: plan.Name.ValueString(), Labels: labels, Packages: packages, Timeouts: plan.timeouts(), AddPackages: change.addPackages, Paused: &paused, Principal: who.value,
		})
		if err != nil {
			report.error(ctx, err, sandboxcore.CodeProvision)
			return
		}
	}
	if change.touch && info.Dormant { // its time was over right after the change; that is no other outcome, and the next look tells
		info.Status = sandboxcore.Status(plan.DesiredState.ValueString())
	}
	plan.show(p, caps, info)
	plan.CreatedAt = state.CreatedAt
	if !change.touch { // nothing was asked, so that nothing is known but what was before
		plan.ExpiresAt = state.ExpiresAt
	}
	resp.Diagnostics.Append(resp.State.Set(ctx, &plan)...)
	resp.Diagnostics.Append(plan.identify(ctx, resp.Identity)...)
}

func (r *sandboxResource) Delete(ctx context.Context, req resource.DeleteRequest, resp *resource.DeleteResponse) {
	if r.data == nil {
		resp.Diagnostics.Append(unconfiguredError("agentkernel_sandbox"))
		return
	}
	var state sandboxModel
	resp.Diagnostics.Append(req.State.Get(ctx, &state)...)
	limit, diags := timeLimit(ctx, state.Timeouts.Delete, sandboxDeleteTimeout)
	resp.Diagnostics.Append(diags...)
	if resp.Diagnostics.HasError() {
		return
	}
	ctx, redact := r.data.request(ctx, nil)
	report := reporter{diags: &resp.Diagnostics, schema: req.State.Schema, redact: redact}
	work, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	report.error(ctx, r.data.engine.DestroySandbox(work, state.ref()), sandboxcore.CodeDeleteFailed)
}

// ImportState takes "<backend>/<native id>", or an identity. Everything else is read from the marks that the sandbox
// carries.
func (r *sandboxResource) ImportState(ctx context.Context, req resource.ImportStateRequest, resp *resource.ImportStateResponse) {
	report := reporter{diags: &resp.Diagnostics, schema: resp.State.Schema}
	id := req.ID
	if id == "" && req.Identity != nil && !req.Identity.Raw.IsNull() {
		var identity sandboxIdentity
		resp.Diagnostics.Append(req.Identity.Get(ctx, &identity)...)
		if resp.Diagnostics.HasError() {
			return
		}
		id = identity.Backend.ValueString() + "/" + identity.NativeID.ValueString()
		// With an endpoint, the look that follows refuses a sandbox of the same id at another place.
		resp.Diagnostics.Append(resp.State.SetAttribute(ctx, path.Root("endpoint"), identity.Endpoint)...)
	}
	backend, native, err := r.registry.SplitID(id)
	if err != nil {
		report.error(ctx, err, sandboxcore.CodeSpec)
		return
	}
	resp.Diagnostics.Append(resp.State.SetAttribute(ctx, path.Root("id"), id)...)
	resp.Diagnostics.Append(resp.State.SetAttribute(ctx, path.Root("backend"), string(backend))...)
	resp.Diagnostics.Append(resp.State.SetAttribute(ctx, path.Root("native_id"), native)...)
}
