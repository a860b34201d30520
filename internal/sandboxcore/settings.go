package sandboxcore

// SettingKind is the shape of a setting's value.
type SettingKind int

// Shapes of settings.
const (
	KindString     SettingKind = iota
	KindInt                    // whole number, float64 in Settings
	KindFloat                  // float64
	KindBool                   // bool
	KindStringList             // []any of string; order has no meaning unless Ordered
	KindStringMap              // map[string]any of string
	KindObject                 // map[string]any, with Fields
)

// UpdateMode says what a changed setting does to a sandbox that exists.
type UpdateMode int

// Update modes. The zero value is the safe one.
const (
	UpdateReplace  UpdateMode = iota // the sandbox is replaced
	UpdateRecorded                   // only recorded
	UpdateLive                       // the backend changes it in place
)

// Setting describes one key of a backend's settings, of a profile or of the provider. The Terraform attribute, the
// check of the values, the canonical spec and the documentation all come from it.
type Setting struct {
	Name string
	Kind SettingKind
	// Description is a Markdown sentence or more: meaning, unit, default, what it enforces.
	Description string
	// Default is the value of an absent key, frozen for spec version 1; nil: no default. Never present in a spec.
	Default any
	// OneOf limits a string to these values.
	OneOf []string
	// Min and Max limit a number, inclusive.
	Min, Max *float64
	// Pattern limits a string (RE2, anchored by the author); PatternHint says it in words.
	Pattern     string
	PatternHint string
	// Ordered: the order of a list matters, so that it is kept in the spec.
	Ordered bool
	// Sensitive is only for provider settings.
	Sensitive bool
	Update    UpdateMode
	// Fields of a KindObject.
	Fields []Setting
}

// String gives the string value of key, or def when absent.
func (s Settings) String(key, def string) string {
	if v, ok := s[key].(string); ok {
		return v
	}
	return def
}

// Bool gives the bool value of key, or def when absent.
func (s Settings) Bool(key string, def bool) bool {
	if v, ok := s[key].(bool); ok {
		return v
	}
	return def
}

// Float gives the numeric value of key, or def when absent.
func (s Settings) Float(key string, def float64) float64 {
	if v, ok := s[key].(float64); ok {
		return v
	}
	return def
}

// Strings gives the list value of key, nil when absent.
func (s Settings) Strings(key string) []string {
	l, ok := s[key].([]any)
	if !ok {
		return nil
	}
	out := make([]string, 0, len(l))
	for _, e := range l {
		if v, ok := e.(string); ok {
			out = append(out, v)
		}
	}
	return out
}

// StringMap gives the map value of key, nil when absent.
func (s Settings) StringMap(key string) map[string]string {
	m, ok := s[key].(map[string]any)
	if !ok {
		return nil
	}
	out := make(map[string]string, len(m))
	for k, e := range m {
		if v, ok := e.(string); ok {
			out[k] = v
		}
	}
	return out
}

// Object gives the nested settings of key, nil when absent.
func (s Settings) Object(key string) Settings {
	if m, ok := s[key].(map[string]any); ok {
		return m
	}
	return nil
}
