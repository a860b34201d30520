package provider

import (
	"context"

	"github.com/hashicorp/terraform-plugin-framework-validators/listvalidator"
	"github.com/hashicorp/terraform-plugin-framework-validators/stringvalidator"
	"github.com/hashicorp/terraform-plugin-framework/attr"
	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema"
	"github.com/hashicorp/terraform-plugin-framework/schema/validator"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

var principalTypes = map[string]attr.Type{
	"mode": types.StringType, "subject": types.StringType, "groups": types.ListType{ElemType: types.StringType},
	"ec2_ssm": types.ObjectType{AttrTypes: ec2PrincipalTypes}, "kubernetes": types.ObjectType{AttrTypes: kubernetesPrincipalTypes},
}

// principalAttribute describes whose identity code runs under. On constructs it is also computed, so that the state says
// under which principal an object was made even when the provider block decides it.
func principalAttribute(computed bool) schema.SingleNestedAttribute {
	description := "Whose identity sandboxed code runs under, unless a construct says otherwise. Defaults to `{ mode = \"agent\", subject = \"terraform\" }`."
	if computed {
		description = "Whose identity the code runs under. Defaults to the provider's `principal`."
	}
	return schema.SingleNestedAttribute{
		MarkdownDescription: description,
		Optional:            true,
		Computed:            computed,
		Attributes: map[string]schema.Attribute{
			"mode": schema.StringAttribute{
				MarkdownDescription: "`agent` (the default) or `user`. It has to match the profile's `identity`.",
				Optional:            true, Computed: computed,
				Validators: []validator.String{oneOf(sandboxcore.IdentityAgent, sandboxcore.IdentityUser)},
			},
			"subject": schema.StringAttribute{
				MarkdownDescription: "Name of the agent or the user. Defaults to `terraform` for an agent; a user has no default.",
				Optional:            true, Computed: computed,
				Validators: []validator.String{stringvalidator.LengthBetween(1, 256)},
			},
			"groups": schema.ListAttribute{
				MarkdownDescription: "Groups of the subject.",
				Optional:            true, ElementType: types.StringType,
				Validators: []validator.List{listvalidator.NoNullValues(), listvalidator.SizeAtLeast(1)},
			},
			"ec2_ssm":    ec2PrincipalAttribute(),
			"kubernetes": kubernetesPrincipalAttribute(),
		},
	}
}

// resolvePrincipal fills in what obj leaves out: the whole principal from fallback, single keys from the defaults. The
// second result is false when something of it is not known yet.
func resolvePrincipal(ctx context.Context, obj types.Object, fallback principal) (principal, diag.Diagnostics) {
	if obj.IsUnknown() {
		return principal{}, nil
	}
	if obj.IsNull() {
		return fallback, nil
	}
	var diags diag.Diagnostics
	out := principal{known: true, value: sandboxcore.Principal{Mode: sandboxcore.IdentityAgent}}
	attrs := obj.Attributes()
	mode, _ := attrs["mode"].(types.String)
	subject, _ := attrs["subject"].(types.String)
	groups, _ := attrs["groups"].(types.List)
	ec2, ec2Known := ec2Principal(attrs["ec2_ssm"])
	kubernetes, kubernetesKnown := kubernetesPrincipal(attrs["kubernetes"])
	if mode.IsUnknown() || subject.IsUnknown() || hasUnknown(groups) || !ec2Known || !kubernetesKnown {
		return principal{}, nil
	}
	out.value.EC2SSM, out.value.Kubernetes = ec2, kubernetes
	if !mode.IsNull() {
		out.value.Mode = sandboxcore.IdentityMode(mode.ValueString())
	}
	out.value.Subject = subject.ValueString()
	if subject.IsNull() && out.value.Mode == sandboxcore.IdentityAgent {
		out.value.Subject = sandboxcore.DefaultPrincipal().Subject
	}
	if !groups.IsNull() {
		diags.Append(groups.ElementsAs(ctx, &out.value.Groups, false)...)
	}
	return out, diags
}

// halfPrincipal is the planned form of a principal of which something is not known yet. What it leaves out gets its
// default and not what an older configuration said, which Terraform would keep: the apply could not hold to that.
func halfPrincipal(configured types.Object) types.Object {
	attrs := configured.Attributes()
	mode, _ := attrs["mode"].(types.String)
	subject, _ := attrs["subject"].(types.String)
	if mode.IsNull() {
		mode = types.StringValue(string(sandboxcore.IdentityAgent))
		attrs["mode"] = mode
	}
	if subject.IsNull() {
		subject = types.StringValue("")
		switch {
		case mode.IsUnknown():
			subject = types.StringUnknown()
		case mode.ValueString() == string(sandboxcore.IdentityAgent):
			subject = types.StringValue(sandboxcore.DefaultPrincipal().Subject)
		}
		attrs["subject"] = subject
	}
	return types.ObjectValueMust(principalTypes, attrs)
}

// principal is a principal that may not be known yet.
type principal struct {
	known bool
	value sandboxcore.Principal
}

func principalObject(p principal) types.Object {
	if !p.known {
		return types.ObjectUnknown(principalTypes)
	}
	groups := types.ListNull(types.StringType)
	if len(p.value.Groups) > 0 {
		groups, _ = stringsValue(p.value.Groups).(types.List)
	}
	return types.ObjectValueMust(principalTypes, map[string]attr.Value{
		"mode": types.StringValue(string(p.value.Mode)), "subject": types.StringValue(p.value.Subject), "groups": groups,
		"ec2_ssm": ec2PrincipalObject(p.value.EC2SSM), "kubernetes": kubernetesPrincipalObject(p.value.Kubernetes),
	})
}
