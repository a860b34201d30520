package provider

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"strconv"

	"github.com/hashicorp/terraform-plugin-framework-validators/resourcevalidator"
	"github.com/hashicorp/terraform-plugin-framework-validators/stringvalidator"
	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/planmodifier"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/stringplanmodifier"
	"github.com/hashicorp/terraform-plugin-framework/schema/validator"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

var (
	_ resource.Resource                     = (*fileResource)(nil)
	_ resource.ResourceWithConfigure        = (*fileResource)(nil)
	_ resource.ResourceWithConfigValidators = (*fileResource)(nil)
	_ resource.ResourceWithModifyPlan       = (*fileResource)(nil)
)

// writtenKey is where the private state keeps the digest of what was written, to tell drift from a new value when the
// content itself is not kept.
const writtenKey = "written"

var octalMode = regexp.MustCompile(`^0?[0-7]{3}$`)

func newFileResource() *fileResource { return &fileResource{} }

// fileResource is a file in a sandbox, or in an environment of somebody else.
type fileResource struct {
	data *providerData
}

// fileModel is plan and state of a file. ContentWO is always null in it, as EnvWO is in sandboxModel.
type fileModel struct {
	Binding          types.Object `tfsdk:"binding"`
	Path             types.String `tfsdk:"path"`
	Content          types.String `tfsdk:"content"`
	ContentBase64    types.String `tfsdk:"content_base64"`
	Source           types.String `tfsdk:"source"`
	ContentWO        types.String `tfsdk:"content_wo"`
	ContentWOVersion types.Int64  `tfsdk:"content_wo_version"`
	Mode             types.String `tfsdk:"mode"`
	Principal        types.Object `tfsdk:"principal"`
	SHA256           types.String `tfsdk:"sha256"`
	Size             types.Int64  `tfsdk:"size"`
}

func (r *fileResource) Metadata(_ context.Context, req resource.MetadataRequest, resp *resource.MetadataResponse) {
	resp.TypeName = req.ProviderTypeName + "_file"
}

func (r *fileResource) Schema(_ context.Context, _ resource.SchemaRequest, resp *resource.SchemaResponse) {
	text := func(d string) schema.StringAttribute {
		return schema.StringAttribute{MarkdownDescription: d, Optional: true}
	}
	bound := bindingAttribute(false)
	bound.Optional, bound.Required = false, true
	resp.Schema = schema.Schema{
		MarkdownDescription: "A file in a sandbox or in an attached environment, of at most 4 MiB. Every refresh hashes it: one that was changed is written again, one that is missing is made anew. " +
			"A stopped or paused sandbox is not woken for that; until it runs again the last look stands. There is no import.",
		Attributes: map[string]schema.Attribute{
			"binding": withDescription(bound, "Where the file is: the `binding` of an `agentkernel_sandbox` or `agentkernel_attached_environment`, as a whole. In another environment the file is written anew, and the old one is removed if its environment is still there."),
			"path": schema.StringAttribute{
				MarkdownDescription: "Path of the file; a relative one is below the environment's default directory (`/workspace`). On `bubblewrap` and `local_subprocess` it has to be in the workspace. Missing directories are made. A change replaces the file.",
				Required:            true,
				Validators:          []validator.String{stringvalidator.LengthAtLeast(1)},
				PlanModifiers:       []planmodifier.String{stringplanmodifier.RequiresReplace()},
			},
			"content":        text("Content as text. Exactly one of `content`, `content_base64`, `source` and `content_wo`."),
			"content_base64": text("Content as base64."),
			"source":         text("Path of a file on the machine that runs Terraform. It is read at plan and again at apply, and has to be the same."),
			"content_wo": schema.StringAttribute{
				MarkdownDescription: "Content that is not kept in plan or state; its `sha256` and `size` are. Change `content_wo_version` to have new content written.",
				Optional:            true, WriteOnly: true,
			},
			"content_wo_version": schema.Int64Attribute{
				MarkdownDescription: "Number of the content in `content_wo`; a change writes it.",
				Optional:            true,
			},
			"mode": schema.StringAttribute{
				MarkdownDescription: "Permissions in octal, such as `\"0755\"`. Defaults to `0644`, and is only compared with the file when it is given.",
				Optional:            true,
				Validators:          []validator.String{stringvalidator.RegexMatches(octalMode, "must be three or four octal digits, of which the first of four is 0")},
			},
			"principal": principalAttribute(true),
			"sha256":    schema.StringAttribute{MarkdownDescription: "SHA-256 of the content, in hexadecimal.", Computed: true},
			"size":      schema.Int64Attribute{MarkdownDescription: "Size in bytes.", Computed: true},
		},
	}
}

func (r *fileResource) Configure(_ context.Context, req resource.ConfigureRequest, resp *resource.ConfigureResponse) {
	r.data = configured("agentkernel_file", req.ProviderData, &resp.Diagnostics)
}

func (r *fileResource) ConfigValidators(context.Context) []resource.ConfigValidator {
	at := path.MatchRoot
	return []resource.ConfigValidator{resourcevalidator.ExactlyOneOf(at("content"), at("content_base64"), at("source"), at("content_wo"))}
}

// content gives what the file is to hold. known is false when that is not known yet. writeOnly says that it must not be
// kept.
func (m *fileModel) content(ctx context.Context, config attributeReader) (content []byte, known, writeOnly bool, err error) {
	bad := func(attribute, said, next string, cause error) error {
		return &sandboxcore.Error{
			Code: sandboxcore.CodeValue, Attempted: "the content could not be read", Object: attribute, Said: said, Next: next, Attribute: []string{attribute}, Err: cause,
		}
	}
	switch {
	case !m.Content.IsNull():
		return []byte(m.Content.ValueString()), !m.Content.IsUnknown(), false, nil
	case !m.ContentBase64.IsNull():
		content, err = base64.StdEncoding.DecodeString(m.ContentBase64.ValueString())
		if err != nil {
			err = bad("content_base64", "it is not base64.", "Use base64encode() or filebase64().", err)
		}
		return content, !m.ContentBase64.IsUnknown(), false, err
	case !m.Source.IsNull():
		if m.Source.IsUnknown() {
			return nil, false, false, nil
		}
		info, err := os.Stat(m.Source.ValueString())
		switch {
		case err != nil:
		case !info.Mode().IsRegular():
			return nil, true, false, bad("source", "it is not a regular file.", "Name a regular file.", nil)
		case info.Size() > sandboxcore.MaxFileBytes:
			return nil, true, false, bad("source", fmt.Sprintf("it has %d bytes, more than %d.", info.Size(), sandboxcore.MaxFileBytes), "Have a run fetch data of that size.", nil)
		default:
			content, err = os.ReadFile(m.Source.ValueString()) // #nosec G304 -- the configuration names the file
		}
		if err != nil {
			err = bad("source", "it could not be read.", "Name a file of the machine that runs Terraform.", err)
		}
		return content, true, false, err
	}
	var secret types.String
	if diags := config.GetAttribute(ctx, path.Root("content_wo"), &secret); diags.HasError() {
		return nil, false, true, bad("content_wo", "it could not be read.", "Give a text.", nil)
	}
	return []byte(secret.ValueString()), !secret.IsUnknown(), true, nil
}

// request names the file to the engine. ok is false when too little of it is known to check anything.
func (m *fileModel) request(who principal) (req sandboxcore.FileRequest, ok bool) {
	b, ok := bindingOf(m.Binding)
	req = sandboxcore.FileRequest{Binding: b, Path: m.Path.ValueString(), Principal: who.value}
	if mode, err := strconv.ParseUint(m.Mode.ValueString(), 8, 32); err == nil {
		req.Mode = fs.FileMode(mode)
	}
	return req, ok && !m.Path.IsUnknown() && who.known
}

// ModifyPlan says what the file is going to be, and checks it.
func (r *fileResource) ModifyPlan(ctx context.Context, req resource.ModifyPlanRequest, resp *resource.ModifyPlanResponse) {
	if req.Plan.Raw.IsNull() || r.data == nil {
		return
	}
	var plan fileModel
	resp.Diagnostics.Append(req.Plan.Get(ctx, &plan)...)
	who, diags := planPrincipal(ctx, req.Config, r.data.principal, &plan.Principal)
	resp.Diagnostics.Append(diags...)
	if resp.Diagnostics.HasError() {
		return
	}
	report := reporter{diags: &resp.Diagnostics, schema: req.Plan.Schema, fallback: "binding"}
	content, known, writeOnly, err := plan.content(ctx, req.Config)
	if err != nil {
		report.error(ctx, err, sandboxcore.CodeValue)
		return
	}
	plan.SHA256, plan.Size = types.StringUnknown(), types.Int64Unknown()
	if known && !writeOnly {
		plan.SHA256, plan.Size = types.StringValue(sandboxcore.FileDigest(content)), types.Int64Value(int64(len(content)))
	}
	if writeOnly && !req.State.Raw.IsNull() {
		var state fileModel
		resp.Diagnostics.Append(req.State.Get(ctx, &state)...)
		written, diags := req.Private.GetKey(ctx, writtenKey)
		resp.Diagnostics.Append(diags...)
		if keeps(&state, &plan) && string(written) == strconv.Quote(state.SHA256.ValueString()) {
			plan.SHA256, plan.Size = state.SHA256, state.Size
		}
	}
	resp.Diagnostics.Append(resp.Plan.Set(ctx, &plan)...)
	if request, ok := plan.request(who); ok {
		request.Content, request.Secret = content, writeOnly
		p, verdict, err := r.data.engine.CheckFile(request)
		if err == nil {
			err = r.data.engine.Admit(ctx, p, sandboxcore.Operation{Name: sandboxcore.OpFile, Files: true}, true)
		}
		report.error(ctx, err, sandboxcore.CodeUnreachable)
		if err == nil {
			resp.Diagnostics.Append(unenforcedWarnings(path.Root("binding"), p, verdict)...)
		}
	}
}

// keeps reports whether a write-only content is not to be written again.
func keeps(state, plan *fileModel) bool {
	before, after := state.Binding.Attributes(), plan.Binding.Attributes()
	for _, name := range []string{"endpoint", "id"} {
		if after[name] == nil || !after[name].Equal(before[name]) {
			return false
		}
	}
	return state.Path.Equal(plan.Path) && state.ContentWOVersion.Equal(plan.ContentWOVersion) && state.Mode.Equal(plan.Mode) &&
		state.Content.IsNull() && state.ContentBase64.IsNull() && state.Source.IsNull()
}

func (r *fileResource) Create(ctx context.Context, req resource.CreateRequest, resp *resource.CreateResponse) {
	if r.data == nil {
		resp.Diagnostics.Append(unconfiguredError("agentkernel_file"))
		return
	}
	var plan fileModel
	resp.Diagnostics.Append(req.Plan.Get(ctx, &plan)...)
	if resp.Diagnostics.HasError() {
		return
	}
	if digest, ok := r.write(ctx, &plan, req.Config, reporter{diags: &resp.Diagnostics, schema: req.Plan.Schema, fallback: "binding"}); ok {
		resp.Diagnostics.Append(resp.Private.SetKey(ctx, writtenKey, digest)...)
		resp.Diagnostics.Append(resp.State.Set(ctx, &plan)...)
	}
}

// write writes the file of plan and fills in what became of it.
func (r *fileResource) write(ctx context.Context, plan *fileModel, config attributeReader, report reporter) (digest []byte, ok bool) {
	who, diags := planPrincipal(ctx, config, r.data.principal, &plan.Principal)
	report.diags.Append(diags...)
	content, _, writeOnly, err := plan.content(ctx, config)
	if err != nil || report.diags.HasError() {
		report.error(ctx, err, sandboxcore.CodeValue)
		return nil, false
	}
	sum := sandboxcore.FileDigest(content)
	if !plan.SHA256.IsUnknown() && plan.SHA256.ValueString() != sum && !writeOnly {
		report.error(ctx, &sandboxcore.Error{
			Code: sandboxcore.CodeValue, Attempted: "the file was not written", Object: plan.Path.ValueString(), Said: "its source has changed since the plan.",
			Next: "Plan again.", Attribute: []string{"source"},
		}, sandboxcore.CodeValue)
		return nil, false
	}
	request, _ := plan.request(who)
	request.Content, request.Secret = content, writeOnly
	var secret map[string]string
	if writeOnly {
		secret = map[string]string{"content_wo": string(content)}
	}
	ctx, report.redact = r.data.request(ctx, secret)
	if err := r.data.engine.WriteFile(ctx, request); err != nil {
		report.error(ctx, err, sandboxcore.CodeUnreachable)
		return nil, false
	}
	plan.ContentWO = types.StringNull()
	plan.SHA256, plan.Size = types.StringValue(sum), types.Int64Value(int64(len(content)))
	return []byte(strconv.Quote(sum)), true
}

// Read hashes the file. What cannot be looked at now, because its sandbox sleeps, is as it was.
func (r *fileResource) Read(ctx context.Context, req resource.ReadRequest, resp *resource.ReadResponse) {
	if r.data == nil {
		resp.Diagnostics.Append(unconfiguredError("agentkernel_file"))
		return
	}
	var state fileModel
	resp.Diagnostics.Append(req.State.Get(ctx, &state)...)
	who, diags := resolvePrincipal(ctx, state.Principal, r.data.principal)
	resp.Diagnostics.Append(diags...)
	if resp.Diagnostics.HasError() {
		return
	}
	ctx, redact := r.data.request(ctx, nil)
	request, _ := state.request(who)
	info, err := r.data.engine.StatFile(ctx, request)
	switch {
	case errors.Is(err, fs.ErrNotExist), sandboxcore.IsCode(err, sandboxcore.CodeGone):
		resp.State.RemoveResource(ctx)
		return
	case sandboxcore.IsCode(err, sandboxcore.CodeStopped):
		return
	case err != nil && ctx.Err() == nil && sandboxcore.IsOfTheFile(err):
		// The code in the sandbox can put anything there, and must not keep Terraform from planning.
		resp.Diagnostics.Append(otherThanFileWarning(request.Path, "the next apply tries to write the file anew", err))
		state.SHA256, state.Size = types.StringNull(), types.Int64Null()
		resp.Diagnostics.Append(resp.State.Set(ctx, &state)...)
		return
	case err != nil:
		reporter{diags: &resp.Diagnostics, schema: req.State.Schema, fallback: "binding", redact: redact}.error(ctx, err, sandboxcore.CodeUnreachable)
		return
	}
	state.SHA256, state.Size = types.StringValue(info.SHA256), types.Int64Value(info.Size)
	if request.Mode != 0 && info.Mode != 0 && info.Mode != request.Mode {
		state.Mode = types.StringValue(fmt.Sprintf("%04o", info.Mode))
	}
	resp.Diagnostics.Append(resp.State.Set(ctx, &state)...)
}

// isKept reports whether a write-only content was planned to stay as it is. Its value may be another one all the same: an
// ephemeral value is in each run of Terraform.
func (m *fileModel) isKept(state *fileModel) bool {
	return m.Content.IsNull() && m.ContentBase64.IsNull() && m.Source.IsNull() && m.SHA256.Equal(state.SHA256)
}

// Update writes the file again, and removes the one in the environment that it was in before.
func (r *fileResource) Update(ctx context.Context, req resource.UpdateRequest, resp *resource.UpdateResponse) {
	if r.data == nil {
		resp.Diagnostics.Append(unconfiguredError("agentkernel_file"))
		return
	}
	var plan, state fileModel
	resp.Diagnostics.Append(req.Plan.Get(ctx, &plan)...)
	resp.Diagnostics.Append(req.State.Get(ctx, &state)...)
	if resp.Diagnostics.HasError() {
		return
	}
	if plan.isKept(&state) {
		_, diags := planPrincipal(ctx, req.Config, r.data.principal, &plan.Principal)
		resp.Diagnostics.Append(diags...)
		resp.Diagnostics.Append(resp.State.Set(ctx, &plan)...)
		return
	}
	digest, ok := r.write(ctx, &plan, req.Config, reporter{diags: &resp.Diagnostics, schema: req.Plan.Schema, fallback: "binding"})
	if !ok {
		return
	}
	resp.Diagnostics.Append(resp.Private.SetKey(ctx, writtenKey, digest)...)
	resp.Diagnostics.Append(resp.State.Set(ctx, &plan)...)
	before, after := state.Binding.Attributes(), plan.Binding.Attributes()
	if before["id"].Equal(after["id"]) && before["endpoint"].Equal(after["endpoint"]) {
		return
	}
	resp.Diagnostics.Append(r.remove(ctx, &state, reporter{diags: &resp.Diagnostics, schema: req.State.Schema, fallback: "binding"})...)
}

func (r *fileResource) Delete(ctx context.Context, req resource.DeleteRequest, resp *resource.DeleteResponse) {
	if r.data == nil {
		resp.Diagnostics.Append(unconfiguredError("agentkernel_file"))
		return
	}
	var state fileModel
	resp.Diagnostics.Append(req.State.Get(ctx, &state)...)
	if resp.Diagnostics.HasError() {
		return
	}
	resp.Diagnostics.Append(r.remove(ctx, &state, reporter{diags: &resp.Diagnostics, schema: req.State.Schema, fallback: "binding"})...)
}

// remove removes the file. With its environment it is gone already, and so it is when there is something else in its place,
// which is not ours.
func (r *fileResource) remove(ctx context.Context, state *fileModel, report reporter) diag.Diagnostics {
	who, diags := resolvePrincipal(ctx, state.Principal, r.data.principal)
	if diags.HasError() {
		return diags
	}
	ctx, report.redact = r.data.request(ctx, nil)
	request, _ := state.request(who)
	err := r.data.engine.RemoveFile(ctx, request)
	switch {
	case sandboxcore.IsCode(err, sandboxcore.CodeGone):
	case err != nil && ctx.Err() == nil && sandboxcore.IsOfTheFile(err) && !errors.Is(err, fs.ErrPermission) && r.isElse(ctx, request):
		diags.Append(otherThanFileWarning(request.Path, "it is left alone, and the object is removed from the state", err))
	default:
		report.error(ctx, err, sandboxcore.CodeUnreachable)
	}
	return diags
}

// isElse reports whether what stands at a path cannot be looked at as a file either.
func (r *fileResource) isElse(ctx context.Context, request sandboxcore.FileRequest) bool {
	_, err := r.data.engine.StatFile(ctx, request)
	return err != nil && sandboxcore.IsOfTheFile(err) && !errors.Is(err, fs.ErrPermission)
}
