package provider

import (
	"context"
	"fmt"
	"iter"

	"github.com/hashicorp/terraform-plugin-framework-timeouts/resource/timeouts"
	"github.com/hashicorp/terraform-plugin-framework/attr"
	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/list"
	"github.com/hashicorp/terraform-plugin-framework/list/schema"
	"github.com/hashicorp/terraform-plugin-framework/provider"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

var (
	_ provider.ProviderWithListResources = (*agentKernelProvider)(nil)
	_ list.ListResource                  = (*sandboxListResource)(nil)
	_ list.ListResourceWithConfigure     = (*sandboxListResource)(nil)
)

// ListResources are what `terraform query` can find.
func (p *agentKernelProvider) ListResources(context.Context) []func() list.ListResource {
	return []func() list.ListResource{
		func() list.ListResource { return newSandboxListResource(p.registry) },
	}
}

func newSandboxListResource(reg *sandboxcore.Registry) *sandboxListResource {
	return &sandboxListResource{registry: reg}
}

// sandboxListResource finds the sandboxes that exist, to be imported.
type sandboxListResource struct {
	registry *sandboxcore.Registry
	data     *providerData
}

func (l *sandboxListResource) Metadata(_ context.Context, req resource.MetadataRequest, resp *resource.MetadataResponse) {
	resp.TypeName = req.ProviderTypeName + "_sandbox"
}

func (l *sandboxListResource) ListResourceConfigSchema(_ context.Context, _ list.ListResourceSchemaRequest, resp *list.ListResourceSchemaResponse) {
	resp.Schema = schema.Schema{
		MarkdownDescription: "The sandboxes that exist, for `terraform query`: everything that carries the marks of this provider, whatever state knows it, orphans of runs that were killed included.",
		Attributes:          listAttributes(searchAttributes(l.registry)),
	}
}

func (l *sandboxListResource) Configure(_ context.Context, req resource.ConfigureRequest, resp *resource.ConfigureResponse) {
	l.data = configured("agentkernel_sandbox", req.ProviderData, &resp.Diagnostics)
}

// List pushes what matches, backend by backend. A backend that fails does not hide what the others have.
func (l *sandboxListResource) List(ctx context.Context, req list.ListRequest, stream *list.ListResultsStream) {
	if l.data == nil {
		stream.Results = list.ListResultsStreamDiagnostics(diag.Diagnostics{unconfiguredError("agentkernel_sandbox")})
		return
	}
	search, diags := readSearch(ctx, req.Config)
	if diags.HasError() {
		stream.Results = list.ListResultsStreamDiagnostics(diags)
		return
	}
	stream.Results = l.results(ctx, req, search)
}

func (l *sandboxListResource) results(ctx context.Context, req list.ListRequest, search sandboxSearch) iter.Seq[list.ListResult] {
	return func(push func(list.ListResult) bool) {
		ctx, redact := l.data.request(ctx, nil)
		var pushed int64
		skipped := map[string]string{}
		for answer := range l.data.sandboxes(ctx, search) {
			switch {
			case answer.skipped:
				skipped[string(answer.backend)] = redact.String(sandboxcore.Clean(answer.err.Error()))
			case answer.err != nil:
				failed := list.ListResult{}
				reporter{diags: &failed.Diagnostics, schema: req.Config.Schema, fallback: "backend", redact: redact}.error(ctx, answer.err, sandboxcore.CodeUnreachable)
				if !push(failed) {
					return
				}
			}
			for _, info := range answer.found {
				pushed++
				if !push(l.result(ctx, req, answer.backend, info, redact)) || pushed == req.Limit {
					return
				}
			}
		}
		if len(skipped) > 0 {
			push(list.ListResult{Diagnostics: diag.Diagnostics{skippedBackendsWarning(skipped)}})
		}
	}
}

func (l *sandboxListResource) result(ctx context.Context, req list.ListRequest, t sandboxcore.BackendType, info sandboxcore.SandboxInfo, redact *sandboxcore.Redactor) list.ListResult {
	out := req.NewListResult(ctx)
	id := sandboxcore.SandboxID(t, info.NativeID)
	out.DisplayName = fmt.Sprintf("%s (%s)", sandboxcore.Printable(info.Marks.Name), id)
	out.Diagnostics.Append(out.Identity.Set(ctx, &sandboxIdentity{
		Backend: types.StringValue(string(t)), Endpoint: types.StringValue(info.Endpoint), NativeID: types.StringValue(info.NativeID),
	})...)
	if !req.IncludeResource {
		return out
	}
	var err error
	if info.Marks.Args.Packages, err = l.data.engine.InstalledPackages(ctx, t, info); err == nil {
		info.Marks.Spec, err = l.data.engine.LiveSpec(ctx, t, info)
	}
	if err != nil {
		reporter{diags: &out.Diagnostics, redact: redact}.error(ctx, err, sandboxcore.CodeUnreachable)
		return out
	}
	p, err := l.registry.ParseSpec(info.Marks.Spec)
	var caps sandboxcore.Capabilities
	if err == nil {
		caps, err = l.registry.Capabilities(p)
	}
	if err == nil {
		err = sandboxcore.CheckMarks(id, info.Marks)
	}
	if err != nil {
		reporter{diags: &out.Diagnostics, redact: redact}.error(ctx, named(err, id), sandboxcore.CodeSpec)
		return out
	}
	m := sandboxModel{Timeouts: noTimeouts()}
	out.Diagnostics.Append(m.adopt(ctx, info)...)
	m.show(p, caps, info)
	m.DesiredState = desiredState(types.StringNull(), info)
	out.Diagnostics.Append(out.Resource.Set(ctx, &m)...)
	return out
}

// named says of which object's spec an error speaks.
func named(err error, id string) error {
	found := sandboxcore.AllErrors(err, sandboxcore.CodeSpec)
	out := make(sandboxcore.Violations, 0, len(found))
	for _, v := range found {
		e := *v
		e.Object, e.Attribute = id, nil
		out = append(out, &e)
	}
	return out
}

func noTimeouts() timeouts.Value {
	limits := map[string]attr.Type{}
	for _, name := range []string{"create", "read", "update", "delete"} {
		limits[name] = types.StringType
	}
	return timeouts.Value{Object: types.ObjectNull(limits)}
}
