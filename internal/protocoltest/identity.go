package protocoltest

import (
	"github.com/hashicorp/terraform-plugin-go/tfprotov6"
	"github.com/hashicorp/terraform-plugin-go/tftypes"
)

// readIdentities asks which resources have an identity, and of which attributes it is made.
func (s *Server) readIdentities() {
	s.tb.Helper()
	resp, err := s.server.GetResourceIdentitySchemas(s.context(), &tfprotov6.GetResourceIdentitySchemasRequest{})
	s.must("get the identity schemas", err)
	if d := Diags(resp.Diagnostics); d.HasError() {
		s.tb.Fatalf("get the identity schemas: %s", d)
	}
	s.identities, s.described = map[string]tftypes.Object{}, map[string]map[string]string{}
	for name, schema := range resp.IdentitySchemas {
		attributes, descriptions := map[string]tftypes.Type{}, map[string]string{}
		for _, a := range schema.IdentityAttributes {
			attributes[a.Name] = a.Type
			descriptions[a.Name] = a.Description
		}
		s.described[name] = descriptions
		s.identities[name] = tftypes.Object{AttributeTypes: attributes}
	}
}

// Identities gives the description of each attribute of each identity, by type of resource.
func (s *Server) Identities() map[string]map[string]string { return s.described }

func (s *Server) packIdentity(typeName string, identity map[string]any) *tfprotov6.ResourceIdentityData {
	s.tb.Helper()
	t, ok := s.identities[typeName]
	if !ok || identity == nil {
		return nil
	}
	v, err := mapOf(t, identity)
	s.must("build an identity", err)
	d, err := tfprotov6.NewDynamicValue(t, v)
	s.must("encode an identity", err)
	return &tfprotov6.ResourceIdentityData{IdentityData: &d}
}

func (s *Server) unpackIdentity(typeName string, data *tfprotov6.ResourceIdentityData) map[string]any {
	s.tb.Helper()
	t, ok := s.identities[typeName]
	if !ok || data == nil || data.IdentityData == nil {
		return nil
	}
	v, err := data.IdentityData.Unmarshal(t)
	s.must("decode an identity", err)
	out, _ := Plain(v).(map[string]any)
	return out
}
