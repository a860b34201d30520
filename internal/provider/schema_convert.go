package provider

import (
	"fmt"
	"strings"

	action "github.com/hashicorp/terraform-plugin-framework/action/schema"
	datasource "github.com/hashicorp/terraform-plugin-framework/datasource/schema"
	ephemeral "github.com/hashicorp/terraform-plugin-framework/ephemeral/schema"
	list "github.com/hashicorp/terraform-plugin-framework/list/schema"
	provider "github.com/hashicorp/terraform-plugin-framework/provider/schema"
	resource "github.com/hashicorp/terraform-plugin-framework/resource/schema"
)

// The framework has one set of attribute types per kind of construct. Attributes that several kinds share are written
// once, as those of a resource, and converted here.

// dataSourceAttributes converts the attributes of a resource to those of a data source.
func dataSourceAttributes(in map[string]resource.Attribute) map[string]datasource.Attribute {
	out := make(map[string]datasource.Attribute, len(in))
	for name, a := range in {
		out[name] = dataSourceAttribute(a)
	}
	return out
}

func dataSourceAttribute(in resource.Attribute) datasource.Attribute {
	switch a := in.(type) {
	case resource.StringAttribute:
		return datasource.StringAttribute{
			MarkdownDescription: a.MarkdownDescription, Required: a.Required, Optional: a.Optional, Computed: a.Computed, Sensitive: a.Sensitive,
			CustomType: a.CustomType, Validators: a.Validators,
		}
	case resource.Int64Attribute:
		return datasource.Int64Attribute{MarkdownDescription: a.MarkdownDescription, Required: a.Required, Optional: a.Optional, Computed: a.Computed, Sensitive: a.Sensitive, Validators: a.Validators}
	case resource.Float64Attribute:
		return datasource.Float64Attribute{MarkdownDescription: a.MarkdownDescription, Required: a.Required, Optional: a.Optional, Computed: a.Computed, Sensitive: a.Sensitive, Validators: a.Validators}
	case resource.BoolAttribute:
		return datasource.BoolAttribute{MarkdownDescription: a.MarkdownDescription, Required: a.Required, Optional: a.Optional, Computed: a.Computed, Sensitive: a.Sensitive, Validators: a.Validators}
	case resource.ListAttribute:
		return datasource.ListAttribute{
			MarkdownDescription: a.MarkdownDescription, Required: a.Required, Optional: a.Optional, Computed: a.Computed, Sensitive: a.Sensitive,
			ElementType: a.ElementType, Validators: a.Validators,
		}
	case resource.MapAttribute:
		return datasource.MapAttribute{
			MarkdownDescription: a.MarkdownDescription, Required: a.Required, Optional: a.Optional, Computed: a.Computed, Sensitive: a.Sensitive,
			ElementType: a.ElementType, Validators: a.Validators,
		}
	case resource.SingleNestedAttribute:
		return datasource.SingleNestedAttribute{
			MarkdownDescription: a.MarkdownDescription, Required: a.Required, Optional: a.Optional, Computed: a.Computed, Sensitive: a.Sensitive,
			Attributes: dataSourceAttributes(a.Attributes), Validators: a.Validators,
		}
	}
	panic(fmt.Sprintf("no data source form of %T", in))
}

// actionAttributes converts arguments of a resource to those of an action, which has neither results nor secrets.
func actionAttributes(in map[string]resource.Attribute) map[string]action.Attribute {
	out := make(map[string]action.Attribute, len(in))
	for name, a := range in {
		out[name] = actionAttribute(a)
	}
	return out
}

func actionAttribute(in resource.Attribute) action.Attribute {
	switch a := in.(type) {
	case resource.StringAttribute:
		return action.StringAttribute{MarkdownDescription: a.MarkdownDescription, Required: a.Required, Optional: a.Optional, CustomType: a.CustomType, Validators: a.Validators}
	case resource.Int64Attribute:
		return action.Int64Attribute{MarkdownDescription: a.MarkdownDescription, Required: a.Required, Optional: a.Optional, Validators: a.Validators}
	case resource.BoolAttribute:
		return action.BoolAttribute{MarkdownDescription: a.MarkdownDescription, Required: a.Required, Optional: a.Optional, Validators: a.Validators}
	case resource.ListAttribute:
		return action.ListAttribute{MarkdownDescription: a.MarkdownDescription, Required: a.Required, Optional: a.Optional, ElementType: a.ElementType, Validators: a.Validators}
	case resource.MapAttribute:
		return action.MapAttribute{MarkdownDescription: a.MarkdownDescription, Required: a.Required, Optional: a.Optional, ElementType: a.ElementType, Validators: a.Validators}
	case resource.SingleNestedAttribute:
		return action.SingleNestedAttribute{
			MarkdownDescription: a.MarkdownDescription, Required: a.Required, Optional: a.Optional,
			Attributes: actionAttributes(a.Attributes), Validators: a.Validators,
		}
	}
	panic(fmt.Sprintf("no action form of %T", in))
}

// ephemeralAttributes converts the attributes of a resource to those of an ephemeral resource.
func ephemeralAttributes(in map[string]resource.Attribute) map[string]ephemeral.Attribute {
	out := make(map[string]ephemeral.Attribute, len(in))
	for name, a := range in {
		out[name] = ephemeralAttribute(a)
	}
	return out
}

func ephemeralAttribute(in resource.Attribute) ephemeral.Attribute {
	switch a := in.(type) {
	case resource.StringAttribute:
		return ephemeral.StringAttribute{
			MarkdownDescription: a.MarkdownDescription, Required: a.Required, Optional: a.Optional, Computed: a.Computed,
			CustomType: a.CustomType, Validators: a.Validators,
		}
	case resource.Int64Attribute:
		return ephemeral.Int64Attribute{MarkdownDescription: a.MarkdownDescription, Required: a.Required, Optional: a.Optional, Computed: a.Computed, Validators: a.Validators}
	case resource.BoolAttribute:
		return ephemeral.BoolAttribute{MarkdownDescription: a.MarkdownDescription, Required: a.Required, Optional: a.Optional, Computed: a.Computed, Validators: a.Validators}
	case resource.ListAttribute:
		return ephemeral.ListAttribute{
			MarkdownDescription: a.MarkdownDescription, Required: a.Required, Optional: a.Optional, Computed: a.Computed,
			ElementType: a.ElementType, Validators: a.Validators,
		}
	case resource.MapAttribute:
		return ephemeral.MapAttribute{
			MarkdownDescription: a.MarkdownDescription, Required: a.Required, Optional: a.Optional, Computed: a.Computed,
			ElementType: a.ElementType, Validators: a.Validators,
		}
	case resource.MapNestedAttribute:
		return ephemeral.MapNestedAttribute{
			MarkdownDescription: a.MarkdownDescription, Required: a.Required, Optional: a.Optional, Computed: a.Computed,
			NestedObject: ephemeral.NestedAttributeObject{Attributes: ephemeralAttributes(a.NestedObject.Attributes)}, Validators: a.Validators,
		}
	case resource.SingleNestedAttribute:
		return ephemeral.SingleNestedAttribute{
			MarkdownDescription: a.MarkdownDescription, Required: a.Required, Optional: a.Optional, Computed: a.Computed,
			Attributes: ephemeralAttributes(a.Attributes), Validators: a.Validators,
		}
	}
	panic(fmt.Sprintf("no ephemeral form of %T", in))
}

// listAttributes converts optional attributes of a resource to those of a list resource.
func listAttributes(in map[string]resource.Attribute) map[string]list.Attribute {
	out := make(map[string]list.Attribute, len(in))
	for name, attribute := range in {
		switch a := attribute.(type) {
		case resource.StringAttribute:
			out[name] = list.StringAttribute{MarkdownDescription: a.MarkdownDescription, Optional: true, Validators: a.Validators}
		case resource.MapAttribute:
			out[name] = list.MapAttribute{MarkdownDescription: a.MarkdownDescription, Optional: true, ElementType: a.ElementType, Validators: a.Validators}
		default:
			panic(fmt.Sprintf("no list form of %T", attribute))
		}
	}
	return out
}

// providerAttributes converts optional attributes of a resource to those of a provider.
func providerAttributes(in map[string]resource.Attribute) map[string]provider.Attribute {
	out := make(map[string]provider.Attribute, len(in))
	for name, a := range in {
		out[name] = providerAttribute(a)
	}
	return out
}

func providerAttribute(in resource.Attribute) provider.Attribute {
	switch a := in.(type) {
	case resource.StringAttribute:
		return provider.StringAttribute{MarkdownDescription: a.MarkdownDescription, Optional: true, Sensitive: a.Sensitive, CustomType: a.CustomType, Validators: a.Validators}
	case resource.Int64Attribute:
		return provider.Int64Attribute{MarkdownDescription: a.MarkdownDescription, Optional: true, Sensitive: a.Sensitive, Validators: a.Validators}
	case resource.Float64Attribute:
		return provider.Float64Attribute{MarkdownDescription: a.MarkdownDescription, Optional: true, Sensitive: a.Sensitive, Validators: a.Validators}
	case resource.BoolAttribute:
		return provider.BoolAttribute{MarkdownDescription: a.MarkdownDescription, Optional: true, Sensitive: a.Sensitive, Validators: a.Validators}
	case resource.ListAttribute:
		return provider.ListAttribute{MarkdownDescription: a.MarkdownDescription, Optional: true, Sensitive: a.Sensitive, ElementType: a.ElementType, Validators: a.Validators}
	case resource.MapAttribute:
		return provider.MapAttribute{MarkdownDescription: a.MarkdownDescription, Optional: true, Sensitive: a.Sensitive, ElementType: a.ElementType, Validators: a.Validators}
	case resource.SingleNestedAttribute:
		return provider.SingleNestedAttribute{
			MarkdownDescription: a.MarkdownDescription, Optional: true, Sensitive: a.Sensitive,
			Attributes: providerAttributes(a.Attributes), Validators: a.Validators,
		}
	}
	panic(fmt.Sprintf("no provider form of %T", in))
}

func dotted(at []string) string { return strings.Join(at, ".") }

func hasPathPrefix(p, prefix string) bool { return strings.HasPrefix(p, prefix+".") }
