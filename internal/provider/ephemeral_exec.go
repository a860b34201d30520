package provider

import (
	"context"
	"maps"
	"slices"

	"github.com/hashicorp/terraform-plugin-framework-validators/ephemeralvalidator"
	"github.com/hashicorp/terraform-plugin-framework/attr"
	"github.com/hashicorp/terraform-plugin-framework/ephemeral"
	"github.com/hashicorp/terraform-plugin-framework/ephemeral/schema"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/provider"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

var (
	_ provider.ProviderWithEphemeralResources         = (*agentKernelProvider)(nil)
	_ ephemeral.EphemeralResource                     = (*execEphemeral)(nil)
	_ ephemeral.EphemeralResourceWithConfigure        = (*execEphemeral)(nil)
	_ ephemeral.EphemeralResourceWithConfigValidators = (*execEphemeral)(nil)
)

// EphemeralResources are what exists during one plan or apply only.
func (p *agentKernelProvider) EphemeralResources(context.Context) []func() ephemeral.EphemeralResource {
	return []func() ephemeral.EphemeralResource{
		func() ephemeral.EphemeralResource { return newExecEphemeral(p.registry) },
	}
}

func newExecEphemeral(reg *sandboxcore.Registry) *execEphemeral {
	return &execEphemeral{registry: reg}
}

// execEphemeral is a run whose result stands neither in a plan nor in a state. There is nothing to close: what the run left
// in the background has died with it, and a sandbox that was made for it is gone before its result is given.
type execEphemeral struct {
	registry *sandboxcore.Registry
	data     *providerData
}

// ephemeralArguments are those of every run, but for what would outlive it, and what says which results to bring back.
var ephemeralArguments = append(slices.DeleteFunc(slices.Clone(runArguments), func(name string) bool { return name == "background" }),
	"output_files", "max_output_bytes", "base64_output")

var ephemeralResults = []string{
	"exit_code", "stdout", "stderr", "stdout_bytes", "stderr_bytes", "stdout_sha256", "stderr_sha256", "stdout_truncated", "stderr_truncated",
	"stdout_base64", "stderr_base64", "duration_ms", "notice", "files", "run_id",
}

func (e *execEphemeral) Metadata(_ context.Context, req ephemeral.MetadataRequest, resp *ephemeral.MetadataResponse) {
	resp.TypeName = req.ProviderTypeName + "_exec"
}

func (e *execEphemeral) Schema(ctx context.Context, _ ephemeral.SchemaRequest, resp *ephemeral.SchemaResponse) {
	attributes := runAttributes(ctx, e.registry, slices.Concat(ephemeralArguments, ephemeralResults))
	attributes["base64_output"] = withDescription(attributes["base64_output"], "Whether the streams are also given byte for byte, in `stdout_base64` and `stderr_base64`.")
	resp.Schema = schema.Schema{
		MarkdownDescription: "**Terraform opens an ephemeral resource at plan and again at apply, so this code runs in both: use it for what may run any number of times, such as making a short-lived token.** " +
			"A run of code, shell text or a command whose result stands neither in a plan nor in a state; it can be used wherever Terraform takes ephemeral values, such as in write-only arguments. " +
			"When something of its arguments is not known at plan, it runs at apply only. What the run leaves in the background is killed with it. " +
			"Needs Terraform 1.10 or OpenTofu 1.11.",
		Attributes: ephemeralAttributes(attributes),
	}
}

func (e *execEphemeral) Configure(_ context.Context, req ephemeral.ConfigureRequest, resp *ephemeral.ConfigureResponse) {
	e.data = configured("agentkernel_exec", req.ProviderData, &resp.Diagnostics)
}

func (e *execEphemeral) ConfigValidators(context.Context) []ephemeral.ConfigValidator {
	at := path.MatchRoot
	return []ephemeral.ConfigValidator{
		ephemeralvalidator.ExactlyOneOf(at("binding"), at("profile")),
		ephemeralvalidator.ExactlyOneOf(at("code"), at("script"), at("command")),
	}
}

// Open runs the code.
func (e *execEphemeral) Open(ctx context.Context, req ephemeral.OpenRequest, resp *ephemeral.OpenResponse) {
	if e.data == nil {
		resp.Diagnostics.Append(unconfiguredError("agentkernel_exec"))
		return
	}
	m, diags := readRun(ctx, req.Config, ephemeralArguments)
	resp.Diagnostics.Append(diags...)
	who, diags := resolvePrincipal(ctx, m.Principal, e.data.principal)
	resp.Diagnostics.Append(diags...)
	request, _, diags := m.request(ctx, who, nil)
	resp.Diagnostics.Append(diags...)
	if resp.Diagnostics.HasError() {
		return
	}
	ctx, redact := e.data.request(ctx, ephemeralValues(request))
	report := reporter{diags: &resp.Diagnostics, schema: req.Config.Schema, fallback: m.place(), redact: redact}
	if !who.known || !e.data.secretsKnown(request.SecretEnv) {
		report.error(ctx, &sandboxcore.Error{
			Code: sandboxcore.CodeIdentity, Attempted: "the run was refused", Object: "provider agentkernel",
			Said: "its principal, or a secret that the run is given, is not known yet.", Next: "Apply what they depend on first.",
		}, sandboxcore.CodeIdentity)
		return
	}
	p, verdict, err := e.data.engine.CheckExec(request)
	if err == nil {
		resp.Diagnostics.Append(unenforcedWarnings(path.Root(m.place()), p, verdict)...)
	}
	result, err := e.data.engine.Exec(ctx, request)
	if err != nil {
		report.error(ctx, err, sandboxcore.CodeUnknownOutcome)
		return
	}
	m.results(result)
	resp.Result.Raw = req.Config.Raw
	values := m.resultValues()
	for _, name := range slices.Sorted(maps.Keys(values)) {
		resp.Diagnostics.Append(resp.Result.SetAttribute(ctx, path.Root(name), values[name])...)
	}
}

// maxEphemeralInput bounds the standard input that is looked for in errors: to search for one takes several times its size.
const maxEphemeralInput = 64 << 10

// ephemeralValues are the values of arguments that may be ephemeral themselves, and that a program may print. They are in the
// result, which is kept nowhere, and in no diagnostic.
func ephemeralValues(req sandboxcore.ExecRequest) map[string]string {
	out := maps.Clone(req.Env)
	if out == nil {
		out = map[string]string{}
	}
	if len(req.Stdin) <= maxEphemeralInput {
		out["="] = string(req.Stdin) // no variable has this name
	}
	return out
}

// resultValues are the results of a run by the names of their attributes.
func (m *execModel) resultValues() map[string]attr.Value {
	return map[string]attr.Value{
		"exit_code": m.ExitCode, "stdout": m.Stdout, "stderr": m.Stderr, "stdout_bytes": m.StdoutBytes, "stderr_bytes": m.StderrBytes,
		"stdout_sha256": m.StdoutSHA256, "stderr_sha256": m.StderrSHA256, "stdout_truncated": m.StdoutTruncated, "stderr_truncated": m.StderrTruncated,
		"stdout_base64": m.StdoutBase64, "stderr_base64": m.StderrBase64, "duration_ms": m.DurationMS, "notice": m.Notice, "files": m.Files, "run_id": m.RunID,
	}
}
