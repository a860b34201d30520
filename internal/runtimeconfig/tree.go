package runtimeconfig

import (
	"bytes"
	"encoding/json"
	"maps"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// object is a mapping in the order in which it is written. Values are string, float64, bool, []any, map[string]any or
// object.
type object []member

type member struct {
	key   string
	value any
}

func (o *object) put(key string, value any) { *o = append(*o, member{key, value}) }

// plain gives the object without its order, for JSON, which sorts.
func (o object) plain() map[string]any {
	out := make(map[string]any, len(o))
	for _, m := range o {
		out[m.key] = plain(m.value)
	}
	return out
}

func plain(v any) any {
	switch x := v.(type) {
	case object:
		return x.plain()
	case float64:
		return json.Number(sandboxcore.FormatNumber(x))
	case []any:
		out := make([]any, len(x))
		for i, e := range x {
			out[i] = plain(e)
		}
		return out
	case map[string]any:
		out := make(map[string]any, len(x))
		for k, e := range x {
			out[k] = plain(e)
		}
		return out
	}
	return v
}

func jsonText(v any) (string, error) {
	b, err := json.Marshal(plain(v))
	return string(b), err
}

func yamlText(o object) (string, error) {
	var b bytes.Buffer
	e := yaml.NewEncoder(&b)
	e.SetIndent(2)
	if err := e.Encode(node(o)); err != nil {
		return "", err
	}
	if err := e.Close(); err != nil {
		return "", err
	}
	return b.String(), nil
}

func node(v any) *yaml.Node {
	switch x := v.(type) {
	case object:
		n := &yaml.Node{Kind: yaml.MappingNode}
		for _, m := range x {
			n.Content = append(n.Content, text(m.key), node(m.value))
		}
		if len(x) == 0 {
			n.Style = yaml.FlowStyle
		}
		return n
	case map[string]any:
		var o object
		for _, k := range slices.Sorted(maps.Keys(x)) {
			o.put(k, x[k])
		}
		return node(o)
	case []any:
		n := &yaml.Node{Kind: yaml.SequenceNode}
		for _, e := range x {
			n.Content = append(n.Content, node(e))
		}
		if len(x) == 0 {
			n.Style = yaml.FlowStyle
		}
		return n
	case float64:
		n := &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!int", Value: sandboxcore.FormatNumber(x)}
		if strings.Contains(n.Value, ".") {
			n.Tag = "!!float"
		}
		return n
	case bool:
		n := &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!bool", Value: "false"}
		if x {
			n.Value = "true"
		}
		return n
	case string:
		return text(x)
	}
	return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!null", Value: "null"}
}

// What may stand without quotes: words that no version of YAML takes for anything but a string. Agent Kernel reads YAML
// 1.1, where `on` and `no` are booleans and `1:30` is a number, and a profile may be called that.
var (
	word     = regexp.MustCompile(`^[A-Za-z_/][A-Za-z0-9_./-]*(:[A-Za-z0-9_./-]+)*$`)
	reserved = []string{"y", "n", "yes", "no", "on", "off", "true", "false", "null", "none"}
)

func text(s string) *yaml.Node {
	n := &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: s}
	if !word.MatchString(s) || slices.Contains(reserved, strings.ToLower(s)) {
		n.Style = yaml.DoubleQuotedStyle
	}
	return n
}
