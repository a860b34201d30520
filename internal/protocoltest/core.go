package protocoltest

import (
	"fmt"
	"maps"
	"slices"

	"github.com/hashicorp/terraform-plugin-go/tfprotov6"
	"github.com/hashicorp/terraform-plugin-go/tftypes"
)

// What follows is core's part: how it merges configuration and state, and what it holds a provider to.

func attributesOf(v tftypes.Value) map[string]tftypes.Value {
	var m map[string]tftypes.Value
	if v.IsNull() || !v.IsKnown() {
		return m
	}
	_ = v.As(&m)
	return m
}

// single gives the nested attributes of an attribute that is one object.
func single(a *tfprotov6.SchemaAttribute) ([]*tfprotov6.SchemaAttribute, bool) {
	if a.NestedType == nil || a.NestedType.Nesting != tfprotov6.SchemaObjectNestingModeSingle {
		return nil, false
	}
	return a.NestedType.Attributes, true
}

// proposedNew merges the configuration with the prior state: what is computed and not configured keeps its value.
func proposedNew(schema []*tfprotov6.SchemaAttribute, prior, config tftypes.Value) tftypes.Value {
	if config.IsNull() || !config.IsKnown() {
		return config
	}
	before, now := attributesOf(prior), attributesOf(config)
	out := make(map[string]tftypes.Value, len(schema))
	for _, a := range schema {
		c := now[a.Name]
		p, ok := before[a.Name]
		if !ok {
			p = tftypes.NewValue(c.Type(), nil)
		}
		nested, isSingle := single(a)
		switch {
		case a.WriteOnly:
			out[a.Name] = tftypes.NewValue(c.Type(), nil)
		case a.Computed && c.IsNull():
			out[a.Name] = p
		case isSingle:
			out[a.Name] = proposedNew(nested, p, c)
		default:
			out[a.Name] = c
		}
	}
	return tftypes.NewValue(config.Type(), out)
}

// planFaults lists where a plan does not keep to the configuration.
func planFaults(at string, schema []*tfprotov6.SchemaAttribute, prior, config, planned tftypes.Value) []string {
	var out []string
	before, now, then := attributesOf(prior), attributesOf(config), attributesOf(planned)
	for _, a := range schema {
		name := at + a.Name
		c, p := now[a.Name], then[a.Name]
		nested, isSingle := single(a)
		switch {
		case a.WriteOnly:
			if !p.IsNull() {
				out = append(out, name+" is write-only and planned with a value")
			}
		case a.Computed && c.IsNull():
		case p.Equal(c):
		case isSingle && c.IsKnown() && !c.IsNull() && p.IsKnown() && !p.IsNull():
			out = append(out, planFaults(name+".", nested, before[a.Name], c, p)...)
		case p.Equal(before[a.Name]) && !c.IsNull() && !p.IsNull(): // the same in other words, as core understands it
		default:
			out = append(out, fmt.Sprintf("%s is configured as %s and planned as %s", name, c, p))
		}
	}
	return out
}

// resultFaults lists where a result is not what was planned, or not known.
func resultFaults(at string, planned, result tftypes.Value) []string {
	if !result.IsFullyKnown() && (result.Type().Is(tftypes.Object{}) && result.IsKnown()) {
		var out []string
		then := attributesOf(planned)
		for _, name := range slices.Sorted(maps.Keys(attributesOf(result))) {
			out = append(out, resultFaults(at+"."+name, then[name], attributesOf(result)[name])...)
		}
		return out
	}
	if !result.IsFullyKnown() {
		return []string{at + " is still unknown"}
	}
	if planned.Type() == nil || !planned.IsKnown() || planned.Equal(result) {
		return nil
	}
	if planned.IsNull() || result.IsNull() || !planned.Type().Is(tftypes.Object{}) {
		return []string{fmt.Sprintf("%s was planned as %s and is %s", at, planned, result)}
	}
	var out []string
	then, now := attributesOf(planned), attributesOf(result)
	for _, name := range slices.Sorted(maps.Keys(now)) {
		out = append(out, resultFaults(at+"."+name, then[name], now[name])...)
	}
	return out
}

func withoutWriteOnly(schema []*tfprotov6.SchemaAttribute, v tftypes.Value) tftypes.Value {
	m := attributesOf(v)
	for _, a := range schema {
		if a.WriteOnly {
			m[a.Name] = tftypes.NewValue(a.ValueType(), nil)
		}
	}
	return tftypes.NewValue(v.Type(), m)
}

func writeOnlySet(schema []*tfprotov6.SchemaAttribute, v tftypes.Value) []string {
	var out []string
	m := attributesOf(v)
	for _, a := range schema {
		if value, ok := m[a.Name]; ok && a.WriteOnly && !value.IsNull() {
			out = append(out, a.Name)
		}
	}
	return out
}
