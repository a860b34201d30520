package provider

import (
	"context"
	"slices"

	"github.com/hashicorp/terraform-plugin-framework/attr"
	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// sandboxChange says what the difference between state and plan means for the sandbox.
type sandboxChange struct {
	// replace are the attributes, or spec paths, that need a new sandbox; blame are the attributes to name to Terraform.
	replace []string
	blame   path.Paths
	// touch: the backend has something to do. addPackages are new ones.
	touch       bool
	addPackages []string
}

func (c *sandboxChange) needNew(attribute string, what ...string) {
	if len(what) == 0 {
		what = []string{attribute}
	}
	c.replace = append(c.replace, what...)
	c.blame.Append(path.Root(attribute))
}

// change compares state and plan. What is not known yet counts as unchanged: Update compares again.
func (r *sandboxResource) change(state, plan *sandboxModel, p *sandboxcore.Profile) (sandboxChange, error) {
	var c sandboxChange
	reg := r.registry
	var live []string
	if p != nil {
		caps, err := reg.Capabilities(p)
		if err != nil {
			return c, err
		}
		live = caps.LiveUpdate
		if spec := state.Profile.ValueString(); spec != plan.Profile.ValueString() {
			from, err := reg.ParseSpec(spec)
			if err != nil {
				return c, err
			}
			if d := reg.DiffProfiles(from, p, reg.LiveFields(p.Type)); len(d.Replace) > 0 {
				c.needNew("profile", d.Replace...)
			}
			c.touch = true
		}
	}
	for _, a := range []struct {
		name    string
		differs bool
	}{
		{"env", changed(state.Env, plan.Env)},
		{"secret_env", changed(state.SecretEnv, plan.SecretEnv)},
		{"env_wo_version", changed(state.EnvWOVersion, plan.EnvWOVersion)},
		{"principal", changed(state.Principal, plan.Principal)},
		{"max_lifetime", changed(state.MaxLifetime, plan.MaxLifetime) && !sameDuration(state, plan)},
	} {
		if a.differs {
			c.needNew(a.name)
		}
	}
	for _, a := range []struct {
		name    string
		differs bool
	}{{"name", changed(state.Name, plan.Name)}, {"labels", changed(state.Labels, plan.Labels)}} {
		switch {
		case !a.differs:
		case slices.Contains(live, a.name):
			c.touch = true
		default:
			c.needNew(a.name)
		}
	}
	c.packages(state, plan)
	// Nothing of the sandbox depends on these two, but they are recorded with it.
	if changed(state.Timeouts.Object, plan.Timeouts.Object) || changed(state.Packages, plan.Packages) {
		c.touch = true
	}
	if changed(state.DesiredState, plan.DesiredState) {
		c.touch = true
	}
	return c, nil
}

func (c *sandboxChange) packages(state, plan *sandboxModel) {
	before, _ := stringList(state.Packages)
	after, known := stringList(plan.Packages)
	if !known {
		return
	}
	for _, p := range before {
		if !slices.Contains(after, p) {
			c.needNew("packages")
			return
		}
	}
	for _, p := range after {
		if !slices.Contains(before, p) {
			c.addPackages = append(c.addPackages, p)
			c.touch = true
		}
	}
}

// changed reports whether a planned value is another one for certain. One that is known only in part counts as
// unchanged as long as the known part is what it was.
func changed(before, after attr.Value) bool {
	if after.IsUnknown() {
		return false
	}
	elements := func(v attr.Value) map[string]attr.Value {
		switch x := v.(type) {
		case types.Map:
			return x.Elements()
		case types.Object:
			return x.Attributes()
		}
		return nil
	}
	then, now := elements(before), elements(after)
	if now == nil || before.IsNull() || after.IsNull() {
		return !before.Equal(after)
	}
	for name, v := range now {
		old, ok := then[name]
		if !ok || changed(old, v) {
			return true
		}
	}
	return len(then) != len(now)
}

func sameDuration(state, plan *sandboxModel) bool {
	if state.MaxLifetime.IsNull() || plan.MaxLifetime.IsNull() || plan.MaxLifetime.IsUnknown() {
		return false
	}
	a, d1 := state.MaxLifetime.ValueGoDuration()
	b, d2 := plan.MaxLifetime.ValueGoDuration()
	return !d1.HasError() && !d2.HasError() && a == b
}

// ModifyPlan checks everything that is known, decides between update and replacement, and makes known what can be.
func (r *sandboxResource) ModifyPlan(ctx context.Context, req resource.ModifyPlanRequest, resp *resource.ModifyPlanResponse) {
	if req.Plan.Raw.IsNull() || r.data == nil {
		return
	}
	var plan sandboxModel
	resp.Diagnostics.Append(req.Plan.Get(ctx, &plan)...)
	envWO, diags := writeOnlyEnv(ctx, req.Config)
	resp.Diagnostics.Append(diags...)
	var state *sandboxModel
	if !req.State.Raw.IsNull() {
		state = &sandboxModel{}
		resp.Diagnostics.Append(req.State.Get(ctx, state)...)
	}
	who, diags := r.principal(ctx, req.Config, &plan)
	resp.Diagnostics.Append(diags...)
	if resp.Diagnostics.HasError() {
		return
	}
	ctx, redact := r.data.request(ctx, envWO)
	report := reporter{diags: &resp.Diagnostics, schema: req.Plan.Schema, fallback: "profile", redact: redact}

	var p *sandboxcore.Profile
	if !plan.Profile.IsUnknown() {
		var err error
		if p, err = r.registry.ParseSpec(plan.Profile.ValueString()); err != nil {
			report.error(ctx, err, sandboxcore.CodeSpec)
			return
		}
	}
	r.planName(ctx, req, &plan, state, p)

	planned := true
	if state == nil {
		r.planCreate(&plan, p)
	} else {
		change, err := r.change(state, &plan, p)
		if err != nil {
			report.error(ctx, err, sandboxcore.CodeSpec)
			return
		}
		r.planUpdate(state, &plan, p, change.touch, undecided(ctx, &plan))
		resp.RequiresReplace.Append(change.blame...)
		if len(change.replace) > 0 {
			resp.Diagnostics.Append(replaceWarning(state.ID.ValueString(), change.replace))
		}
		planned = change.touch && len(change.replace) == 0
	}
	resp.Diagnostics.Append(resp.Plan.Set(ctx, &plan)...)
	if planned && p != nil {
		r.check(ctx, &plan, p, who, envWO, state == nil, report)
	}
}

// check lets the engine judge what is known of the sandbox, and asks the machine or engine whether it can give it. Secrets
// are handed over by a creation only.
func (r *sandboxResource) check(ctx context.Context, plan *sandboxModel, p *sandboxcore.Profile, who principal, envWO map[string]string, creates bool, report reporter) {
	request := plan.request(p, who, envWO)
	_, verdict, err := r.data.engine.CheckSandbox(request)
	if err == nil && creates {
		err = r.data.checkSecrets(request.SecretEnv)
	}
	if err == nil {
		err = r.data.engine.Admit(ctx, p, sandboxcore.Operation{
			Name: sandboxcore.OpCreate, Packages: len(request.Packages) > 0, Pause: request.Paused, MaxLifetime: request.MaxLifetime != "",
		}, true)
	}
	report.error(ctx, err, sandboxcore.CodeUnreachable)
	if err == nil {
		report.diags.Append(unenforcedWarnings(path.Root("profile"), p, verdict)...)
	}
}

// principal fills in the principal of the plan, and gives it.
func (r *sandboxResource) principal(ctx context.Context, config attributeReader, plan *sandboxModel) (principal, diag.Diagnostics) {
	return planPrincipal(ctx, config, r.data.principal, &plan.Principal)
}

// planPrincipal resolves a construct's principal, as far as it is known.
func planPrincipal(ctx context.Context, config attributeReader, fallback principal, plan *types.Object) (principal, diag.Diagnostics) {
	var configured types.Object
	diags := config.GetAttribute(ctx, path.Root("principal"), &configured)
	who, more := resolvePrincipal(ctx, configured, fallback)
	diags.Append(more...)
	switch {
	case who.known || configured.IsNull():
		*plan = principalObject(who)
	case !configured.IsUnknown():
		*plan = halfPrincipal(configured)
	}
	return who, diags
}

// planName keeps the name of a sandbox that exists; a new one is called like its profile unless it is named.
func (r *sandboxResource) planName(ctx context.Context, req resource.ModifyPlanRequest, plan, state *sandboxModel, p *sandboxcore.Profile) {
	var configured types.String
	if diags := req.Config.GetAttribute(ctx, path.Root("name"), &configured); diags.HasError() || !configured.IsNull() {
		return
	}
	switch {
	case state != nil:
		plan.Name = state.Name
	case p != nil:
		plan.Name = types.StringValue(p.Name)
	default:
		plan.Name = types.StringUnknown()
	}
}

func (r *sandboxResource) planCreate(plan *sandboxModel, p *sandboxcore.Profile) {
	plan.ID, plan.NativeID, plan.Endpoint = types.StringUnknown(), types.StringUnknown(), types.StringUnknown()
	plan.CreatedAt, plan.ExpiresAt = types.StringUnknown(), types.StringUnknown()
	plan.Status = plan.DesiredState
	r.planSpec(plan, p)
}

// planUpdate: whatever the backend is asked to change, the sandbox is afterwards as it is wanted. If nothing is asked it
// stays as it is, also dormant. maybe: what is asked is not known yet.
func (r *sandboxResource) planUpdate(state, plan *sandboxModel, p *sandboxcore.Profile, touch, maybe bool) {
	plan.ID, plan.NativeID, plan.Endpoint = state.ID, state.NativeID, state.Endpoint
	plan.CreatedAt, plan.ExpiresAt, plan.Status = state.CreatedAt, state.ExpiresAt, state.Status
	if touch || maybe { // being touched may renew its time
		plan.ExpiresAt = types.StringUnknown()
	}
	switch {
	case touch:
		plan.Status = plan.DesiredState
	case maybe && !state.Status.Equal(plan.DesiredState):
		plan.Status = types.StringUnknown()
	}
	r.planSpec(plan, p)
}

// undecided reports whether an argument by which an update touches the sandbox is not known yet.
func undecided(ctx context.Context, plan *sandboxModel) bool {
	for _, v := range []attr.Value{plan.Profile, plan.Name, plan.Labels, plan.Packages, plan.Timeouts.Object, plan.DesiredState} {
		if t, err := v.ToTerraformValue(ctx); err != nil || !t.IsFullyKnown() {
			return true
		}
	}
	return false
}

// planSpec fills in what follows from the spec.
func (r *sandboxResource) planSpec(plan *sandboxModel, p *sandboxcore.Profile) {
	plan.Backend, plan.Isolation, plan.Binding = types.StringUnknown(), types.StringUnknown(), types.ObjectUnknown(bindingTypes)
	if p == nil {
		return
	}
	plan.Backend = types.StringValue(string(p.Type))
	plan.Binding = bindingObject(p, plan.Profile.ValueString(), plan.Endpoint, plan.ID)
	if caps, err := r.registry.Capabilities(p); err == nil {
		plan.Isolation = types.StringValue(string(caps.Isolation))
	}
}
