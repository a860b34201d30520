package provider

import (
	"context"
	"slices"

	"github.com/hashicorp/terraform-plugin-framework/attr"
	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/provider"
	"github.com/hashicorp/terraform-plugin-framework/types"
	"github.com/hashicorp/terraform-plugin-log/tflog"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// providerData is what a configured provider hands to its constructs.
type providerData struct {
	engine    *sandboxcore.Engine
	registry  *sandboxcore.Registry
	principal principal
	// secrets are the named values that are known. unknownSecrets are names whose value is not known yet, allUnknown says
	// that not even the names are.
	secrets        map[string]string
	unknownSecrets map[string]bool
	allUnknown     bool
}

// configured gives the provider data of a construct. Nil is normal before the provider is configured (validation).
func configured(construct string, data any, diags *diag.Diagnostics) *providerData {
	if data == nil {
		return nil
	}
	d, ok := data.(*providerData)
	if !ok {
		diags.Append(providerDataError(construct, data))
	}
	return d
}

// readSecrets reads the provider's secrets. A value that is not known at plan is left out: what refers to it waits for
// the apply.
func (d *providerData) readSecrets(ctx context.Context, req provider.ConfigureRequest, resp *provider.ConfigureResponse) {
	d.secrets, d.unknownSecrets = map[string]string{}, map[string]bool{}
	var secrets types.Map
	resp.Diagnostics.Append(req.Config.GetAttribute(ctx, path.Root("secrets"), &secrets)...)
	d.allUnknown = secrets.IsUnknown()
	for name, v := range secrets.Elements() {
		value, ok := v.(types.String)
		switch {
		case !ok || value.IsNull():
		case value.IsUnknown():
			d.unknownSecrets[name] = true
		default:
			d.secrets[name] = value.ValueString()
		}
	}
}

// secretsKnown reports whether every secret that secretEnv names is known, or known to be missing.
func (d *providerData) secretsKnown(secretEnv map[string]string) bool {
	if len(secretEnv) == 0 {
		return true
	}
	if d.allUnknown {
		return false
	}
	for _, name := range secretEnv {
		if d.unknownSecrets[name] {
			return false
		}
	}
	return true
}

// checkSecrets refuses, at plan, names that the provider's secrets do not have. Values that are not known are no obstacle.
func (d *providerData) checkSecrets(secretEnv map[string]string) error {
	if !d.secretsKnown(secretEnv) {
		return nil
	}
	_, err := d.engine.ResolveSecrets(secretEnv)
	return err
}

// secretValues are all values that texts of this request must not show.
func (d *providerData) secretValues(more ...map[string]string) []string {
	var out []string
	for _, m := range append([]map[string]string{d.secrets}, more...) {
		for _, v := range m {
			if len(v) >= sandboxcore.MinSecretBytes {
				out = append(out, v)
			}
		}
	}
	slices.Sort(out)
	return out
}

// request prepares one request: log entries that mask its secrets, and a redactor for its diagnostics.
func (d *providerData) request(ctx context.Context, writeOnly map[string]string) (context.Context, *sandboxcore.Redactor) {
	values := d.secretValues(writeOnly)
	if len(values) == 0 {
		return ctx, nil
	}
	return tflog.MaskLogStrings(ctx, values...), sandboxcore.NewRedactor(values...)
}

// writeOnlyEnv reads env_wo from the configuration. Its values never enter a model: a model that is set as state
// together with an error would carry them to Terraform, which then discards the whole object.
func writeOnlyEnv(ctx context.Context, config attributeReader) (map[string]string, diag.Diagnostics) {
	var v types.Map
	diags := config.GetAttribute(ctx, path.Root("env_wo"), &v)
	out, known := stringMap(v)
	if !known {
		return nil, diags
	}
	return out, diags
}

// stringMap gives a map of strings: nil for null, empty for empty. The second result is false when anything of it is
// unknown.
func stringMap(v types.Map) (map[string]string, bool) {
	if v.IsUnknown() {
		return nil, false
	}
	if v.IsNull() {
		return nil, true
	}
	out := make(map[string]string, len(v.Elements()))
	for k, e := range v.Elements() {
		s, ok := e.(types.String)
		if !ok || s.IsUnknown() {
			return nil, false
		}
		out[k] = s.ValueString()
	}
	return out, true
}

// stringList is the same for a list.
func stringList(v types.List) ([]string, bool) {
	if v.IsUnknown() {
		return nil, false
	}
	if v.IsNull() {
		return nil, true
	}
	out := make([]string, 0, len(v.Elements()))
	for _, e := range v.Elements() {
		s, ok := e.(types.String)
		if !ok || s.IsUnknown() {
			return nil, false
		}
		out = append(out, s.ValueString())
	}
	return out, true
}

func mapValue(m map[string]string) types.Map {
	if m == nil {
		return types.MapNull(types.StringType)
	}
	out := make(map[string]attr.Value, len(m))
	for k, v := range m {
		out[k] = types.StringValue(v)
	}
	return types.MapValueMust(types.StringType, out)
}

func listValue(l []string) types.List {
	if l == nil {
		return types.ListNull(types.StringType)
	}
	v, _ := stringsValue(l).(types.List)
	return v
}

func hasUnknown(v types.List) bool {
	_, known := stringList(v)
	return !known
}
