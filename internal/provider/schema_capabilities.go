package provider

import (
	"context"

	"github.com/hashicorp/terraform-plugin-framework/attr"
	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// capability is one field of sandboxcore.Capabilities as Terraform shows it.
type capability struct {
	name        string
	description string
	value       func(sandboxcore.Capabilities) attr.Value
}

func stringsValue[T ~string](in []T) attr.Value {
	out := make([]attr.Value, len(in))
	for i, s := range in {
		out[i] = types.StringValue(string(s))
	}
	return types.ListValueMust(types.StringType, out)
}

// capabilities lists every field.
var capabilities = []capability{
	{"isolation", "Strength of the boundary: `none`, `os_policy`, `container`, `syscall_filter`, `micro_vm` or `wasm`.", func(c sandboxcore.Capabilities) attr.Value { return types.StringValue(string(c.Isolation)) }},
	{"isolation_asserted", "The operator vouches for the tier; the provider cannot see it.", func(c sandboxcore.Capabilities) attr.Value { return types.BoolValue(c.IsolationAsserted) }},
	{"shell", "Shell text and commands can be run.", func(c sandboxcore.Capabilities) attr.Value { return types.BoolValue(c.Shell) }},
	{"languages", "Languages that `code` may be written in.", func(c sandboxcore.Capabilities) attr.Value { return stringsValue(c.Languages) }},
	{"files", "Single files can be written into and read out of the environment.", func(c sandboxcore.Capabilities) attr.Value { return types.BoolValue(c.Files) }},
	{"package_install", "Python packages can be installed into the workspace.", func(c sandboxcore.Capabilities) attr.Value { return types.BoolValue(c.PackageInstall) }},
	{"stateful", "Variables of an interpreter persist between runs.", func(c sandboxcore.Capabilities) attr.Value { return types.BoolValue(c.Stateful) }},
	{"attach", "A sandbox that was created can be found again by its id.", func(c sandboxcore.Capabilities) attr.Value { return types.BoolValue(c.Attach) }},
	{"provisions", "Environments can be created.", func(c sandboxcore.Capabilities) attr.Value { return types.BoolValue(c.Provisions) }},
	{"attaches_external", "Environments that somebody else created can be bound.", func(c sandboxcore.Capabilities) attr.Value { return types.BoolValue(c.AttachesExternal) }},
	{"principal_user", "Code can run under a user's identity.", func(c sandboxcore.Capabilities) attr.Value { return types.BoolValue(c.PrincipalUser) }},
	{"policy_network", "Network egress other than `allow` is enforced.", func(c sandboxcore.Capabilities) attr.Value { return types.BoolValue(c.PolicyNetwork) }},
	{"policy_filesystem", "Some file-system policy is enforced.", func(c sandboxcore.Capabilities) attr.Value { return types.BoolValue(c.PolicyFilesystem) }},
	{"policy_resources", "Limits of cpu and memory are enforced.", func(c sandboxcore.Capabilities) attr.Value { return types.BoolValue(c.PolicyResources) }},
	{"network_modes", "Values of `network_egress` that can be had.", func(c sandboxcore.Capabilities) attr.Value { return stringsValue(c.NetworkModes) }},
	{"allowlist_entries", "Kinds of entry that `network_allow` can hold: `cidr`, `domain`.", func(c sandboxcore.Capabilities) attr.Value { return stringsValue(c.AllowlistEntries) }},
	{"fs_read", "`fs_allow_read` is enforced.", func(c sandboxcore.Capabilities) attr.Value { return types.BoolValue(c.FSRead) }},
	{"fs_write", "`fs_allow_write` is enforced.", func(c sandboxcore.Capabilities) attr.Value { return types.BoolValue(c.FSWrite) }},
	{"stdin", "A run can be given standard input.", func(c sandboxcore.Capabilities) attr.Value { return types.BoolValue(c.Stdin) }},
	{"streaming", "Output arrives while the run goes on.", func(c sandboxcore.Capabilities) attr.Value { return types.BoolValue(c.Streaming) }},
	{"split_output", "Standard output and standard error arrive apart.", func(c sandboxcore.Capabilities) attr.Value { return types.BoolValue(c.SplitOutput) }},
	{"pause", "`desired_state = \"paused\"` works.", func(c sandboxcore.Capabilities) attr.Value { return types.BoolValue(c.Pause) }},
	{"live_update", "What can be changed on a sandbox in place.", func(c sandboxcore.Capabilities) attr.Value { return stringsValue(c.LiveUpdate) }},
	{"max_lifetime", "The backend itself ends a sandbox after `max_lifetime`.", func(c sandboxcore.Capabilities) attr.Value { return types.BoolValue(c.MaxLifetime) }},
	{"keep_background", "`background = \"keep\"` is possible.", func(c sandboxcore.Capabilities) attr.Value { return types.BoolValue(c.KeepBackground) }},
	{"kills_tree", "A timeout ends every process of a run, whatever it did to hide.", func(c sandboxcore.Capabilities) attr.Value { return types.BoolValue(c.KillsTree) }},
	{"records_input", "The backend keeps what a run is given (code, environment, standard input) where others can read it, so that secrets are refused unless the profile allows them.", func(c sandboxcore.Capabilities) attr.Value { return types.BoolValue(c.RecordsInput) }},
	{"assertable", "Settings by which an operator vouches for something that the provider cannot see.", func(c sandboxcore.Capabilities) attr.Value { return stringsValue(c.Assertable) }},
}

func capabilityAttributes() map[string]schema.Attribute {
	out := make(map[string]schema.Attribute, len(capabilities))
	for _, c := range capabilities {
		switch c.value(sandboxcore.Capabilities{}).(type) {
		case types.Bool:
			out[c.name] = schema.BoolAttribute{MarkdownDescription: c.description, Computed: true}
		case types.List:
			out[c.name] = schema.ListAttribute{MarkdownDescription: c.description, Computed: true, ElementType: types.StringType}
		default:
			out[c.name] = schema.StringAttribute{MarkdownDescription: c.description, Computed: true}
		}
	}
	return out
}

func capabilityTypes() map[string]attr.Type {
	out := make(map[string]attr.Type, len(capabilities))
	for name, v := range capabilityValues(sandboxcore.Capabilities{}) {
		switch v.(type) {
		case types.Bool:
			out[name] = types.BoolType
		case types.List:
			out[name] = types.ListType{ElemType: types.StringType}
		default:
			out[name] = types.StringType
		}
	}
	return out
}

func capabilityValues(c sandboxcore.Capabilities) map[string]attr.Value {
	out := make(map[string]attr.Value, len(capabilities))
	for _, f := range capabilities {
		out[f.name] = f.value(c)
	}
	return out
}

func capabilitiesObject(c sandboxcore.Capabilities) types.Object {
	return types.ObjectValueMust(capabilityTypes(), capabilityValues(c))
}

var offerTypes = map[string]attr.Type{
	"endpoint": types.StringType, "reachable": types.BoolType, "reason": types.StringType,
	"facts": types.MapType{ElemType: types.StringType}, "languages": types.ListType{ElemType: types.StringType},
	"cpu": types.BoolType, "memory": types.BoolType, "network": types.BoolType, "pause": types.BoolType,
}

func offerAttribute() schema.SingleNestedAttribute {
	return schema.SingleNestedAttribute{
		MarkdownDescription: "What the machine or engine really has; null unless `probe = true`.",
		Computed:            true,
		Attributes: map[string]schema.Attribute{
			"endpoint":  schema.StringAttribute{MarkdownDescription: "Identity of the place.", Computed: true},
			"reachable": schema.BoolAttribute{MarkdownDescription: "Whether it answers and can be used.", Computed: true},
			"reason":    schema.StringAttribute{MarkdownDescription: "Why not, and what to do; empty when reachable.", Computed: true},
			"facts":     schema.MapAttribute{MarkdownDescription: "What was found, for people: versions, control groups, interpreters.", Computed: true, ElementType: types.StringType},
			"languages": schema.ListAttribute{MarkdownDescription: "Languages whose interpreter was found.", Computed: true, ElementType: types.StringType},
			"cpu":       schema.BoolAttribute{MarkdownDescription: "A cpu limit can be enforced here.", Computed: true},
			"memory":    schema.BoolAttribute{MarkdownDescription: "A memory limit can be enforced here.", Computed: true},
			"network":   schema.BoolAttribute{MarkdownDescription: "Egress can be denied here.", Computed: true},
			"pause":     schema.BoolAttribute{MarkdownDescription: "A sandbox can be paused here.", Computed: true},
		},
	}
}

func offerObject(ctx context.Context, o sandboxcore.Offer) (types.Object, diag.Diagnostics) {
	facts := make(map[string]string, len(o.Facts))
	for k, v := range o.Facts {
		facts[sandboxcore.Printable(k)] = sandboxcore.Clean(v)
	}
	factsValue, diags := types.MapValueFrom(ctx, types.StringType, facts)
	if diags.HasError() {
		return types.ObjectNull(offerTypes), diags
	}
	return types.ObjectValue(offerTypes, map[string]attr.Value{
		"endpoint": types.StringValue(sandboxcore.Printable(o.Endpoint)), "reachable": types.BoolValue(o.Reachable),
		"reason": types.StringValue(sandboxcore.Clean(o.Reason)), "facts": factsValue, "languages": stringsValue(o.Languages),
		"cpu": types.BoolValue(o.CPU), "memory": types.BoolValue(o.Memory), "network": types.BoolValue(o.Network), "pause": types.BoolValue(o.Pause),
	})
}
