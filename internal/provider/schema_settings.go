package provider

import (
	"context"
	"fmt"
	"math"
	"regexp"

	"github.com/hashicorp/terraform-plugin-framework-validators/float64validator"
	"github.com/hashicorp/terraform-plugin-framework-validators/listvalidator"
	"github.com/hashicorp/terraform-plugin-framework-validators/mapvalidator"
	"github.com/hashicorp/terraform-plugin-framework-validators/stringvalidator"
	"github.com/hashicorp/terraform-plugin-framework/attr"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema"
	"github.com/hashicorp/terraform-plugin-framework/schema/validator"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// settingsAttribute makes the nested attribute of one backend from its list of settings. All are optional: defaults live
// in the resolved profile, so that what a user left out stays null.
func settingsAttribute(description string, settings []sandboxcore.Setting) schema.SingleNestedAttribute {
	return schema.SingleNestedAttribute{
		MarkdownDescription: description,
		Optional:            true,
		Attributes:          settingsAttributes(settings),
	}
}

func settingsAttributes(settings []sandboxcore.Setting) map[string]schema.Attribute {
	out := make(map[string]schema.Attribute, len(settings))
	for _, s := range settings {
		out[s.Name] = settingAttribute(s)
	}
	return out
}

func settingAttribute(s sandboxcore.Setting) schema.Attribute {
	switch s.Kind {
	case sandboxcore.KindInt, sandboxcore.KindFloat:
		a := schema.Float64Attribute{MarkdownDescription: s.Description, Optional: true, Sensitive: s.Sensitive}
		if s.Kind == sandboxcore.KindInt {
			a.Validators = append(a.Validators, wholeNumber{})
		}
		if s.Min != nil {
			a.Validators = append(a.Validators, float64validator.AtLeast(*s.Min))
		}
		if s.Max != nil {
			a.Validators = append(a.Validators, float64validator.AtMost(*s.Max))
		}
		return a
	case sandboxcore.KindBool:
		return schema.BoolAttribute{MarkdownDescription: s.Description, Optional: true, Sensitive: s.Sensitive}
	case sandboxcore.KindStringList:
		a := schema.ListAttribute{MarkdownDescription: s.Description, Optional: true, Sensitive: s.Sensitive, ElementType: types.StringType}
		a.Validators = append(a.Validators, listvalidator.NoNullValues())
		if v := stringValidators(s); len(v) > 0 {
			a.Validators = append(a.Validators, listvalidator.ValueStringsAre(v...))
		}
		return a
	case sandboxcore.KindStringMap:
		a := schema.MapAttribute{MarkdownDescription: s.Description, Optional: true, Sensitive: s.Sensitive, ElementType: types.StringType}
		a.Validators = append(a.Validators, mapvalidator.NoNullValues())
		if v := stringValidators(s); len(v) > 0 {
			a.Validators = append(a.Validators, mapvalidator.ValueStringsAre(v...))
		}
		return a
	case sandboxcore.KindObject:
		return schema.SingleNestedAttribute{MarkdownDescription: s.Description, Optional: true, Sensitive: s.Sensitive, Attributes: settingsAttributes(s.Fields)}
	default:
		return schema.StringAttribute{MarkdownDescription: s.Description, Optional: true, Sensitive: s.Sensitive, Validators: stringValidators(s)}
	}
}

func stringValidators(s sandboxcore.Setting) []validator.String {
	var out []validator.String
	if len(s.OneOf) > 0 {
		out = append(out, oneOf(s.OneOf...))
	}
	if s.Pattern != "" {
		hint := s.PatternHint
		if hint == "" {
			hint = "a text that matches " + s.Pattern
		}
		out = append(out, stringvalidator.RegexMatches(regexp.MustCompile(s.Pattern), "must be "+hint))
	}
	return out
}

// unknownPaths are the dotted paths, relative to the construct, of values that are not known yet.
type unknownPaths map[string]bool

func (u unknownPaths) add(at ...string) { u[dotted(at)] = true }

// under reports whether anything at, above or below the path is unknown.
func (u unknownPaths) under(at ...string) bool {
	key := dotted(at)
	for p := range u {
		if p == key || hasPathPrefix(p, key) || hasPathPrefix(key, p) {
			return true
		}
	}
	return false
}

// settingsFromObject turns a nested attribute into settings: null attributes are absent, unknown ones are absent and noted.
// The second result is false when the whole object is null.
func settingsFromObject(obj types.Object, unknown unknownPaths, at ...string) (sandboxcore.Settings, bool, error) {
	if obj.IsUnknown() {
		unknown.add(at...)
		return sandboxcore.Settings{}, true, nil
	}
	if obj.IsNull() {
		return nil, false, nil
	}
	out := sandboxcore.Settings{}
	for name, v := range obj.Attributes() {
		value, err := settingValue(v, unknown, append(append([]string{}, at...), name))
		if err != nil {
			return nil, true, err
		}
		if value != nil {
			out[name] = value
		}
	}
	return out, true, nil
}

func settingValue(v attr.Value, unknown unknownPaths, at []string) (any, error) {
	if v.IsUnknown() {
		unknown.add(at...)
		return nil, nil
	}
	if v.IsNull() {
		return nil, nil
	}
	switch x := v.(type) {
	case types.String:
		return x.ValueString(), nil
	case types.Float64:
		return x.ValueFloat64(), nil
	case types.Bool:
		return x.ValueBool(), nil
	case types.List:
		out := make([]any, 0, len(x.Elements()))
		for _, e := range x.Elements() {
			value, err := settingValue(e, unknown, at)
			if err != nil {
				return nil, err
			}
			if value != nil {
				out = append(out, value)
			}
		}
		return out, nil
	case types.Map:
		out := make(map[string]any, len(x.Elements()))
		for k, e := range x.Elements() {
			value, err := settingValue(e, unknown, at)
			if err != nil {
				return nil, err
			}
			if value != nil {
				out[k] = value
			}
		}
		return out, nil
	case types.Object:
		s, _, err := settingsFromObject(x, unknown, at...)
		return map[string]any(s), err
	}
	return nil, fmt.Errorf("the setting %s has a value of type %T", dotted(at), v)
}

// oneOf is stringvalidator.OneOf under a name that says what it is for; every closed list of the schema goes through it.
func oneOf[T ~string](values ...T) validator.String {
	plain := make([]string, len(values))
	for i, v := range values {
		plain[i] = string(v)
	}
	return stringvalidator.OneOf(plain...)
}

// maxWhole is the largest number up to which a float64 has every whole one.
const maxWhole = 1 << 53

// wholeNumber refuses fractions, and what is too large to be counted. Whole numbers of nested attributes are float64 attributes with this validator, because
// the framework reports a fraction in an int64 attribute as a fault of the provider, and blames the whole object.
type wholeNumber struct{}

func (wholeNumber) Description(context.Context) string         { return "a whole number" }
func (wholeNumber) MarkdownDescription(context.Context) string { return "a whole number" }

func (wholeNumber) ValidateFloat64(_ context.Context, req validator.Float64Request, resp *validator.Float64Response) {
	switch v := req.ConfigValue; {
	case v.IsNull() || v.IsUnknown():
	case v.ValueFloat64() != math.Trunc(v.ValueFloat64()):
		resp.Diagnostics.Append(fractionError(req.Path, v.ValueFloat64()))
	case math.Abs(v.ValueFloat64()) > maxWhole:
		resp.Diagnostics.Append(hugeError(req.Path, v.ValueFloat64()))
	}
}
