package provider

import (
	"context"
	"time"

	"github.com/hashicorp/terraform-plugin-framework-timeouts/resource/timeouts"
	"github.com/hashicorp/terraform-plugin-framework-timetypes/timetypes"
	"github.com/hashicorp/terraform-plugin-framework/attr"
	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// sandboxModel is plan and state of a sandbox. EnvWO is always null in it: a write-only value that got into the state
// beside an error would make Terraform discard the object, and the sandbox would be lost.
type sandboxModel struct {
	Profile      types.String         `tfsdk:"profile"`
	Name         types.String         `tfsdk:"name"`
	Env          types.Map            `tfsdk:"env"`
	SecretEnv    types.Map            `tfsdk:"secret_env"`
	EnvWO        types.Map            `tfsdk:"env_wo"`
	EnvWOVersion types.Int64          `tfsdk:"env_wo_version"`
	Labels       types.Map            `tfsdk:"labels"`
	Packages     types.List           `tfsdk:"packages"`
	Principal    types.Object         `tfsdk:"principal"`
	DesiredState types.String         `tfsdk:"desired_state"`
	MaxLifetime  timetypes.GoDuration `tfsdk:"max_lifetime"`
	Timeouts     timeouts.Value       `tfsdk:"timeouts"`
	ID           types.String         `tfsdk:"id"`
	Backend      types.String         `tfsdk:"backend"`
	Endpoint     types.String         `tfsdk:"endpoint"`
	NativeID     types.String         `tfsdk:"native_id"`
	Binding      types.Object         `tfsdk:"binding"`
	Status       types.String         `tfsdk:"status"`
	Isolation    types.String         `tfsdk:"isolation"`
	CreatedAt    types.String         `tfsdk:"created_at"`
	ExpiresAt    types.String         `tfsdk:"expires_at"`
}

var bindingTypes = map[string]attr.Type{
	"backend": types.StringType, "endpoint": types.StringType, "environment": types.StringType, "id": types.StringType, "spec": types.StringType,
}

func bindingAttribute(computed bool) schema.SingleNestedAttribute {
	description := "Where to run: the `binding` of an `agentkernel_sandbox` or `agentkernel_attached_environment`, as a whole. Another environment runs the code again, a change of the same one in place does not."
	if computed {
		description = "Names this environment to `agentkernel_exec` and `agentkernel_file`. At plan everything but `endpoint` and `id` of a sandbox still to be made is known, so that runs in it are checked then."
	}
	text := func(d string) schema.StringAttribute {
		return schema.StringAttribute{MarkdownDescription: d, Required: !computed, Computed: computed}
	}
	return schema.SingleNestedAttribute{
		MarkdownDescription: description,
		Optional:            !computed,
		Computed:            computed,
		Attributes: map[string]schema.Attribute{
			"backend":     text("Backend type."),
			"endpoint":    text("Identity of the place: of a Docker engine its id, of a cluster that of its namespace `kube-system`, of AWS account and region."),
			"environment": text("`managed` or `attached`."),
			"id":          text("`<backend>/<native id>`."),
			"spec":        text("The spec that it was made with."),
		},
	}
}

// bindingObject makes a binding of which endpoint and id may still be unknown.
func bindingObject(p *sandboxcore.Profile, spec string, endpoint, id types.String) types.Object {
	return types.ObjectValueMust(bindingTypes, map[string]attr.Value{
		"backend": types.StringValue(string(p.Type)), "endpoint": endpoint, "environment": types.StringValue(string(p.Environment)),
		"id": id, "spec": types.StringValue(spec),
	})
}

// ref names the sandbox to the engine. An endpoint that is not recorded yet (import) is empty.
func (m *sandboxModel) ref() sandboxcore.SandboxRef {
	return sandboxcore.SandboxRef{
		Backend: sandboxcore.BackendType(m.Backend.ValueString()), Endpoint: m.Endpoint.ValueString(), NativeID: m.NativeID.ValueString(),
	}
}

// show takes over what one look at the sandbox showed.
func (m *sandboxModel) show(p *sandboxcore.Profile, caps sandboxcore.Capabilities, info sandboxcore.SandboxInfo) {
	m.Backend = types.StringValue(string(p.Type))
	m.NativeID = types.StringValue(info.NativeID)
	m.ID = types.StringValue(sandboxcore.SandboxID(p.Type, info.NativeID))
	m.Endpoint = types.StringValue(info.Endpoint)
	m.Status = types.StringValue(string(info.Status))
	m.Isolation = types.StringValue(string(caps.Isolation))
	m.CreatedAt, m.ExpiresAt = createdAt(info), timeText(info.ExpiresAt)
	m.Binding = bindingObject(p, m.Profile.ValueString(), m.Endpoint, m.ID)
	m.EnvWO = types.MapNull(types.StringType)
}

// createdAt gives the time in the marks before the backend's: it stays the same from look to look.
func createdAt(info sandboxcore.SandboxInfo) types.String {
	created := info.Marks.Created
	if created.IsZero() {
		created = info.CreatedAt
	}
	return timeText(created)
}

// timeText is a time in RFC 3339; null if there is none.
func timeText(t time.Time) types.String {
	if t.IsZero() {
		return types.StringNull()
	}
	return types.StringValue(t.UTC().Format(time.RFC3339))
}

// desiredState is what desired_state says about a sandbox that looks like info, where before stood there. After an import
// nothing did, and "stopped" is nothing that a configuration can say: it stays unset, and the next apply starts the sandbox.
func desiredState(before types.String, info sandboxcore.SandboxInfo) types.String {
	state := info.DesiredState(sandboxcore.Status(before.ValueString()))
	if before.IsNull() && state == sandboxcore.StatusStopped {
		return before
	}
	return types.StringValue(string(state))
}

// adopt fills in the arguments from the marks that the sandbox carries, after an import.
func (m *sandboxModel) adopt(ctx context.Context, info sandboxcore.SandboxInfo) diag.Diagnostics {
	var diags diag.Diagnostics
	args := info.Marks.Args
	m.Profile = types.StringValue(info.Marks.Spec)
	m.Name = types.StringValue(info.Marks.Name)
	m.Env, m.SecretEnv, m.Labels = mapValue(args.Env), mapValue(args.SecretEnv), mapValue(args.Labels)
	m.EnvWOVersion = types.Int64PointerValue(args.EnvWOVersion)
	m.Packages = listValue(args.Packages)
	who := principal{known: true, value: sandboxcore.DefaultPrincipal()}
	if args.Principal != nil {
		who.value = *args.Principal
	}
	m.Principal = principalObject(who)
	if args.Timeouts != nil {
		limits := map[string]attr.Value{}
		for name := range m.Timeouts.AttributeTypes(ctx) {
			limits[name] = types.StringNull()
			if v, ok := args.Timeouts[name]; ok {
				limits[name] = types.StringValue(v)
			}
		}
		obj, more := types.ObjectValue(m.Timeouts.AttributeTypes(ctx), limits)
		diags.Append(more...)
		m.Timeouts.Object = obj
	}
	m.MaxLifetime = timetypes.NewGoDurationNull()
	if args.MaxLifetime != "" {
		d, more := timetypes.NewGoDurationValueFromString(args.MaxLifetime)
		diags.Append(more...)
		m.MaxLifetime = d
	}
	return diags
}

// request is what the engine is asked for. Values that are not known yet are left out.
func (m *sandboxModel) request(p *sandboxcore.Profile, who principal, envWO map[string]string) sandboxcore.SandboxRequest {
	req := sandboxcore.SandboxRequest{
		Spec: m.Profile.ValueString(), Name: m.Name.ValueString(), EnvWO: envWO, EnvWOVersion: m.EnvWOVersion.ValueInt64Pointer(),
		MaxLifetime: m.MaxLifetime.ValueString(), Paused: m.DesiredState.ValueString() == string(sandboxcore.StatusPaused), Principal: who.value,
	}
	if m.EnvWOVersion.IsUnknown() {
		req.EnvWOVersion = nil
	}
	req.Env, _ = stringMap(m.Env)
	req.SecretEnv, _ = stringMap(m.SecretEnv)
	req.Labels, _ = stringMap(m.Labels)
	req.Packages, _ = stringList(m.Packages)
	req.Timeouts = m.timeouts()
	if m.Name.IsUnknown() {
		req.Name = p.Name // any possible name will do for a check
	}
	if !who.known {
		req.Principal = sandboxcore.Principal{Mode: p.Identity, Subject: "unknown"}
	}
	return req
}

// timeouts are the time limits that are set; nil when the argument is not.
func (m *sandboxModel) timeouts() map[string]string {
	if m.Timeouts.IsNull() || m.Timeouts.IsUnknown() {
		return nil
	}
	out := map[string]string{}
	for name, v := range m.Timeouts.Attributes() {
		if s, ok := v.(types.String); ok && !s.IsNull() && !s.IsUnknown() {
			out[name] = s.ValueString()
		}
	}
	return out
}
