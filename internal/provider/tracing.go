package provider

import (
	"context"
	"slices"

	"github.com/hashicorp/terraform-plugin-go/tfprotov6"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// WithTracer has every operation of a backend recorded; nil is none.
func WithTracer(t sandboxcore.Tracer) Option {
	return func(p *agentKernelProvider) { p.tracer = t }
}

// protocolServer is all that the framework's server answers.
type protocolServer interface {
	tfprotov6.ProviderServer
	tfprotov6.ListResourceServer
	tfprotov6.ActionServer
	tfprotov6.StateStoreServer
}

// Traced gives a server that records each request which may reach a backend. It is one place for all constructs, so that
// none can be forgotten. Requests that only look at texts (schemas, validation, upgrades, functions) are not recorded. A
// server that lacks a part of the protocol, which the framework's does not, is given back as it is.
func Traced(server tfprotov6.ProviderServer, tracer sandboxcore.Tracer) tfprotov6.ProviderServer {
	whole, ok := server.(protocolServer)
	if tracer == nil || !ok {
		return server
	}
	return &tracedServer{protocolServer: whole, tracer: tracer}
}

type tracedServer struct {
	protocolServer
	tracer sandboxcore.Tracer
}

// operation is the span of one request. Whoever ends it gives the diagnostics that Terraform is given.
type operation struct {
	end   func(sandboxcore.SpanFacts)
	facts sandboxcore.SpanFacts
}

func (s *tracedServer) start(ctx context.Context, what, construct string) (context.Context, *operation) {
	name := what
	if construct != "" {
		name += " " + construct
	}
	ctx, end := s.tracer.StartSpan(ctx, sandboxcore.SpanOperation, name)
	return ctx, &operation{end: end, facts: sandboxcore.SpanFacts{Construct: construct}}
}

func (o *operation) done(diags []*tfprotov6.Diagnostic, err error) {
	o.facts.Failed = err != nil
	for _, d := range diags {
		if d.Severity != tfprotov6.DiagnosticSeverityError {
			continue
		}
		o.facts.Failed = true
		if code, ok := codeByTitle(d.Summary); ok && !slices.Contains(o.facts.Codes, code) {
			o.facts.Codes = append(o.facts.Codes, code)
		}
	}
	o.end(o.facts)
}

// codeByTitle finds the code of a diagnostic by its summary, which is a text of ours. Its detail also has the code, but
// among what a program printed.
func codeByTitle(summary string) (sandboxcore.Code, bool) {
	for _, c := range sandboxcore.Codes() {
		if c.Title() == summary {
			return c, true
		}
	}
	return "", false
}

func (s *tracedServer) ConfigureProvider(ctx context.Context, req *tfprotov6.ConfigureProviderRequest) (*tfprotov6.ConfigureProviderResponse, error) {
	ctx, op := s.start(ctx, "configure provider", "")
	resp, err := s.protocolServer.ConfigureProvider(ctx, req)
	op.done(diagnosticsOf(resp, func(r *tfprotov6.ConfigureProviderResponse) []*tfprotov6.Diagnostic { return r.Diagnostics }), err)
	return resp, err
}

func (s *tracedServer) ReadResource(ctx context.Context, req *tfprotov6.ReadResourceRequest) (*tfprotov6.ReadResourceResponse, error) {
	ctx, op := s.start(ctx, "read", req.TypeName)
	resp, err := s.protocolServer.ReadResource(ctx, req)
	op.done(diagnosticsOf(resp, func(r *tfprotov6.ReadResourceResponse) []*tfprotov6.Diagnostic { return r.Diagnostics }), err)
	return resp, err
}

func (s *tracedServer) PlanResourceChange(ctx context.Context, req *tfprotov6.PlanResourceChangeRequest) (*tfprotov6.PlanResourceChangeResponse, error) {
	ctx, op := s.start(ctx, "plan", req.TypeName)
	op.facts.Change = change(req.PriorState, req.ProposedNewState)
	resp, err := s.protocolServer.PlanResourceChange(ctx, req)
	op.done(diagnosticsOf(resp, func(r *tfprotov6.PlanResourceChangeResponse) []*tfprotov6.Diagnostic { return r.Diagnostics }), err)
	return resp, err
}

func (s *tracedServer) ApplyResourceChange(ctx context.Context, req *tfprotov6.ApplyResourceChangeRequest) (*tfprotov6.ApplyResourceChangeResponse, error) {
	ctx, op := s.start(ctx, "apply", req.TypeName)
	op.facts.Change = change(req.PriorState, req.PlannedState)
	resp, err := s.protocolServer.ApplyResourceChange(ctx, req)
	op.done(diagnosticsOf(resp, func(r *tfprotov6.ApplyResourceChangeResponse) []*tfprotov6.Diagnostic { return r.Diagnostics }), err)
	return resp, err
}

func (s *tracedServer) ImportResourceState(ctx context.Context, req *tfprotov6.ImportResourceStateRequest) (*tfprotov6.ImportResourceStateResponse, error) {
	ctx, op := s.start(ctx, "import", req.TypeName)
	resp, err := s.protocolServer.ImportResourceState(ctx, req)
	op.done(diagnosticsOf(resp, func(r *tfprotov6.ImportResourceStateResponse) []*tfprotov6.Diagnostic { return r.Diagnostics }), err)
	return resp, err
}

func (s *tracedServer) ReadDataSource(ctx context.Context, req *tfprotov6.ReadDataSourceRequest) (*tfprotov6.ReadDataSourceResponse, error) {
	ctx, op := s.start(ctx, "read data", req.TypeName)
	resp, err := s.protocolServer.ReadDataSource(ctx, req)
	op.done(diagnosticsOf(resp, func(r *tfprotov6.ReadDataSourceResponse) []*tfprotov6.Diagnostic { return r.Diagnostics }), err)
	return resp, err
}

func (s *tracedServer) OpenEphemeralResource(ctx context.Context, req *tfprotov6.OpenEphemeralResourceRequest) (*tfprotov6.OpenEphemeralResourceResponse, error) {
	ctx, op := s.start(ctx, "open ephemeral", req.TypeName)
	resp, err := s.protocolServer.OpenEphemeralResource(ctx, req)
	op.done(diagnosticsOf(resp, func(r *tfprotov6.OpenEphemeralResourceResponse) []*tfprotov6.Diagnostic { return r.Diagnostics }), err)
	return resp, err
}

func (s *tracedServer) RenewEphemeralResource(ctx context.Context, req *tfprotov6.RenewEphemeralResourceRequest) (*tfprotov6.RenewEphemeralResourceResponse, error) {
	ctx, op := s.start(ctx, "renew ephemeral", req.TypeName)
	resp, err := s.protocolServer.RenewEphemeralResource(ctx, req)
	op.done(diagnosticsOf(resp, func(r *tfprotov6.RenewEphemeralResourceResponse) []*tfprotov6.Diagnostic { return r.Diagnostics }), err)
	return resp, err
}

func (s *tracedServer) CloseEphemeralResource(ctx context.Context, req *tfprotov6.CloseEphemeralResourceRequest) (*tfprotov6.CloseEphemeralResourceResponse, error) {
	ctx, op := s.start(ctx, "close ephemeral", req.TypeName)
	resp, err := s.protocolServer.CloseEphemeralResource(ctx, req)
	op.done(diagnosticsOf(resp, func(r *tfprotov6.CloseEphemeralResourceResponse) []*tfprotov6.Diagnostic { return r.Diagnostics }), err)
	return resp, err
}

func (s *tracedServer) PlanAction(ctx context.Context, req *tfprotov6.PlanActionRequest) (*tfprotov6.PlanActionResponse, error) {
	ctx, op := s.start(ctx, "plan action", req.ActionType)
	resp, err := s.protocolServer.PlanAction(ctx, req)
	op.done(diagnosticsOf(resp, func(r *tfprotov6.PlanActionResponse) []*tfprotov6.Diagnostic { return r.Diagnostics }), err)
	return resp, err
}

// InvokeAction is over when its events are.
func (s *tracedServer) InvokeAction(ctx context.Context, req *tfprotov6.InvokeActionRequest) (*tfprotov6.InvokeActionServerStream, error) {
	ctx, op := s.start(ctx, "invoke action", req.ActionType)
	stream, err := s.protocolServer.InvokeAction(ctx, req)
	if err != nil || stream == nil {
		op.done(nil, err)
		return stream, err
	}
	events := stream.Events
	stream.Events = func(yield func(tfprotov6.InvokeActionEvent) bool) {
		var diags []*tfprotov6.Diagnostic
		defer func() { op.done(diags, nil) }()
		events(func(e tfprotov6.InvokeActionEvent) bool {
			if completed, ok := e.Type.(tfprotov6.CompletedInvokeActionEventType); ok {
				diags = completed.Diagnostics
			}
			return yield(e)
		})
	}
	return stream, nil
}

// ListResource is over when its results are.
func (s *tracedServer) ListResource(ctx context.Context, req *tfprotov6.ListResourceRequest) (*tfprotov6.ListResourceServerStream, error) {
	ctx, op := s.start(ctx, "list", req.TypeName)
	stream, err := s.protocolServer.ListResource(ctx, req)
	if err != nil || stream == nil {
		op.done(nil, err)
		return stream, err
	}
	results := stream.Results
	stream.Results = func(yield func(tfprotov6.ListResourceResult) bool) {
		var diags []*tfprotov6.Diagnostic
		defer func() { op.done(diags, nil) }()
		results(func(r tfprotov6.ListResourceResult) bool {
			diags = append(diags, r.Diagnostics...)
			return yield(r)
		})
	}
	return stream, nil
}

// diagnosticsOf is get(resp), of a response that may be nil.
func diagnosticsOf[R any](resp *R, get func(*R) []*tfprotov6.Diagnostic) []*tfprotov6.Diagnostic {
	if resp == nil {
		return nil
	}
	return get(resp)
}

// change says what is done to a resource.
func change(before, after *tfprotov6.DynamicValue) string {
	was, is := isThere(before), isThere(after)
	switch {
	case !was && is:
		return "create"
	case was && is:
		return "update"
	case was:
		return "delete"
	}
	return ""
}

func isThere(v *tfprotov6.DynamicValue) bool {
	if v == nil {
		return false
	}
	null, err := v.IsNull()
	return err == nil && !null
}
