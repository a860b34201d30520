package protocoltest

import (
	"github.com/hashicorp/terraform-plugin-go/tfprotov6"
)

// ValidateProvider checks a configuration of the provider, without configuring it.
func (s *Server) ValidateProvider(config Config) Diags {
	s.tb.Helper()
	schema := s.schema.Provider
	resp, err := s.server.ValidateProviderConfig(s.context(), &tfprotov6.ValidateProviderConfigRequest{Config: s.pack(schema, s.value(schema, config))})
	s.must("validate the provider configuration", err)
	return resp.Diagnostics
}

// ValidateEphemeral checks a configuration of an ephemeral resource.
func (s *Server) ValidateEphemeral(typeName string, config Config) Diags {
	s.tb.Helper()
	schema, ok := s.schema.EphemeralResourceSchemas[typeName]
	if !ok {
		s.tb.Fatalf("the provider has no ephemeral resource %s", typeName)
	}
	resp, err := s.server.ValidateEphemeralResourceConfig(s.context(), &tfprotov6.ValidateEphemeralResourceConfigRequest{
		TypeName: typeName, Config: s.pack(schema, s.value(schema, config)),
	})
	s.must("validate the ephemeral resource "+typeName, err)
	return resp.Diagnostics
}

// ValidateList checks a configuration of a list resource.
func (s *Server) ValidateList(typeName string, config Config) Diags {
	s.tb.Helper()
	server, ok := s.server.(tfprotov6.ProviderServerWithListResource) //nolint:staticcheck // the interface of this version of the protocol
	schema := s.schema.ListResourceSchemas[typeName]
	if !ok || schema == nil {
		s.tb.Fatalf("the provider has no list resource %s", typeName)
	}
	resp, err := server.ValidateListResourceConfig(s.context(), &tfprotov6.ValidateListResourceConfigRequest{
		TypeName: typeName, Config: s.pack(schema, s.value(schema, config)),
	})
	s.must("validate the list "+typeName, err)
	return resp.Diagnostics
}
