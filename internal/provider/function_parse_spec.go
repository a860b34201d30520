package provider

import (
	"context"
	"fmt"

	"github.com/hashicorp/terraform-plugin-framework/attr"
	"github.com/hashicorp/terraform-plugin-framework/function"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

var _ function.Function = (*parseSpecFunction)(nil)

func newParseSpecFunction(reg *sandboxcore.Registry) *parseSpecFunction {
	return &parseSpecFunction{registry: reg}
}

// parseSpecFunction reads a spec back, for conditions and checks of modules that are handed one.
type parseSpecFunction struct {
	registry *sandboxcore.Registry
}

func (*parseSpecFunction) Metadata(_ context.Context, _ function.MetadataRequest, resp *function.MetadataResponse) {
	resp.Name = "parse_spec"
}

var (
	parsedIdentityTypes = map[string]attr.Type{"mode": types.StringType}
	parsedPolicyTypes   = map[string]attr.Type{
		"network_egress": types.StringType, "network_allow": types.ListType{ElemType: types.StringType},
		"fs_allow_read": types.ListType{ElemType: types.StringType}, "fs_allow_write": types.ListType{ElemType: types.StringType},
		"cpu": types.Float64Type, "memory_mb": types.Int64Type, "timeout": types.Float64Type, "strict": types.BoolType, "min_isolation": types.StringType,
	}
	parsedSpecTypes = map[string]attr.Type{
		"name": types.StringType, "type": types.StringType, "environment": types.StringType, "scope": types.StringType, "idle_timeout": types.Float64Type,
		"identity": types.ObjectType{AttrTypes: parsedIdentityTypes}, "policy": types.ObjectType{AttrTypes: parsedPolicyTypes},
		// What is in it depends on the backend.
		"settings": types.DynamicType,
	}
)

func (f *parseSpecFunction) Definition(_ context.Context, _ function.DefinitionRequest, resp *function.DefinitionResponse) {
	resp.Definition = function.Definition{
		Summary: "Read the spec of a profile",
		MarkdownDescription: "Gives the profile that a spec stands for, with the defaults that a spec leaves out: an object with `name`, `type`, `environment`, `scope`, " +
			"`idle_timeout`, `identity` (`mode`), `policy` (with every key of a profile's policy; what is not limited is null, lists without an entry are empty) and `settings` " +
			"(every setting of the backend; null where there is neither a value nor a default). A text that is no spec, was edited, or is newer than the provider is an error " +
			"with the code `AK1005`; a backend that this provider does not have, `AK1001`.",
		Parameters: []function.Parameter{
			function.StringParameter{Name: "spec", MarkdownDescription: "The `spec` of an `agentkernel_profile`."},
		},
		Return: function.ObjectReturn{AttributeTypes: parsedSpecTypes},
	}
}

func (f *parseSpecFunction) Run(ctx context.Context, req function.RunRequest, resp *function.RunResponse) {
	var spec string
	if resp.Error = req.Arguments.Get(ctx, &spec); resp.Error != nil {
		return
	}
	p, err := f.registry.ParseSpec(spec)
	if err != nil {
		resp.Error = argumentError(0, err)
		return
	}
	factory, _ := f.registry.Factory(p.Type)
	settings, err := completeSettings(ctx, factory.Settings, p.Settings)
	if err != nil {
		resp.Error = argumentError(0, err)
		return
	}
	resp.Error = resp.Result.Set(ctx, types.ObjectValueMust(parsedSpecTypes, map[string]attr.Value{
		"name": types.StringValue(p.Name), "type": types.StringValue(string(p.Type)), "environment": types.StringValue(string(p.Environment)),
		"scope": types.StringValue(string(p.Scope)), "idle_timeout": types.Float64Value(p.IdleTimeout),
		"identity": types.ObjectValueMust(parsedIdentityTypes, map[string]attr.Value{"mode": types.StringValue(string(p.Identity))}),
		"policy":   parsedPolicy(p.Policy), "settings": types.DynamicValue(settings),
	}))
}

func parsedPolicy(p sandboxcore.Policy) types.Object {
	minimum := types.StringNull()
	if p.MinIsolation != "" {
		minimum = types.StringValue(string(p.MinIsolation))
	}
	return types.ObjectValueMust(parsedPolicyTypes, map[string]attr.Value{
		"network_egress": types.StringValue(string(p.NetworkEgress)), "network_allow": stringsValue(p.NetworkAllow),
		"fs_allow_read": stringsValue(p.FSAllowRead), "fs_allow_write": stringsValue(p.FSAllowWrite),
		"cpu": types.Float64PointerValue(p.CPU), "memory_mb": types.Int64PointerValue(p.MemoryMB),
		"timeout": types.Float64Value(p.Timeout), "strict": types.BoolValue(p.Strict), "min_isolation": minimum,
	})
}

// completeSettings gives every known setting as a value: the one in s, else the default, else null. The type of a setting
// does not depend on whether it is set, so that two specs of one backend can stand in one list.
func completeSettings(ctx context.Context, known []sandboxcore.Setting, s sandboxcore.Settings) (types.Object, error) {
	kinds, values := map[string]attr.Type{}, map[string]attr.Value{}
	for _, k := range known {
		v, set := s[k.Name]
		if !set {
			v = k.Default
		}
		value, err := completeSetting(ctx, k, v)
		if err != nil {
			return types.Object{}, err
		}
		kinds[k.Name], values[k.Name] = value.Type(ctx), value
	}
	return types.ObjectValueMust(kinds, values), nil
}

func completeSetting(ctx context.Context, k sandboxcore.Setting, v any) (attr.Value, error) {
	unreadable := &sandboxcore.Error{
		Code: sandboxcore.CodeSpec, Attempted: "the spec was not read", Said: fmt.Sprintf("the setting %s has a value of type %T.", k.Name, v),
		Next: "Take the spec from agentkernel_profile (resource or data source) and do not edit it.",
	}
	switch k.Kind {
	case sandboxcore.KindInt, sandboxcore.KindFloat:
		switch n := v.(type) {
		case nil:
			return types.Float64Null(), nil
		case float64:
			return types.Float64Value(n), nil
		case int:
			return types.Float64Value(float64(n)), nil
		}
		return nil, unreadable
	case sandboxcore.KindBool:
		if v == nil {
			return types.BoolNull(), nil
		}
		b, ok := v.(bool)
		if !ok {
			return nil, unreadable
		}
		return types.BoolValue(b), nil
	case sandboxcore.KindStringList:
		if v == nil {
			return types.ListNull(types.StringType), nil
		}
		return stringsValue(sandboxcore.Settings{k.Name: v}.Strings(k.Name)), nil
	case sandboxcore.KindStringMap:
		if v == nil {
			return types.MapNull(types.StringType), nil
		}
		out := map[string]attr.Value{}
		for name, text := range (sandboxcore.Settings{k.Name: v}).StringMap(k.Name) {
			out[name] = types.StringValue(text)
		}
		return types.MapValueMust(types.StringType, out), nil
	case sandboxcore.KindObject:
		object, err := completeSettings(ctx, k.Fields, sandboxcore.Settings{k.Name: v}.Object(k.Name))
		if err != nil || v != nil {
			return object, err
		}
		return types.ObjectNull(object.AttributeTypes(ctx)), nil
	default:
		if v == nil {
			return types.StringNull(), nil
		}
		text, ok := v.(string)
		if !ok {
			return nil, unreadable
		}
		return types.StringValue(text), nil
	}
}
