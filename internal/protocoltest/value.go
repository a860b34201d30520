package protocoltest

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/big"

	"github.com/hashicorp/terraform-plugin-go/tfprotov6"
	"github.com/hashicorp/terraform-plugin-go/tftypes"
)

// Config is a configuration: attribute name to string, bool, int, float64, []any, []string, map[string]any,
// map[string]string, Config, tftypes.Value, Unknown or nil.
type Config map[string]any

type unknown struct{}

// Unknown stands for a value that is not known yet.
var Unknown = unknown{}

// With gives a copy of the configuration with other values; a nil value removes one.
func (c Config) With(changes Config) Config {
	out := Config{}
	maps.Copy(out, c)
	maps.Copy(out, changes)
	return out
}

func (s *Server) value(schema *tfprotov6.Schema, c Config) tftypes.Value {
	s.tb.Helper()
	v, err := valueOf(schema.ValueType(), map[string]any(c))
	s.must("build a configuration", err)
	return v
}

func valueOf(t tftypes.Type, v any) (tftypes.Value, error) {
	switch x := v.(type) {
	case nil:
		return tftypes.NewValue(t, nil), nil
	case unknown:
		return tftypes.NewValue(t, tftypes.UnknownValue), nil
	case tftypes.Value:
		return x, nil
	case Config:
		return valueOf(t, map[string]any(x))
	case []string:
		l := make([]any, len(x))
		for i, e := range x {
			l[i] = e
		}
		return valueOf(t, l)
	case map[string]string:
		m := make(map[string]any, len(x))
		for k, e := range x {
			m[k] = e
		}
		return valueOf(t, m)
	case []any:
		return listOf(t, x)
	case map[string]any:
		return mapOf(t, x)
	case int:
		return tftypes.NewValue(t, new(big.Float).SetInt64(int64(x))), nil
	case float64:
		return tftypes.NewValue(t, big.NewFloat(x)), nil
	case string, bool:
		return tftypes.NewValue(t, x), nil
	}
	return tftypes.Value{}, fmt.Errorf("no value of type %T can stand in a configuration", v)
}

func listOf(t tftypes.Type, in []any) (tftypes.Value, error) {
	l, ok := t.(tftypes.List)
	if !ok {
		return tftypes.Value{}, fmt.Errorf("a list stands where %s is wanted", t)
	}
	out := make([]tftypes.Value, len(in))
	for i, e := range in {
		v, err := valueOf(l.ElementType, e)
		if err != nil {
			return tftypes.Value{}, err
		}
		out[i] = v
	}
	return tftypes.NewValue(t, out), nil
}

func mapOf(t tftypes.Type, in map[string]any) (tftypes.Value, error) {
	out := map[string]tftypes.Value{}
	switch k := t.(type) {
	case tftypes.Map:
		for name, e := range in {
			v, err := valueOf(k.ElementType, e)
			if err != nil {
				return tftypes.Value{}, err
			}
			out[name] = v
		}
	case tftypes.Object:
		for name, at := range k.AttributeTypes {
			v, err := valueOf(at, in[name])
			if err != nil {
				return tftypes.Value{}, fmt.Errorf("%s: %w", name, err)
			}
			out[name] = v
		}
		for name := range in {
			if _, ok := k.AttributeTypes[name]; !ok {
				return tftypes.Value{}, fmt.Errorf("there is no attribute %q", name)
			}
		}
	default:
		return tftypes.Value{}, fmt.Errorf("a map stands where %s is wanted", t)
	}
	return tftypes.NewValue(t, out), nil
}

// Plain turns a value into what a Config holds: nil, Unknown, string, bool, float64, []any, map[string]any.
func Plain(v tftypes.Value) any {
	if !v.IsKnown() {
		return Unknown
	}
	if v.IsNull() {
		return nil
	}
	switch {
	case v.Type().Is(tftypes.String):
		var s string
		_ = v.As(&s)
		return s
	case v.Type().Is(tftypes.Bool):
		var b bool
		_ = v.As(&b)
		return b
	case v.Type().Is(tftypes.Number):
		n := new(big.Float)
		_ = v.As(&n)
		f, _ := n.Float64()
		return f
	case v.Type().Is(tftypes.List{}), v.Type().Is(tftypes.Set{}), v.Type().Is(tftypes.Tuple{}):
		var l []tftypes.Value
		_ = v.As(&l)
		out := make([]any, len(l))
		for i, e := range l {
			out[i] = Plain(e)
		}
		return out
	}
	var m map[string]tftypes.Value
	_ = v.As(&m)
	out := make(map[string]any, len(m))
	for k, e := range m {
		out[k] = Plain(e)
	}
	return out
}

// State is one object of a state.
type State struct {
	Type    string
	Value   tftypes.Value
	Private []byte
	// Identity is the identity of the object, in the form of Plain; nil when there is none.
	Identity map[string]any
	// Tainted: the apply that made it ended with an error.
	Tainted bool
}

// Exists reports whether there is an object.
func (s State) Exists() bool { return s.Type != "" && !s.Value.IsNull() }

// Get gives an attribute in the form of Plain; nested ones by further names.
func (s State) Get(names ...string) any { return get(s.Value, names) }

func get(v tftypes.Value, names []string) any {
	p := Plain(v)
	for _, n := range names {
		m, ok := p.(map[string]any)
		if !ok {
			return nil
		}
		p = m[n]
	}
	return p
}

// JSON gives the object the way a state file holds it, for searching it.
func (s State) JSON() string { return asJSON(s.Value) }

func asJSON(v tftypes.Value) string {
	b, err := json.Marshal(jsonable(Plain(v)))
	if err != nil {
		return err.Error()
	}
	return string(b)
}

func jsonable(v any) any {
	switch x := v.(type) {
	case unknown:
		return "(known after apply)"
	case []any:
		out := make([]any, len(x))
		for i, e := range x {
			out[i] = jsonable(e)
		}
		return out
	case map[string]any:
		out := make(map[string]any, len(x))
		for k, e := range x {
			out[k] = jsonable(e)
		}
		return out
	}
	return v
}
