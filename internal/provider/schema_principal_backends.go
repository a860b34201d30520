package provider

import (
	"regexp"

	"github.com/hashicorp/terraform-plugin-framework-validators/listvalidator"
	"github.com/hashicorp/terraform-plugin-framework-validators/mapvalidator"
	"github.com/hashicorp/terraform-plugin-framework-validators/stringvalidator"
	"github.com/hashicorp/terraform-plugin-framework/attr"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema"
	"github.com/hashicorp/terraform-plugin-framework/schema/validator"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// This file holds the parts of a principal that say how one kind of backend knows the user.

var ec2PrincipalTypes = map[string]attr.Type{
	"role_arn": types.StringType, "external_id": types.StringType, "session_tags": types.MapType{ElemType: types.StringType},
	"source_identity": types.StringType, "run_as": types.StringType,
}

var kubernetesPrincipalTypes = map[string]attr.Type{
	"user": types.StringType, "groups": types.ListType{ElemType: types.StringType},
	"extra": types.MapType{ElemType: types.ListType{ElemType: types.StringType}},
}

// ec2PrincipalAttribute: the patterns of the values for AWS are those of the API of STS (AssumeRole).
func ec2PrincipalAttribute() schema.SingleNestedAttribute {
	matches := func(pattern, hint string) []validator.String {
		return []validator.String{stringvalidator.RegexMatches(regexp.MustCompile(pattern), "must be "+hint)}
	}
	return schema.SingleNestedAttribute{
		MarkdownDescription: "How AWS and the machine know the principal, for backend `ec2_ssm`.",
		Optional:            true,
		Attributes: map[string]schema.Attribute{
			"role_arn": schema.StringAttribute{
				MarkdownDescription: "Role that is assumed for a `user`; required there, and refused for an `agent`. The session is named after the subject, so that it shows in CloudTrail.",
				Optional:            true,
				Validators:          matches(`^arn:aws[a-z-]*:iam::[0-9]{12}:role/[\x21-\x7e]{1,512}$`, "the ARN of a role, such as arn:aws:iam::123456789012:role/name"),
			},
			"external_id": schema.StringAttribute{
				MarkdownDescription: "External id that the role's trust policy asks for.",
				Optional:            true,
				Validators:          append(matches(`^[\w+=,.@:/-]+$`, "letters, digits and + = , . @ : / -"), stringvalidator.LengthBetween(2, 1224)),
			},
			"session_tags": schema.MapAttribute{
				MarkdownDescription: "Session tags, at most 50. The role's trust policy has to allow `sts:TagSession`.",
				Optional:            true, ElementType: types.StringType,
				Validators: []validator.Map{mapvalidator.NoNullValues(), mapvalidator.SizeAtMost(50)},
			},
			"source_identity": schema.StringAttribute{
				MarkdownDescription: "Source identity of the session. The role's trust policy has to allow `sts:SetSourceIdentity`.",
				Optional:            true,
				Validators:          matches(`^[\w+=,.@-]{2,64}$`, "2 to 64 letters, digits and + = , . @ -"),
			},
			"run_as": schema.StringAttribute{
				MarkdownDescription: "User of the machine that code runs as. It must exist there. Defaults to the user of the SSM agent, which is root.",
				Optional:            true,
				Validators:          matches(sandboxcore.UserNamePattern, "the name of a user"),
			},
		},
	}
}

func kubernetesPrincipalAttribute() schema.SingleNestedAttribute {
	return schema.SingleNestedAttribute{
		MarkdownDescription: "How a cluster knows the user, for backend `kubernetes`. Defaults to `subject` and `groups`.",
		Optional:            true,
		Attributes: map[string]schema.Attribute{
			"user": schema.StringAttribute{
				MarkdownDescription: "Name of the user. Defaults to `subject`.",
				Optional:            true, Validators: []validator.String{stringvalidator.LengthAtLeast(1)},
			},
			"groups": schema.ListAttribute{
				MarkdownDescription: "Groups of the user. Defaults to `groups` of the principal.",
				Optional:            true, ElementType: types.StringType, Validators: []validator.List{listvalidator.NoNullValues()},
			},
			"extra": schema.MapAttribute{
				MarkdownDescription: "Extra attributes of the user.",
				Optional:            true, ElementType: types.ListType{ElemType: types.StringType}, Validators: []validator.Map{mapvalidator.NoNullValues()},
			},
		},
	}
}

// ec2Principal reads the attribute; the second result is false when something of it is not known yet.
func ec2Principal(v attr.Value) (*sandboxcore.EC2SSMPrincipal, bool) {
	obj, _ := v.(types.Object)
	if obj.IsUnknown() {
		return nil, false
	}
	if obj.IsNull() {
		return nil, true
	}
	out, known := &sandboxcore.EC2SSMPrincipal{}, true
	text := func(name string) string {
		s, _ := obj.Attributes()[name].(types.String)
		known = known && !s.IsUnknown()
		return s.ValueString()
	}
	out.RoleARN, out.ExternalID, out.SourceIdentity, out.RunAs = text("role_arn"), text("external_id"), text("source_identity"), text("run_as")
	m, _ := obj.Attributes()["session_tags"].(types.Map)
	tags, tagsKnown := stringMap(m)
	out.SessionTags = tags
	return out, known && tagsKnown
}

func ec2PrincipalObject(p *sandboxcore.EC2SSMPrincipal) types.Object {
	if p == nil {
		return types.ObjectNull(ec2PrincipalTypes)
	}
	return types.ObjectValueMust(ec2PrincipalTypes, map[string]attr.Value{
		"role_arn": optionalText(p.RoleARN), "external_id": optionalText(p.ExternalID), "session_tags": mapValue(p.SessionTags),
		"source_identity": optionalText(p.SourceIdentity), "run_as": optionalText(p.RunAs),
	})
}

// optionalText is null for the empty text, which the validators of these attributes do not let through.
func optionalText(s string) types.String {
	if s == "" {
		return types.StringNull()
	}
	return types.StringValue(s)
}

func kubernetesPrincipal(v attr.Value) (*sandboxcore.KubernetesPrincipal, bool) {
	obj, _ := v.(types.Object)
	if obj.IsUnknown() {
		return nil, false
	}
	if obj.IsNull() {
		return nil, true
	}
	user, _ := obj.Attributes()["user"].(types.String)
	groups, _ := obj.Attributes()["groups"].(types.List)
	extra, _ := obj.Attributes()["extra"].(types.Map)
	list, known := stringList(groups)
	if user.IsUnknown() || !known || extra.IsUnknown() {
		return nil, false
	}
	out := &sandboxcore.KubernetesPrincipal{User: user.ValueString(), Groups: list}
	if !extra.IsNull() {
		out.Extra = map[string][]string{}
	}
	for name, e := range extra.Elements() {
		l, _ := e.(types.List)
		values, known := stringList(l)
		if !known {
			return nil, false
		}
		out.Extra[name] = values
	}
	return out, true
}

func kubernetesPrincipalObject(p *sandboxcore.KubernetesPrincipal) types.Object {
	if p == nil {
		return types.ObjectNull(kubernetesPrincipalTypes)
	}
	kind := types.ListType{ElemType: types.StringType}
	extra := types.MapNull(kind)
	if p.Extra != nil {
		values := make(map[string]attr.Value, len(p.Extra))
		for name, v := range p.Extra {
			values[name] = listValue(v)
		}
		extra = types.MapValueMust(kind, values)
	}
	return types.ObjectValueMust(kubernetesPrincipalTypes, map[string]attr.Value{
		"user": optionalText(p.User), "groups": listValue(p.Groups), "extra": extra,
	})
}
