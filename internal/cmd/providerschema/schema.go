package main

import (
	"github.com/hashicorp/terraform-plugin-go/tfprotov6"
	"github.com/hashicorp/terraform-plugin-go/tftypes"
)

// The types below are the JSON of `terraform providers schema -json`. The types of attributes write themselves the way
// that format wants them.

type providersJSON struct {
	FormatVersion string                   `json:"format_version"`
	Schemas       map[string]*providerJSON `json:"provider_schemas"`
}

type providerJSON struct {
	Provider           *schemaJSON              `json:"provider,omitempty"`
	Resources          map[string]*schemaJSON   `json:"resource_schemas,omitempty"`
	DataSources        map[string]*schemaJSON   `json:"data_source_schemas,omitempty"`
	EphemeralResources map[string]*schemaJSON   `json:"ephemeral_resource_schemas,omitempty"`
	ListResources      map[string]*schemaJSON   `json:"list_resource_schemas,omitempty"`
	Actions            map[string]*actionJSON   `json:"action_schemas,omitempty"`
	Functions          map[string]*functionJSON `json:"functions,omitempty"`
	Identities         map[string]*identityJSON `json:"resource_identity_schemas,omitempty"`
}

type schemaJSON struct {
	Version int64      `json:"version"`
	Block   *blockJSON `json:"block,omitempty"`
}

type actionJSON struct {
	Block *blockJSON `json:"block,omitempty"`
}

type blockJSON struct {
	Attributes      map[string]*attributeJSON   `json:"attributes,omitempty"`
	BlockTypes      map[string]*nestedBlockJSON `json:"block_types,omitempty"`
	Description     string                      `json:"description,omitempty"`
	DescriptionKind string                      `json:"description_kind,omitempty"`
	Deprecated      bool                        `json:"deprecated,omitempty"`
}

type nestedBlockJSON struct {
	NestingMode string     `json:"nesting_mode,omitempty"`
	Block       *blockJSON `json:"block,omitempty"`
	MinItems    int64      `json:"min_items,omitempty"`
	MaxItems    int64      `json:"max_items,omitempty"`
}

type attributeJSON struct {
	Type            tftypes.Type    `json:"type,omitempty"`
	NestedType      *nestedTypeJSON `json:"nested_type,omitempty"`
	Description     string          `json:"description,omitempty"`
	DescriptionKind string          `json:"description_kind,omitempty"`
	Deprecated      bool            `json:"deprecated,omitempty"`
	Required        bool            `json:"required,omitempty"`
	Optional        bool            `json:"optional,omitempty"`
	Computed        bool            `json:"computed,omitempty"`
	Sensitive       bool            `json:"sensitive,omitempty"`
	WriteOnly       bool            `json:"write_only,omitempty"`
}

type nestedTypeJSON struct {
	Attributes  map[string]*attributeJSON `json:"attributes,omitempty"`
	NestingMode string                    `json:"nesting_mode,omitempty"`
}

type functionJSON struct {
	Description        string           `json:"description,omitempty"`
	Summary            string           `json:"summary,omitempty"`
	DeprecationMessage string           `json:"deprecation_message,omitempty"`
	ReturnType         tftypes.Type     `json:"return_type"`
	Parameters         []*parameterJSON `json:"parameters,omitempty"`
	VariadicParameter  *parameterJSON   `json:"variadic_parameter,omitempty"`
}

type parameterJSON struct {
	Name        string       `json:"name,omitempty"`
	Description string       `json:"description,omitempty"`
	IsNullable  bool         `json:"is_nullable,omitempty"`
	Type        tftypes.Type `json:"type"`
}

type identityJSON struct {
	Version    int64                             `json:"version"`
	Attributes map[string]*identityAttributeJSON `json:"attributes,omitempty"`
}

type identityAttributeJSON struct {
	Type              tftypes.Type `json:"type"`
	Description       string       `json:"description,omitempty"`
	RequiredForImport bool         `json:"required_for_import,omitempty"`
	OptionalForImport bool         `json:"optional_for_import,omitempty"`
}

func convert(schemas *tfprotov6.GetProviderSchemaResponse, identities *tfprotov6.GetResourceIdentitySchemasResponse) *providerJSON {
	out := &providerJSON{
		Provider:           convertSchema(schemas.Provider),
		Resources:          mapped(schemas.ResourceSchemas, convertSchema),
		DataSources:        mapped(schemas.DataSourceSchemas, convertSchema),
		EphemeralResources: mapped(schemas.EphemeralResourceSchemas, convertSchema),
		ListResources:      mapped(schemas.ListResourceSchemas, convertSchema),
		Actions: mapped(schemas.ActionSchemas, func(a *tfprotov6.ActionSchema) *actionJSON {
			return &actionJSON{Block: convertSchema(a.Schema).Block}
		}),
		Functions: mapped(schemas.Functions, convertFunction),
	}
	if identities != nil {
		out.Identities = mapped(identities.IdentitySchemas, convertIdentity)
	}
	return out
}

func mapped[In, Out any](in map[string]In, convert func(In) Out) map[string]Out {
	out := make(map[string]Out, len(in))
	for name, value := range in {
		out[name] = convert(value)
	}
	return out
}

func convertSchema(s *tfprotov6.Schema) *schemaJSON {
	if s == nil {
		return &schemaJSON{Block: &blockJSON{}}
	}
	return &schemaJSON{Version: s.Version, Block: convertBlock(s.Block)}
}

func convertBlock(b *tfprotov6.SchemaBlock) *blockJSON {
	if b == nil {
		return &blockJSON{}
	}
	out := &blockJSON{
		Attributes:      convertAttributes(b.Attributes),
		BlockTypes:      make(map[string]*nestedBlockJSON, len(b.BlockTypes)),
		Description:     b.Description,
		DescriptionKind: kind(b.DescriptionKind),
		Deprecated:      b.Deprecated,
	}
	for _, nested := range b.BlockTypes {
		out.BlockTypes[nested.TypeName] = &nestedBlockJSON{
			NestingMode: blockModes[nested.Nesting],
			Block:       convertBlock(nested.Block),
			MinItems:    nested.MinItems,
			MaxItems:    nested.MaxItems,
		}
	}
	return out
}

var blockModes = map[tfprotov6.SchemaNestedBlockNestingMode]string{
	tfprotov6.SchemaNestedBlockNestingModeSingle: "single",
	tfprotov6.SchemaNestedBlockNestingModeList:   "list",
	tfprotov6.SchemaNestedBlockNestingModeSet:    "set",
	tfprotov6.SchemaNestedBlockNestingModeMap:    "map",
	tfprotov6.SchemaNestedBlockNestingModeGroup:  "group",
}

var objectModes = map[tfprotov6.SchemaObjectNestingMode]string{
	tfprotov6.SchemaObjectNestingModeSingle: "single",
	tfprotov6.SchemaObjectNestingModeList:   "list",
	tfprotov6.SchemaObjectNestingModeSet:    "set",
	tfprotov6.SchemaObjectNestingModeMap:    "map",
}

func convertAttributes(attributes []*tfprotov6.SchemaAttribute) map[string]*attributeJSON {
	out := make(map[string]*attributeJSON, len(attributes))
	for _, a := range attributes {
		converted := &attributeJSON{
			Type:            a.Type,
			Description:     a.Description,
			DescriptionKind: kind(a.DescriptionKind),
			Deprecated:      a.Deprecated,
			Required:        a.Required,
			Optional:        a.Optional,
			Computed:        a.Computed,
			Sensitive:       a.Sensitive,
			WriteOnly:       a.WriteOnly,
		}
		if a.NestedType != nil {
			converted.Type = nil
			converted.NestedType = &nestedTypeJSON{
				Attributes:  convertAttributes(a.NestedType.Attributes),
				NestingMode: objectModes[a.NestedType.Nesting],
			}
		}
		out[a.Name] = converted
	}
	return out
}

func convertFunction(f *tfprotov6.Function) *functionJSON {
	out := &functionJSON{
		Description:        f.Description,
		Summary:            f.Summary,
		DeprecationMessage: f.DeprecationMessage,
		ReturnType:         f.Return.Type,
		VariadicParameter:  convertParameter(f.VariadicParameter),
	}
	for _, parameter := range f.Parameters {
		out.Parameters = append(out.Parameters, convertParameter(parameter))
	}
	return out
}

func convertParameter(p *tfprotov6.FunctionParameter) *parameterJSON {
	if p == nil {
		return nil
	}
	return &parameterJSON{Name: p.Name, Description: p.Description, IsNullable: p.AllowNullValue, Type: p.Type}
}

func convertIdentity(s *tfprotov6.ResourceIdentitySchema) *identityJSON {
	out := &identityJSON{Version: s.Version, Attributes: make(map[string]*identityAttributeJSON, len(s.IdentityAttributes))}
	for _, a := range s.IdentityAttributes {
		out.Attributes[a.Name] = &identityAttributeJSON{
			Type: a.Type, Description: a.Description, RequiredForImport: a.RequiredForImport, OptionalForImport: a.OptionalForImport,
		}
	}
	return out
}

func kind(k tfprotov6.StringKind) string {
	if k == tfprotov6.StringKindMarkdown {
		return "markdown"
	}
	return "plain"
}
