package protocoltest

import (
	"github.com/hashicorp/terraform-plugin-go/tfprotov6"
	"github.com/hashicorp/terraform-plugin-go/tftypes"
)

// Listed is one result of a list resource.
type Listed struct {
	DisplayName string
	Identity    map[string]any
	// Resource is the whole object; it does not exist unless it was asked for.
	Resource State
	Diags    Diags
}

// List asks a list resource, as `terraform query` does. It stops asking after stop results when that is not 0.
func (s *Server) List(typeName string, config Config, limit int64, includeResource bool, stop int) []Listed {
	s.tb.Helper()
	server, ok := s.server.(tfprotov6.ProviderServerWithListResource) //nolint:staticcheck // the interface of this version of the protocol
	schema := s.schema.ListResourceSchemas[typeName]
	if !ok || schema == nil {
		s.tb.Fatalf("the provider has no list resource %s", typeName)
	}
	packed := s.pack(schema, s.value(schema, config))
	validated, err := server.ValidateListResourceConfig(s.context(), &tfprotov6.ValidateListResourceConfigRequest{TypeName: typeName, Config: packed})
	s.must("validate the list "+typeName, err)
	if d := Diags(validated.Diagnostics); d.HasError() {
		return []Listed{{Diags: d}}
	}
	stream, err := server.ListResource(s.context(), &tfprotov6.ListResourceRequest{
		TypeName: typeName, Config: packed, Limit: limit, IncludeResource: includeResource,
	})
	s.must("list "+typeName, err)
	var out []Listed
	for r := range stream.Results {
		one := Listed{DisplayName: r.DisplayName, Identity: s.unpackIdentity(typeName, r.Identity), Diags: r.Diagnostics}
		one.Resource = State{Type: typeName, Value: tftypes.NewValue(s.resource(typeName).ValueType(), nil), Identity: one.Identity}
		if r.Resource != nil {
			one.Resource.Value = s.unpack(s.resource(typeName), r.Resource)
		}
		out = append(out, one)
		if len(out) == stop {
			break
		}
	}
	return out
}
