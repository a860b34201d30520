package protocoltest

import (
	"github.com/hashicorp/terraform-plugin-go/tfprotov6"
)

// Open validates, opens and closes an ephemeral resource, and gives its result.
func (s *Server) Open(typeName string, config Config) (State, Diags) {
	s.tb.Helper()
	schema, ok := s.schema.EphemeralResourceSchemas[typeName]
	if !ok {
		s.tb.Fatalf("the provider has no ephemeral resource %s", typeName)
	}
	packed := s.pack(schema, s.value(schema, config))
	validated, err := s.server.ValidateEphemeralResourceConfig(s.context(), &tfprotov6.ValidateEphemeralResourceConfigRequest{TypeName: typeName, Config: packed})
	s.must("validate the ephemeral resource "+typeName, err)
	if d := Diags(validated.Diagnostics); d.HasError() {
		return State{}, d
	}
	resp, err := s.server.OpenEphemeralResource(s.context(), &tfprotov6.OpenEphemeralResourceRequest{TypeName: typeName, Config: packed})
	s.must("open the ephemeral resource "+typeName, err)
	if Diags(resp.Diagnostics).HasError() {
		return State{}, resp.Diagnostics
	}
	closed, err := s.server.CloseEphemeralResource(s.context(), &tfprotov6.CloseEphemeralResourceRequest{TypeName: typeName, Private: resp.Private})
	s.must("close the ephemeral resource "+typeName, err)
	result := State{Type: typeName, Value: s.unpack(schema, resp.Result)}
	for _, fault := range planFaults("", schema.Block.Attributes, result.Value, s.value(schema, config), result.Value) {
		s.tb.Errorf("Terraform would refuse the result of opening %s: %s", typeName, fault)
	}
	return result, append(Diags(resp.Diagnostics), closed.Diagnostics...)
}
