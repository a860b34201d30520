package protocoltest

import (
	"github.com/hashicorp/terraform-plugin-go/tfprotov6"
)

// Call calls a provider function with arguments as in a Config and gives the result in the form of Plain. Functions need
// no configured provider.
func (s *Server) Call(name string, arguments ...any) (any, *tfprotov6.FunctionError) {
	s.tb.Helper()
	f, ok := s.schema.Functions[name]
	if !ok {
		s.tb.Fatalf("the provider has no function %s", name)
	}
	if len(arguments) != len(f.Parameters) {
		s.tb.Fatalf("%s takes %d arguments", name, len(f.Parameters))
	}
	req := &tfprotov6.CallFunctionRequest{Name: name}
	for i, a := range arguments {
		v, err := valueOf(f.Parameters[i].Type, a)
		s.must("build an argument", err)
		d, err := tfprotov6.NewDynamicValue(f.Parameters[i].Type, v)
		s.must("encode an argument", err)
		req.Arguments = append(req.Arguments, &d)
	}
	resp, err := s.server.CallFunction(s.context(), req)
	s.must("call "+name, err)
	if resp.Error != nil {
		return nil, resp.Error
	}
	v, err := resp.Result.Unmarshal(f.Return.Type)
	s.must("decode the result of "+name, err)
	return Plain(v), nil
}
