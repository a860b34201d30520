// Package protocoltest drives a provider over its plugin protocol, without any CLI. It plays the part of Terraform core
// closely enough to find what core would refuse: it merges configuration and prior state as core does, plans a
// replacement twice, and checks that plans keep to the configuration and results to the plan. It also shows what a CLI
// hides: warnings, private state, the state that a failed apply leaves.
package protocoltest

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/hashicorp/terraform-plugin-framework/provider"
	"github.com/hashicorp/terraform-plugin-framework/providerserver"
	"github.com/hashicorp/terraform-plugin-go/tfprotov6"
	"github.com/hashicorp/terraform-plugin-go/tftypes"
)

// Server is one provider process.
type Server struct {
	tb     testing.TB
	server tfprotov6.ProviderServer
	schema *tfprotov6.GetProviderSchemaResponse
	// identities are the types of the identities that resources have.
	identities map[string]tftypes.Object
	described  map[string]map[string]string // their attributes
	// stopped: Stop was called.
	stopped atomic.Bool
}

// New starts a provider. It is not configured yet.
func New(tb testing.TB, p func() provider.Provider) *Server {
	tb.Helper()
	return NewServer(tb, providerserver.NewProtocol6(p())())
}

// NewServer is New for a server that is there, perhaps with something around it.
func NewServer(tb testing.TB, server tfprotov6.ProviderServer) *Server {
	tb.Helper()
	s := &Server{tb: tb, server: server}
	var err error
	s.schema, err = server.GetProviderSchema(tb.Context(), &tfprotov6.GetProviderSchemaRequest{})
	if err != nil {
		tb.Fatalf("get the schema: %v", err)
	}
	if d := Diags(s.schema.Diagnostics); d.HasError() {
		tb.Fatalf("get the schema: %s", d)
	}
	s.readIdentities()
	return s
}

// Schema gives the schemas as the provider sends them.
func (s *Server) Schema() *tfprotov6.GetProviderSchemaResponse { return s.schema }

// Configure configures the provider.
func (s *Server) Configure(config Config) Diags {
	s.tb.Helper()
	schema := s.schema.Provider
	value := s.value(schema, config)
	validated, err := s.server.ValidateProviderConfig(s.tb.Context(), &tfprotov6.ValidateProviderConfigRequest{Config: s.pack(schema, value)})
	s.must("validate the provider configuration", err)
	if d := Diags(validated.Diagnostics); d.HasError() {
		return d
	}
	resp, err := s.server.ConfigureProvider(s.tb.Context(), &tfprotov6.ConfigureProviderRequest{TerraformVersion: "1.15.0", Config: s.pack(schema, value)})
	s.must("configure the provider", err)
	return resp.Diagnostics
}

// Stop tells the provider that the user wants to stop, as Terraform does after the first interrupt.
func (s *Server) Stop() {
	s.tb.Helper()
	s.stopped.Store(true)
	resp, err := s.server.StopProvider(s.tb.Context(), &tfprotov6.StopProviderRequest{})
	s.must("stop the provider", err)
	if resp.Error != "" {
		s.tb.Fatalf("stop the provider: %s", resp.Error)
	}
}

func (s *Server) must(what string, err error) {
	s.tb.Helper()
	if err != nil {
		s.tb.Fatalf("%s: %v", what, err)
	}
}

func (s *Server) resource(name string) *tfprotov6.Schema {
	s.tb.Helper()
	schema, ok := s.schema.ResourceSchemas[name]
	if !ok {
		s.tb.Fatalf("the provider has no resource %s", name)
	}
	return schema
}

func (s *Server) pack(schema *tfprotov6.Schema, v tftypes.Value) *tfprotov6.DynamicValue {
	s.tb.Helper()
	d, err := tfprotov6.NewDynamicValue(schema.ValueType(), v)
	s.must("encode a value", err)
	return &d
}

func (s *Server) unpack(schema *tfprotov6.Schema, d *tfprotov6.DynamicValue) tftypes.Value {
	s.tb.Helper()
	if d == nil {
		return tftypes.NewValue(schema.ValueType(), nil)
	}
	v, err := d.Unmarshal(schema.ValueType())
	s.must("decode a value", err)
	return v
}

// Diags are diagnostics.
type Diags []*tfprotov6.Diagnostic

// HasError reports whether there is an error among them.
func (d Diags) HasError() bool { return len(d.Errors()) > 0 }

// Errors gives the errors.
func (d Diags) Errors() Diags { return d.of(tfprotov6.DiagnosticSeverityError) }

// Warnings gives the warnings.
func (d Diags) Warnings() Diags { return d.of(tfprotov6.DiagnosticSeverityWarning) }

func (d Diags) of(severity tfprotov6.DiagnosticSeverity) Diags {
	var out Diags
	for _, x := range d {
		if x.Severity == severity {
			out = append(out, x)
		}
	}
	return out
}

// Has reports whether a diagnostic holds all of the texts, in its summary, detail or attribute.
func (d Diags) Has(texts ...string) bool {
	for _, x := range d {
		all := true
		for _, t := range texts {
			all = all && strings.Contains(describe(x), t)
		}
		if all {
			return true
		}
	}
	return false
}

// String gives the diagnostics, one after the other.
func (d Diags) String() string {
	out := make([]string, len(d))
	for i, x := range d {
		out[i] = describe(x)
	}
	return strings.Join(out, "\n---\n")
}

func describe(d *tfprotov6.Diagnostic) string {
	at := ""
	if d.Attribute != nil {
		at = " at " + Path(d.Attribute)
	}
	return fmt.Sprintf("%s%s: %s\n%s", d.Severity, at, d.Summary, d.Detail)
}

// Path writes a path the way people do: policy.cpu, command[0], env["A"].
func Path(p *tftypes.AttributePath) string {
	var b strings.Builder
	for _, step := range p.Steps() {
		switch s := step.(type) {
		case tftypes.AttributeName:
			if b.Len() > 0 {
				b.WriteByte('.')
			}
			b.WriteString(string(s))
		case tftypes.ElementKeyInt:
			fmt.Fprintf(&b, "[%d]", int64(s))
		case tftypes.ElementKeyString:
			fmt.Fprintf(&b, "[%q]", string(s))
		default:
			b.WriteString("[*]")
		}
	}
	return b.String()
}

// context of one request, which ends when the provider is stopped in the real thing; here the framework does that itself.
func (s *Server) context() context.Context { return s.tb.Context() }
