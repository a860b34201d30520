package provider

import (
	"context"
	"errors"
	"slices"

	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// Create runs the code. A run that fails leaves no object, unless a clean-up is set: then the object is kept, which
// Terraform marks as tainted, so that the clean-up will run.
func (r *execResource) Create(ctx context.Context, req resource.CreateRequest, resp *resource.CreateResponse) {
	if r.data == nil {
		resp.Diagnostics.Append(unconfiguredError("agentkernel_exec"))
		return
	}
	var plan execModel
	resp.Diagnostics.Append(req.Plan.Get(ctx, &plan)...)
	envWO, diags := writeOnlyEnv(ctx, req.Config)
	resp.Diagnostics.Append(diags...)
	who, diags := planPrincipal(ctx, req.Config, r.data.principal, &plan.Principal)
	resp.Diagnostics.Append(diags...)
	if resp.Diagnostics.HasError() {
		return
	}
	ctx, redact := r.data.request(ctx, envWO)
	report := reporter{diags: &resp.Diagnostics, schema: req.Plan.Schema, fallback: plan.place(), redact: redact}
	res, err := r.run(ctx, &plan, who, envWO, report)
	plan.EnvWO = types.MapNull(types.StringType)
	if err != nil {
		report.error(ctx, err, sandboxcore.CodeUnknownOutcome)
	}
	if resp.Diagnostics.HasError() {
		// What was refused, or never reached the backend, left nothing to clean up.
		if what := plan.destroyArgument(); what != "" && ran(err) {
			plan.noResults(res.RunID)
			resp.Diagnostics.Append(resp.State.Set(ctx, &plan)...)
			resp.Diagnostics.Append(taintedWarning(what))
		}
		return
	}
	plan.results(res)
	resp.Diagnostics.Append(resp.State.Set(ctx, &plan)...)
}

// ran reports whether a failed run may have done something.
func ran(err error) bool {
	if _, ok := errors.AsType[*sandboxcore.RunError](err); ok {
		return true
	}
	return slices.ContainsFunc(sandboxcore.AllErrors(err, sandboxcore.CodeUnknownOutcome), func(e *sandboxcore.Error) bool {
		return e.Code == sandboxcore.CodeUnknownOutcome || e.Code == sandboxcore.CodeDeleteFailed
	})
}

func (r *execResource) run(ctx context.Context, plan *execModel, who principal, envWO map[string]string, report reporter) (sandboxcore.ExecResult, error) {
	request, _, diags := plan.request(ctx, who, envWO)
	report.diags.Append(diags...)
	if diags.HasError() {
		return sandboxcore.ExecResult{}, nil
	}
	return r.data.engine.Exec(ctx, request)
}

// Read leaves the record alone: what ran, ran.
func (r *execResource) Read(context.Context, resource.ReadRequest, *resource.ReadResponse) {}

// Update decides again whether to run: what was not known at plan may have turned out to be what it was. When a run
// fails the old record stays, so that the next plan shows the change again.
func (r *execResource) Update(ctx context.Context, req resource.UpdateRequest, resp *resource.UpdateResponse) {
	if r.data == nil {
		resp.Diagnostics.Append(unconfiguredError("agentkernel_exec"))
		return
	}
	var plan, state execModel
	resp.Diagnostics.Append(req.Plan.Get(ctx, &plan)...)
	resp.Diagnostics.Append(req.State.Get(ctx, &state)...)
	envWO, diags := writeOnlyEnv(ctx, req.Config)
	resp.Diagnostics.Append(diags...)
	who, diags := planPrincipal(ctx, req.Config, r.data.principal, &plan.Principal)
	resp.Diagnostics.Append(diags...)
	if resp.Diagnostics.HasError() {
		return
	}
	ctx, redact := r.data.request(ctx, envWO)
	report := reporter{diags: &resp.Diagnostics, schema: req.Plan.Schema, fallback: plan.place(), redact: redact}
	if must, _ := plan.runsAgain(&state); must {
		res, err := r.run(ctx, &plan, who, envWO, report)
		report.error(ctx, err, sandboxcore.CodeUnknownOutcome)
		if resp.Diagnostics.HasError() {
			return
		}
		plan.results(res)
	} else {
		plan.keepResults(&state)
	}
	plan.EnvWO = types.MapNull(types.StringType)
	resp.Diagnostics.Append(resp.State.Set(ctx, &plan)...)
}

// Delete runs the clean-up, if there is one.
func (r *execResource) Delete(ctx context.Context, req resource.DeleteRequest, resp *resource.DeleteResponse) {
	if r.data == nil {
		resp.Diagnostics.Append(unconfiguredError("agentkernel_exec"))
		return
	}
	var state execModel
	resp.Diagnostics.Append(req.State.Get(ctx, &state)...)
	what := state.destroyArgument()
	if resp.Diagnostics.HasError() || what == "" {
		return
	}
	who, diags := resolvePrincipal(ctx, state.Principal, r.data.principal)
	resp.Diagnostics.Append(diags...)
	if resp.Diagnostics.HasError() {
		return
	}
	ctx, redact := r.data.request(ctx, nil)
	report := reporter{diags: &resp.Diagnostics, schema: req.State.Schema, fallback: state.place(), redact: redact}
	request, _ := state.destroyRequest(who)
	_, err := r.data.engine.Exec(ctx, request)
	if sandboxcore.IsCode(err, sandboxcore.CodeGone) {
		resp.Diagnostics.Append(cleanupSkippedWarning(what, err))
		return
	}
	report.error(ctx, renamed(err, what), sandboxcore.CodeUnknownOutcome)
}
