package provider

import (
	"context"
	"encoding/base64"
	"time"

	"github.com/hashicorp/terraform-plugin-framework-timetypes/timetypes"
	"github.com/hashicorp/terraform-plugin-framework/attr"
	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// Defaults and values of an exec's arguments.
const (
	defaultLanguage = "python"
	backgroundKill  = "kill"
	backgroundKeep  = "keep"
)

// execModel is plan and state of an exec. EnvWO is always null in it, as in sandboxModel.
type execModel struct {
	Binding          types.Object         `tfsdk:"binding"`
	Profile          types.String         `tfsdk:"profile"`
	Code             types.String         `tfsdk:"code"`
	Script           types.String         `tfsdk:"script"`
	Command          types.List           `tfsdk:"command"`
	Language         types.String         `tfsdk:"language"`
	Stdin            types.String         `tfsdk:"stdin"`
	Env              types.Map            `tfsdk:"env"`
	SecretEnv        types.Map            `tfsdk:"secret_env"`
	EnvWO            types.Map            `tfsdk:"env_wo"`
	EnvWOVersion     types.Int64          `tfsdk:"env_wo_version"`
	WorkingDirectory types.String         `tfsdk:"working_directory"`
	OutputFiles      types.List           `tfsdk:"output_files"`
	Principal        types.Object         `tfsdk:"principal"`
	Triggers         types.Map            `tfsdk:"triggers"`
	Timeout          timetypes.GoDuration `tfsdk:"timeout"`
	SuccessExitCodes types.List           `tfsdk:"success_exit_codes"`
	MaxOutputBytes   types.Int64          `tfsdk:"max_output_bytes"`
	Base64Output     types.Bool           `tfsdk:"base64_output"`
	Background       types.String         `tfsdk:"background"`
	DestroyScript    types.String         `tfsdk:"destroy_script"`
	DestroyCode      types.String         `tfsdk:"destroy_code"`
	ExitCode         types.Int64          `tfsdk:"exit_code"`
	Stdout           types.String         `tfsdk:"stdout"`
	Stderr           types.String         `tfsdk:"stderr"`
	StdoutBytes      types.Int64          `tfsdk:"stdout_bytes"`
	StderrBytes      types.Int64          `tfsdk:"stderr_bytes"`
	StdoutSHA256     types.String         `tfsdk:"stdout_sha256"`
	StderrSHA256     types.String         `tfsdk:"stderr_sha256"`
	StdoutTruncated  types.Bool           `tfsdk:"stdout_truncated"`
	StderrTruncated  types.Bool           `tfsdk:"stderr_truncated"`
	StdoutBase64     types.String         `tfsdk:"stdout_base64"`
	StderrBase64     types.String         `tfsdk:"stderr_base64"`
	DurationMS       types.Int64          `tfsdk:"duration_ms"`
	Notice           types.String         `tfsdk:"notice"`
	Files            types.Map            `tfsdk:"files"`
	RunID            types.String         `tfsdk:"run_id"`
}

var fileTypes = map[string]attr.Type{"content_base64": types.StringType, "sha256": types.StringType, "size": types.Int64Type}

// unknownResults says that the code will run.
func (m *execModel) unknownResults() {
	m.ExitCode, m.DurationMS = types.Int64Unknown(), types.Int64Unknown()
	m.Stdout, m.Stderr = types.StringUnknown(), types.StringUnknown()
	m.StdoutBytes, m.StderrBytes = types.Int64Unknown(), types.Int64Unknown()
	m.StdoutSHA256, m.StderrSHA256 = types.StringUnknown(), types.StringUnknown()
	m.StdoutTruncated, m.StderrTruncated = types.BoolUnknown(), types.BoolUnknown()
	m.StdoutBase64, m.StderrBase64 = types.StringNull(), types.StringNull()
	if m.Base64Output.IsUnknown() || m.Base64Output.ValueBool() {
		m.StdoutBase64, m.StderrBase64 = types.StringUnknown(), types.StringUnknown()
	}
	m.Notice, m.RunID = types.StringUnknown(), types.StringUnknown()
	m.Files = types.MapUnknown(types.ObjectType{AttrTypes: fileTypes})
}

// perhapsKept unsays what unknownResults knows of the results: when the code turns out not to run, they are the old ones.
func (m *execModel) perhapsKept(from *execModel) {
	if !from.StdoutBase64.IsNull() {
		m.StdoutBase64, m.StderrBase64 = types.StringUnknown(), types.StringUnknown()
	}
}

// noResults is the record of a run that failed before there was anything to keep.
func (m *execModel) noResults(runID string) {
	m.ExitCode, m.DurationMS = types.Int64Null(), types.Int64Null()
	m.Stdout, m.Stderr = types.StringNull(), types.StringNull()
	m.StdoutBytes, m.StderrBytes = types.Int64Null(), types.Int64Null()
	m.StdoutSHA256, m.StderrSHA256 = types.StringNull(), types.StringNull()
	m.StdoutTruncated, m.StderrTruncated = types.BoolNull(), types.BoolNull()
	m.StdoutBase64, m.StderrBase64 = types.StringNull(), types.StringNull()
	m.Notice, m.RunID = types.StringNull(), types.StringValue(runID)
	m.Files = types.MapNull(types.ObjectType{AttrTypes: fileTypes})
}

// keepResults takes over the results of the last run. What base64_output asks for anew comes with the next run.
func (m *execModel) keepResults(from *execModel) {
	m.ExitCode, m.DurationMS = from.ExitCode, from.DurationMS
	m.Stdout, m.Stderr = from.Stdout, from.Stderr
	m.StdoutBytes, m.StderrBytes = from.StdoutBytes, from.StderrBytes
	m.StdoutSHA256, m.StderrSHA256 = from.StdoutSHA256, from.StderrSHA256
	m.StdoutTruncated, m.StderrTruncated = from.StdoutTruncated, from.StderrTruncated
	m.StdoutBase64, m.StderrBase64 = from.StdoutBase64, from.StderrBase64
	m.Notice, m.RunID, m.Files = from.Notice, from.RunID, from.Files
}

// results takes over the results of a run.
func (m *execModel) results(res sandboxcore.ExecResult) {
	m.ExitCode, m.DurationMS = types.Int64Value(int64(res.ExitCode)), types.Int64Value(res.Duration.Milliseconds())
	m.Stdout, m.Stderr = types.StringValue(res.Stdout.Text), types.StringValue(res.Stderr.Text)
	m.StdoutBytes, m.StderrBytes = types.Int64Value(res.Stdout.Bytes), types.Int64Value(res.Stderr.Bytes)
	m.StdoutSHA256, m.StderrSHA256 = types.StringValue(res.Stdout.SHA256), types.StringValue(res.Stderr.SHA256)
	m.StdoutTruncated, m.StderrTruncated = types.BoolValue(res.Stdout.Truncated), types.BoolValue(res.Stderr.Truncated)
	m.StdoutBase64, m.StderrBase64 = types.StringNull(), types.StringNull()
	if m.Base64Output.ValueBool() {
		m.StdoutBase64 = types.StringValue(base64.StdEncoding.EncodeToString(res.Stdout.Raw))
		m.StderrBase64 = types.StringValue(base64.StdEncoding.EncodeToString(res.Stderr.Raw))
	}
	m.Notice, m.RunID = types.StringValue(sandboxcore.Clean(res.Notice)), types.StringValue(res.RunID)
	files := make(map[string]attr.Value, len(res.Files))
	for name, f := range res.Files {
		files[name] = types.ObjectValueMust(fileTypes, map[string]attr.Value{
			"content_base64": types.StringValue(base64.StdEncoding.EncodeToString(f.Content)),
			"sha256":         types.StringValue(f.SHA256), "size": types.Int64Value(f.Size),
		})
	}
	m.Files = types.MapValueMust(types.ObjectType{AttrTypes: fileTypes}, files)
}

// destroyArgument names the clean-up argument that is set, or is empty.
func (m *execModel) destroyArgument() string {
	switch {
	case m.DestroyScript.ValueString() != "":
		return "destroy_script"
	case m.DestroyCode.ValueString() != "":
		return "destroy_code"
	}
	return ""
}

func (m *execModel) language() string {
	if m.Language.IsNull() {
		return defaultLanguage
	}
	return m.Language.ValueString()
}

// bindingOf reads a binding. ok is false when it is null, or when something of it other than endpoint and id is unknown.
func bindingOf(obj types.Object) (b sandboxcore.Binding, ok bool) {
	if obj.IsNull() || obj.IsUnknown() {
		return b, false
	}
	text := map[string]types.String{}
	for name, v := range obj.Attributes() {
		s, isString := v.(types.String)
		if !isString {
			return b, false
		}
		text[name] = s
	}
	if text["backend"].IsUnknown() || text["environment"].IsUnknown() || text["spec"].IsUnknown() {
		return b, false
	}
	b = sandboxcore.Binding{
		Backend:     sandboxcore.BackendType(text["backend"].ValueString()),
		Environment: sandboxcore.EnvironmentMode(text["environment"].ValueString()),
		Spec:        text["spec"].ValueString(),
	}
	if !text["endpoint"].IsUnknown() && !text["id"].IsUnknown() { // half of a place is no place
		b.Endpoint, b.ID = text["endpoint"].ValueString(), text["id"].ValueString()
	}
	return b, true
}

// where says in which environment, or under which profile, the code runs. ok is false when that is not known.
func (m *execModel) where(req *sandboxcore.ExecRequest) (ok bool) {
	if !m.Profile.IsNull() {
		req.Spec = m.Profile.ValueString()
		return !m.Profile.IsUnknown()
	}
	b, ok := bindingOf(m.Binding)
	if ok {
		req.Binding = &b
	}
	return ok
}

// request is what the engine is asked to run. What is not known yet is left out; ok is false when too little is known to
// check anything.
func (m *execModel) request(ctx context.Context, who principal, envWO map[string]string) (req sandboxcore.ExecRequest, ok bool, diags diag.Diagnostics) {
	req = sandboxcore.ExecRequest{EnvWO: envWO, Principal: who.value}
	ok = m.where(&req) && !m.Code.IsUnknown() && !m.Script.IsUnknown() && !m.Command.IsUnknown() && !m.Language.IsUnknown() && who.known
	switch {
	case !m.Code.IsNull():
		req.Kind, req.Language, req.Text = sandboxcore.RunCode, m.language(), []byte(m.Code.ValueString())
	case !m.Script.IsNull():
		req.Kind, req.Text = sandboxcore.RunScript, []byte(m.Script.ValueString())
	default:
		argv, known := stringList(m.Command)
		req.Kind, req.Argv, ok = sandboxcore.RunCommand, argv, ok && known
	}
	if s := m.Stdin.ValueString(); s != "" {
		req.Stdin = []byte(s)
	}
	req.Env, _ = stringMap(m.Env)
	req.SecretEnv, _ = stringMap(m.SecretEnv)
	req.OutputFiles, _ = stringList(m.OutputFiles)
	req.WorkingDirectory = m.WorkingDirectory.ValueString()
	req.Timeout, diags = m.timeout()
	req.MaxOutputBytes = int(m.MaxOutputBytes.ValueInt64())
	req.KeepBackground = m.Background.ValueString() == backgroundKeep
	if !m.SuccessExitCodes.IsNull() && !m.SuccessExitCodes.IsUnknown() {
		var codes []types.Int64
		diags.Append(m.SuccessExitCodes.ElementsAs(ctx, &codes, false)...)
		for _, c := range codes {
			if !c.IsUnknown() && !c.IsNull() {
				req.SuccessExitCodes = append(req.SuccessExitCodes, int(c.ValueInt64()))
			}
		}
	}
	return req, ok, diags
}

func (m *execModel) timeout() (time.Duration, diag.Diagnostics) {
	if m.Timeout.IsNull() || m.Timeout.IsUnknown() {
		return 0, nil
	}
	return m.Timeout.ValueGoDuration()
}

// destroyRequest is the clean-up run: same place, env and secret_env, nothing else of the run.
func (m *execModel) destroyRequest(who principal) (req sandboxcore.ExecRequest, ok bool) {
	req = sandboxcore.ExecRequest{Principal: who.value}
	ok = m.where(&req) && who.known
	if m.destroyArgument() == "destroy_code" {
		req.Kind, req.Language, req.Text = sandboxcore.RunCode, m.language(), []byte(m.DestroyCode.ValueString())
	} else {
		req.Kind, req.Text = sandboxcore.RunScript, []byte(m.DestroyScript.ValueString())
	}
	req.Env, _ = stringMap(m.Env)
	req.SecretEnv, _ = stringMap(m.SecretEnv)
	return req, ok && !m.Language.IsUnknown()
}

// runsAgain compares what a run depends on. must: something known changed; may: something is not known yet.
func (m *execModel) runsAgain(state *execModel) (must, may bool) {
	for _, pair := range [][2]attr.Value{
		{state.Profile, m.Profile},
		{state.Code, m.Code},
		{state.Script, m.Script},
		{state.Command, m.Command},
		{types.StringValue(state.language()), m.languageValue()},
		{state.Stdin, m.Stdin},
		{state.Env, m.Env},
		{state.SecretEnv, m.SecretEnv},
		{state.EnvWOVersion, m.EnvWOVersion},
		{state.WorkingDirectory, m.WorkingDirectory},
		{state.OutputFiles, m.OutputFiles},
		{state.Principal, m.Principal},
		{state.Triggers, m.Triggers},
	} {
		differs, unknown := compare(pair[0], pair[1])
		must, may = must || differs, may || unknown
	}
	switch {
	case m.Binding.IsUnknown():
		may = true
	case m.Binding.IsNull() != state.Binding.IsNull():
		must = true
	case !m.Binding.IsNull():
		before, after := state.Binding.Attributes(), m.Binding.Attributes()
		for _, name := range []string{"endpoint", "id"} {
			differs, unknown := compare(before[name], after[name])
			must, may = must || differs, may || unknown
		}
	}
	return must, may
}

func (m *execModel) languageValue() types.String {
	if m.Language.IsUnknown() {
		return m.Language
	}
	return types.StringValue(m.language())
}

// compare tells whether a planned value is another one for certain, or not known (in part).
func compare(before, after attr.Value) (differs, unknown bool) {
	if after.IsUnknown() {
		return false, true
	}
	switch v := after.(type) {
	case types.Map:
		if _, known := stringMap(v); !known {
			return false, true
		}
	case types.List:
		if hasUnknown(v) {
			return false, true
		}
	case types.Object:
		for _, e := range v.Attributes() {
			if e.IsUnknown() {
				return false, true
			}
		}
	}
	return !before.Equal(after), false
}
