package provider

import (
	"context"
	"fmt"

	"github.com/hashicorp/terraform-plugin-framework-validators/listvalidator"
	"github.com/hashicorp/terraform-plugin-framework/attr"
	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema"
	"github.com/hashicorp/terraform-plugin-framework/schema/validator"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// profileAttributes are the arguments and results of a profile, as of a resource; the data source has the same.
func profileAttributes(reg *sandboxcore.Registry) map[string]schema.Attribute {
	out := map[string]schema.Attribute{
		"name": schema.StringAttribute{
			MarkdownDescription: "Name of the profile: " + sandboxcore.ProfileNameHint + ".",
			Required:            true,
		},
		"type": schema.StringAttribute{
			MarkdownDescription: "Backend type: " + codeList(reg.Types()) + ". The attribute of the same name has to be set, `{}` at least.",
			Required:            true,
		},
		"environment": schema.StringAttribute{
			MarkdownDescription: "`managed` (the default: sandboxes are created and destroyed) or `attached` (somebody else owns the environment; it is only used).",
			Optional:            true,
			Validators:          []validator.String{oneOf(sandboxcore.EnvironmentManaged, sandboxcore.EnvironmentAttached)},
		},
		"scope": schema.StringAttribute{
			MarkdownDescription: "Life span of a sandbox in the Agent Kernel runtime: `per_session` (the default), `per_call` or `per_runtime`. Terraform only records it.",
			Optional:            true,
			Validators:          []validator.String{oneOf(sandboxcore.ScopePerSession, sandboxcore.ScopePerCall, sandboxcore.ScopePerRuntime)},
		},
		"idle_timeout": schema.Float64Attribute{
			MarkdownDescription: "Seconds without use, such as `600`, after which the Agent Kernel runtime ends a sandbox. Defaults to 1800. It ends no sandbox that Terraform keeps.",
			Optional:            true,
		},
		"identity": schema.SingleNestedAttribute{
			MarkdownDescription: "Whose identity code runs under. Defaults to `{ mode = \"agent\" }`.",
			Optional:            true,
			Attributes: map[string]schema.Attribute{
				"mode": schema.StringAttribute{
					MarkdownDescription: "`agent` (the default) or `user`, which needs a backend with user identity.",
					Optional:            true,
					Validators:          []validator.String{oneOf(sandboxcore.IdentityAgent, sandboxcore.IdentityUser)},
				},
			},
		},
		"policy": policyAttribute("What a sandbox may do. Everything that the backend cannot enforce is refused, unless `strict = false`; the table of the page says which backend enforces what. By default nothing is asked for but the `timeout`."),
		"id": schema.StringAttribute{
			MarkdownDescription: "The profile's name.",
			Computed:            true,
		},
		"spec": schema.StringAttribute{
			MarkdownDescription: "The profile as canonical JSON: what `agentkernel_sandbox` and `agentkernel_exec` take as `profile`. It holds what differs from the defaults, and no release changes it for a profile that did not change.",
			Computed:            true,
		},
		"fingerprint": schema.StringAttribute{
			MarkdownDescription: "SHA-256 of `spec`, in hexadecimal.",
			Computed:            true,
		},
		"isolation": schema.StringAttribute{
			MarkdownDescription: "Isolation tier of the backend with these settings: " + codeList(sandboxcore.IsolationTiers()) + ".",
			Computed:            true,
		},
		"capabilities": schema.SingleNestedAttribute{
			MarkdownDescription: "What the backend with these settings supports and enforces.",
			Computed:            true,
			Attributes:          capabilityAttributes(),
		},
		"unenforced": schema.ListAttribute{
			MarkdownDescription: "Keys of `policy` that nobody enforces; empty unless `strict = false`.",
			Computed:            true,
			ElementType:         types.StringType,
		},
	}
	for _, f := range reg.Factories() {
		out[string(f.Type)] = settingsAttribute(fmt.Sprintf("Settings of the backend `%s`. %s", f.Type, f.Describe), f.Settings)
	}
	return out
}

func policyAttribute(description string) schema.SingleNestedAttribute {
	paths := []validator.List{listvalidator.NoNullValues()}
	return schema.SingleNestedAttribute{
		MarkdownDescription: description,
		Optional:            true,
		Attributes: map[string]schema.Attribute{
			"network_egress": schema.StringAttribute{
				MarkdownDescription: "`allow` (the default: nothing is kept from the code), `deny` (nothing outside the sandbox can be reached, name servers included; the sandbox has a loopback interface of its own) or `allowlist`.",
				Optional:            true,
				Validators:          []validator.String{oneOf(sandboxcore.NetworkAllow, sandboxcore.NetworkDeny, sandboxcore.NetworkAllowlist)},
			},
			"network_allow": schema.ListAttribute{
				MarkdownDescription: "What may be reached with `network_egress = \"allowlist\"`, and only with that: CIDRs, domains, `*.` domains, such as `[\"10.1.0.0/16\", \"*.example.org\"]`. Their order has no meaning. Not set by default.",
				Optional:            true, ElementType: types.StringType, Validators: paths,
			},
			"fs_allow_read": schema.ListAttribute{
				MarkdownDescription: "Absolute paths that may be read beside what every sandbox of the backend sees, such as `[\"/srv/data\"]`; everything else may not. Their order has no meaning. By default nothing is asked for. On `bubblewrap` they are paths of this machine, which has to have them.",
				Optional:            true, ElementType: types.StringType, Validators: paths,
			},
			"fs_allow_write": schema.ListAttribute{
				MarkdownDescription: "Absolute paths that may be written, such as `[\"/workspace\", \"/tmp\"]`; everything else may not. Their order has no meaning. By default nothing is asked for. On `docker` exactly these are writable, beside the container's own `/dev` and `/dev/shm`: list `/workspace` and `/tmp` too if code writes there. On `bubblewrap` they are paths of this machine, beside `/workspace`, `/tmp` and `/dev/shm`, which are always writable.",
				Optional:            true, ElementType: types.StringType, Validators: paths,
			},
			"cpu": schema.Float64Attribute{
				MarkdownDescription: "Limit of processor time of the whole sandbox, in cores, such as `0.5`. By default there is no limit.",
				Optional:            true,
			},
			"memory_mb": schema.Float64Attribute{
				MarkdownDescription: "Limit of memory of the whole sandbox, in MB of 1048576 bytes, such as `512`; a whole number. By default there is no limit.",
				Optional:            true, Validators: []validator.Float64{wholeNumber{}},
			},
			"timeout": schema.Float64Attribute{
				MarkdownDescription: "Longest time of one run, in seconds, such as `30` or `0.5`. Defaults to 120.",
				Optional:            true,
			},
			"strict": schema.BoolAttribute{
				MarkdownDescription: "Whether a policy that the backend cannot enforce is refused (the default). With `false` it is accepted with a warning on every plan, the code runs without the limit, and `unenforced` lists it.",
				Optional:            true,
			},
			"min_isolation": schema.StringAttribute{
				MarkdownDescription: "Weakest isolation tier that is acceptable: " + codeList(sandboxcore.IsolationTiers()) + ". By default every tier is.",
				Optional:            true,
				Validators:          []validator.String{oneOf(sandboxcore.IsolationTiers()...)},
			},
		},
	}
}

// attributeReader is a configuration, plan or state.
type attributeReader interface {
	GetAttribute(ctx context.Context, p path.Path, target any) diag.Diagnostics
}

// readProfile reads the arguments of a profile. The settings blocks depend on the registry, so there is no struct for
// them to be read into.
func readProfile(ctx context.Context, reg *sandboxcore.Registry, from attributeReader) (sandboxcore.ProfileInput, unknownPaths, diag.Diagnostics) {
	var diags diag.Diagnostics
	unknown := unknownPaths{}
	text := func(name string) *string {
		var v types.String
		diags.Append(from.GetAttribute(ctx, path.Root(name), &v)...)
		return optionalString(v, unknown, name)
	}
	in := sandboxcore.ProfileInput{Environment: text("environment"), Scope: text("scope"), Blocks: map[string]sandboxcore.Settings{}}
	if name := text("name"); name != nil {
		in.Name = *name
	}
	if t := text("type"); t != nil {
		in.Type = *t
	}
	var idle types.Float64
	diags.Append(from.GetAttribute(ctx, path.Root("idle_timeout"), &idle)...)
	in.IdleTimeout = optionalFloat(idle, unknown, "idle_timeout")
	object := func(name string) types.Object {
		var o types.Object
		diags.Append(from.GetAttribute(ctx, path.Root(name), &o)...)
		return o
	}
	if identity := object("identity"); identity.IsUnknown() {
		unknown.add("identity")
	} else if mode, ok := identity.Attributes()["mode"].(types.String); ok {
		in.Identity = optionalString(mode, unknown, "identity", "mode")
	}
	in.Policy = policyInput(object("policy"), unknown)
	for _, t := range reg.Types() {
		s, present, err := settingsFromObject(object(string(t)), unknown, string(t))
		if err != nil {
			diags.AddAttributeError(path.Root(string(t)), "Unreadable Setting", err.Error())
		}
		if present {
			in.Blocks[string(t)] = s
		}
	}
	return in, unknown, diags
}

func policyInput(obj types.Object, unknown unknownPaths) sandboxcore.PolicyInput {
	var in sandboxcore.PolicyInput
	if obj.IsUnknown() {
		unknown.add("policy")
		return in
	}
	a := obj.Attributes()
	text := func(name string) *string {
		v, _ := a[name].(types.String)
		return optionalString(v, unknown, "policy", name)
	}
	list := func(name string) []string {
		v, _ := a[name].(types.List)
		return optionalStrings(v, unknown, "policy", name)
	}
	float := func(name string) *float64 {
		v, _ := a[name].(types.Float64)
		return optionalFloat(v, unknown, "policy", name)
	}
	in.NetworkEgress, in.MinIsolation = text("network_egress"), text("min_isolation")
	in.NetworkAllow, in.FSAllowRead, in.FSAllowWrite = list("network_allow"), list("fs_allow_read"), list("fs_allow_write")
	in.CPU, in.Timeout = float("cpu"), float("timeout")
	if m := float("memory_mb"); m != nil {
		whole := int64(*m)
		in.MemoryMB = &whole
	}
	if v, ok := a["strict"].(types.Bool); ok && !v.IsNull() {
		if v.IsUnknown() {
			unknown.add("policy", "strict")
		} else {
			in.Strict = v.ValueBoolPointer()
		}
	}
	return in
}

func optionalString(v types.String, unknown unknownPaths, at ...string) *string {
	if v.IsUnknown() {
		unknown.add(at...)
		return nil
	}
	return v.ValueStringPointer()
}

func optionalFloat(v types.Float64, unknown unknownPaths, at ...string) *float64 {
	if v.IsUnknown() {
		unknown.add(at...)
		return nil
	}
	return v.ValueFloat64Pointer()
}

// optionalStrings gives the known elements of a list; one that is not known makes the whole list noted as unknown.
func optionalStrings(v types.List, unknown unknownPaths, at ...string) []string {
	if v.IsUnknown() {
		unknown.add(at...)
		return nil
	}
	var out []string
	for _, e := range v.Elements() {
		s, ok := e.(types.String)
		switch {
		case !ok || s.IsNull():
		case s.IsUnknown():
			unknown.add(at...)
		default:
			out = append(out, s.ValueString())
		}
	}
	return out
}

// profileResult is everything computed of a profile. It is a pure function of the arguments.
type profileResult struct {
	known        bool
	id           types.String
	spec         string
	capabilities sandboxcore.Capabilities
	unenforced   []string
	warnings     []diag.Diagnostic
}

// evaluateProfile runs a profile through the gate. What is known is checked, what depends on something unknown is left to
// the apply; the gate runs again there and before each use of the spec, so that nothing is skipped.
func evaluateProfile(reg *sandboxcore.Registry, in sandboxcore.ProfileInput, unknown unknownPaths) (profileResult, error) {
	out := profileResult{id: types.StringUnknown()}
	if !unknown.under("name") {
		out.id = types.StringValue(in.Name)
	} else {
		in.Name = "unknown"
	}
	// Stand-ins for what is unknown, so that the rest can be judged; what is found at their own paths is not reported.
	mode, list := in.Policy.NetworkEgress, in.Policy.NetworkAllow
	if unknown.under("policy", "network_allow") && len(list) == 0 && mode != nil && *mode == string(sandboxcore.NetworkAllowlist) {
		in.Policy.NetworkAllow = []string{"unknown.invalid"}
	}
	if unknown.under("policy", "network_egress") && len(list) > 0 {
		allowlist := string(sandboxcore.NetworkAllowlist)
		in.Policy.NetworkEgress = &allowlist
	}
	p, err := reg.Resolve(in)
	if err != nil {
		err = knownViolations(err, func(v *sandboxcore.Error) bool { return settledProfile(unknown, in.Type, v) })
		return out, err
	}
	verdict, err := reg.Decide(p, nil, nil)
	if err != nil {
		if len(unknown) == 0 {
			return out, err
		}
		return out, knownViolations(err, func(v *sandboxcore.Error) bool { return settledVerdict(unknown, in.Type, verdict.Capabilities, v) })
	}
	if len(unknown) > 0 {
		return out, nil
	}
	out.known = true
	if out.spec, err = sandboxcore.EncodeSpec(p); err != nil {
		return out, err
	}
	out.capabilities, out.unenforced = verdict.Capabilities, verdict.Unenforced
	out.warnings = profileWarnings(p, verdict)
	return out, nil
}

// knownViolations keeps the refusals that no unknown value could undo.
func knownViolations(err error, settled func(*sandboxcore.Error) bool) error {
	var kept sandboxcore.Violations
	for _, v := range sandboxcore.AllErrors(err, sandboxcore.CodeValue) {
		if settled(v) {
			kept = append(kept, v)
		}
	}
	if len(kept) == 0 {
		return nil
	}
	return kept
}

// settledProfile reports whether a refusal of the configuration stands whatever the unknown values turn out to be.
func settledProfile(unknown unknownPaths, backend string, v *sandboxcore.Error) bool {
	at := v.Attribute
	if len(at) == 0 {
		return len(unknown) == 0
	}
	if unknown.under(at...) {
		return false
	}
	switch dotted(at) {
	case "policy.network_allow": // judged together with the mode
		return !unknown.under("policy", "network_egress")
	case "type":
		return !unknown.under("type")
	}
	// Which block belongs is judged by the type.
	return at[0] == backend || v.Code != sandboxcore.CodeSettingsBlock || !unknown.under("type")
}

// settledVerdict reports the same of a refusal by the gate. What a backend enforces can depend on its settings and on the
// environment mode; its own refusals can combine several settings.
func settledVerdict(unknown unknownPaths, backend string, caps sandboxcore.Capabilities, v *sandboxcore.Error) bool {
	at := v.Attribute
	if len(at) == 0 || unknown.under(at...) || unknown.under("type") || unknown.under("environment") || unknown.under("policy", "strict") {
		return false
	}
	if at[0] == backend {
		return !unknown.under(backend)
	}
	if v.Code == sandboxcore.CodeIsolation && unknown.under(backend) {
		return false
	}
	if v.Code == sandboxcore.CodeAllowEntry && unknown.under("policy", "network_egress") {
		return false
	}
	for _, setting := range caps.Assertable {
		if unknown.under(backend, setting) {
			return false
		}
	}
	return true
}

func profileWarnings(p *sandboxcore.Profile, verdict sandboxcore.Verdict) []diag.Diagnostic {
	out := unenforcedWarnings(path.Empty(), p, verdict)
	if verdict.Capabilities.Isolation == sandboxcore.IsolationNone {
		out = append(out, isolationNoneWarning(p))
	}
	return out
}

// profileValues are the computed attributes as Terraform values.
func profileValues(r profileResult) map[string]attr.Value {
	if !r.known {
		return map[string]attr.Value{
			"id": r.id, "spec": types.StringUnknown(), "fingerprint": types.StringUnknown(), "isolation": types.StringUnknown(),
			"capabilities": types.ObjectUnknown(capabilityTypes()), "unenforced": types.ListUnknown(types.StringType),
		}
	}
	return map[string]attr.Value{
		"id": r.id, "spec": types.StringValue(r.spec), "fingerprint": types.StringValue(sandboxcore.Fingerprint(r.spec)),
		"isolation": types.StringValue(string(r.capabilities.Isolation)), "capabilities": capabilitiesObject(r.capabilities),
		"unenforced": stringsValue(r.unenforced),
	}
}
