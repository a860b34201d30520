package provider

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/terraform-plugin-framework-timeouts/action/timeouts"
	"github.com/hashicorp/terraform-plugin-framework-validators/actionvalidator"
	"github.com/hashicorp/terraform-plugin-framework/action"
	"github.com/hashicorp/terraform-plugin-framework/action/schema"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/provider"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

var (
	_ provider.ProviderWithActions      = (*agentKernelProvider)(nil)
	_ action.Action                     = (*execAction)(nil)
	_ action.ActionWithConfigure        = (*execAction)(nil)
	_ action.ActionWithConfigValidators = (*execAction)(nil)
	_ action.ActionWithModifyPlan       = (*execAction)(nil)
)

// invokeMargin is what an action may take beyond its run, unless timeouts says otherwise: a sandbox to be made, with its
// image, and to be removed.
const invokeMargin = 20 * time.Minute

// Actions are what a configuration can have done at a certain moment.
func (p *agentKernelProvider) Actions(context.Context) []func() action.Action {
	return []func() action.Action{
		func() action.Action { return newExecAction(p.registry) },
	}
}

func newExecAction(reg *sandboxcore.Registry) *execAction {
	return &execAction{registry: reg}
}

// execAction runs code for its effects. It keeps no result.
type execAction struct {
	registry *sandboxcore.Registry
	data     *providerData
}

func (a *execAction) Metadata(_ context.Context, req action.MetadataRequest, resp *action.MetadataResponse) {
	resp.TypeName = req.ProviderTypeName + "_exec"
}

func (a *execAction) Schema(ctx context.Context, _ action.SchemaRequest, resp *action.SchemaResponse) {
	attributes := actionAttributes(runAttributes(ctx, a.registry, runArguments))
	attributes["timeouts"] = invokeTimeouts(ctx)
	resp.Schema = schema.Schema{
		MarkdownDescription: "Runs code, shell text or a command for its effects, when a resource is created or changed or with `terraform apply -invoke`, and shows its output while it runs. " +
			"**An action that is interrupted cannot report how it ended: Terraform prints that the apply is complete and exits with 0. The run is killed before Terraform is answered, but where the outcome matters use the resource `agentkernel_exec`.** " +
			"Output is shown in batches, without control characters, with known secrets as `***`, and what is too much is counted and left out. " +
			"An action cannot take ephemeral values, so secrets come from the provider's `secrets` through `secret_env`; a name whose value is null there is refused, at plan when that is known. " +
			"Needs Terraform 1.14; OpenTofu has no actions.",
		Attributes: attributes,
	}
}

// invokeTimeouts is the usual attribute, with descriptions where documentation looks for them.
func invokeTimeouts(ctx context.Context) schema.Attribute {
	a := timeouts.Attributes(ctx)
	object, ok := a.(schema.SingleNestedAttribute)
	if !ok {
		return a
	}
	object.MarkdownDescription = "How long the action may take, as a duration such as `\"30m\"`. Zero is the default."
	if text, ok := object.Attributes["invoke"].(schema.StringAttribute); ok {
		text.Description, text.MarkdownDescription = "", "The whole action, a sandbox made for it included. Defaults to the longest time of the run and 20 minutes."
		text.Validators = append(text.Validators, notNegative)
		object.Attributes["invoke"] = text
	}
	return object
}

func (a *execAction) Configure(_ context.Context, req action.ConfigureRequest, resp *action.ConfigureResponse) {
	a.data = configured("agentkernel_exec", req.ProviderData, &resp.Diagnostics)
}

func (a *execAction) ConfigValidators(context.Context) []action.ConfigValidator {
	at := path.MatchRoot
	return []action.ConfigValidator{
		actionvalidator.ExactlyOneOf(at("binding"), at("profile")),
		actionvalidator.ExactlyOneOf(at("code"), at("script"), at("command")),
	}
}

// ModifyPlan checks the run as far as it is known.
func (a *execAction) ModifyPlan(ctx context.Context, req action.ModifyPlanRequest, resp *action.ModifyPlanResponse) {
	if a.data == nil {
		return
	}
	m, diags := readRun(ctx, req.Config, runArguments)
	resp.Diagnostics.Append(diags...)
	who, diags := resolvePrincipal(ctx, m.Principal, a.data.principal)
	resp.Diagnostics.Append(diags...)
	if resp.Diagnostics.HasError() {
		return
	}
	ctx, redact := a.data.request(ctx, nil)
	a.data.checkRun(ctx, m, who, nil, reporter{diags: &resp.Diagnostics, schema: req.Config.Schema, fallback: m.place(), redact: redact})
}

// Invoke runs the code. When it is cancelled it returns once the run is known to be dead, and says nothing meanwhile.
func (a *execAction) Invoke(ctx context.Context, req action.InvokeRequest, resp *action.InvokeResponse) {
	if a.data == nil {
		resp.Diagnostics.Append(unconfiguredError("agentkernel_exec"))
		return
	}
	m, diags := readRun(ctx, req.Config, runArguments)
	resp.Diagnostics.Append(diags...)
	var limits timeouts.Value
	resp.Diagnostics.Append(req.Config.GetAttribute(ctx, path.Root("timeouts"), &limits)...)
	who, diags := resolvePrincipal(ctx, m.Principal, a.data.principal)
	resp.Diagnostics.Append(diags...)
	request, _, diags := m.request(ctx, who, nil)
	resp.Diagnostics.Append(diags...)
	if resp.Diagnostics.HasError() {
		return
	}
	ctx, redact := a.data.request(ctx, nil)
	report := reporter{diags: &resp.Diagnostics, schema: req.Config.Schema, fallback: m.place(), redact: redact}
	p, _, err := a.data.engine.CheckExec(request)
	longest := invokeMargin + request.Timeout
	if err == nil && request.Timeout == 0 {
		longest += time.Duration(p.Policy.Timeout * float64(time.Second))
	}
	limit, diags := timeLimit(ctx, limits.Invoke, longest)
	resp.Diagnostics.Append(diags...)
	if resp.Diagnostics.HasError() {
		return
	}
	// Also when the check has failed: what is refused is recorded where every run is.
	work, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	shown := startProgress(ctx, func(message string) { resp.SendProgress(action.InvokeProgressEvent{Message: message}) })
	request.Output = shown.write
	result, err := a.data.engine.Exec(work, request)
	note := ""
	if err == nil {
		note = fmt.Sprintf("Run %s ended with exit status %d after %s.", result.RunID, result.ExitCode, result.Duration.Round(time.Millisecond))
		if result.Notice != "" {
			note += " " + sandboxcore.Clean(result.Notice)
		}
	}
	shown.finish(ctx, note)
	if err != nil && ctx.Err() == nil && errors.Is(work.Err(), context.DeadlineExceeded) {
		err = invokeTimeoutError(limit, err)
	}
	report.error(ctx, err, sandboxcore.CodeUnknownOutcome)
}

// invokeTimeoutError says whose limit ended the run.
func invokeTimeoutError(limit time.Duration, err error) error {
	late := &sandboxcore.Error{
		Code: sandboxcore.CodeTimeout, Attempted: "the action was ended", Object: "timeouts.invoke", Attribute: []string{"timeouts", "invoke"},
		Said: fmt.Sprintf("it took longer than %s.", limit), Next: "Raise timeouts.invoke, or have the run do less.",
	}
	if run, ok := errors.AsType[*sandboxcore.RunError](err); ok {
		out := *run
		out.More = append([]*sandboxcore.Error{run.Err}, run.More...)
		out.Err = late
		return &out
	}
	return append(sandboxcore.Violations{late}, sandboxcore.AllErrors(err, sandboxcore.CodeUnknownOutcome)...)
}
