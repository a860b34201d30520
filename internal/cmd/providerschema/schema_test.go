package main

import (
	"encoding/json"
	"testing"

	"github.com/hashicorp/terraform-plugin-go/tfprotov6"
	"github.com/hashicorp/terraform-plugin-go/tftypes"
)

func TestConvertWritesTerraformsFormat(t *testing.T) {
	schema := &tfprotov6.Schema{Version: 3, Block: &tfprotov6.SchemaBlock{
		Description: "It *is*.", DescriptionKind: tfprotov6.StringKindMarkdown,
		Attributes: []*tfprotov6.SchemaAttribute{
			{Name: "plain", Type: tftypes.String, Required: true, Description: "p"},
			{Name: "list", Type: tftypes.List{ElementType: tftypes.Number}, Optional: true, Computed: true},
			{Name: "object", Type: tftypes.Object{AttributeTypes: map[string]tftypes.Type{"a": tftypes.Bool}}, Computed: true},
			{Name: "secret", Type: tftypes.Map{ElementType: tftypes.String}, Optional: true, Sensitive: true, WriteOnly: true},
			{Name: "nested", Optional: true, NestedType: &tfprotov6.SchemaObject{
				Nesting:    tfprotov6.SchemaObjectNestingModeSingle,
				Attributes: []*tfprotov6.SchemaAttribute{{Name: "inner", Type: tftypes.String, Optional: true}},
			}},
		},
	}}
	got, err := json.Marshal(convert(&tfprotov6.GetProviderSchemaResponse{
		Provider:        schema,
		ResourceSchemas: map[string]*tfprotov6.Schema{"r": {Block: &tfprotov6.SchemaBlock{}}},
		ActionSchemas:   map[string]*tfprotov6.ActionSchema{"act": {Schema: &tfprotov6.Schema{}}},
		Functions: map[string]*tfprotov6.Function{"f": {
			Summary: "s", Return: &tfprotov6.FunctionReturn{Type: tftypes.Bool},
			Parameters: []*tfprotov6.FunctionParameter{{Name: "x", Type: tftypes.DynamicPseudoType}},
		}},
	}, &tfprotov6.GetResourceIdentitySchemasResponse{IdentitySchemas: map[string]*tfprotov6.ResourceIdentitySchema{
		"r": {IdentityAttributes: []*tfprotov6.ResourceIdentitySchemaAttribute{{Name: "id", Type: tftypes.String, RequiredForImport: true}}},
	}}))
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"provider":{"version":3,"block":{"attributes":{` +
		`"list":{"type":["list","number"],"description_kind":"plain","optional":true,"computed":true},` +
		`"nested":{"nested_type":{"attributes":{"inner":{"type":"string","description_kind":"plain","optional":true}},"nesting_mode":"single"},"description_kind":"plain","optional":true},` +
		`"object":{"type":["object",{"a":"bool"}],"description_kind":"plain","computed":true},` +
		`"plain":{"type":"string","description":"p","description_kind":"plain","required":true},` +
		`"secret":{"type":["map","string"],"description_kind":"plain","optional":true,"sensitive":true,"write_only":true}},` +
		`"description":"It *is*.","description_kind":"markdown"}},` +
		`"resource_schemas":{"r":{"version":0,"block":{"description_kind":"plain"}}},` +
		`"action_schemas":{"act":{"block":{}}},` +
		`"functions":{"f":{"summary":"s","return_type":"bool","parameters":[{"name":"x","type":"dynamic"}]}},` +
		`"resource_identity_schemas":{"r":{"version":0,"attributes":{"id":{"type":"string","required_for_import":true}}}}}`
	if string(got) != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}
