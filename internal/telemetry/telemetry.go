// Package telemetry sends traces to an OpenTelemetry collector when the environment asks for it, and does nothing
// otherwise.
//
// It reads the variables of the OpenTelemetry specification. What a span may tell is sandboxcore.SpanFacts and nothing
// else. No span is put where libraries find the current one (trace.SpanFromContext) and no global provider is set:
// several clients of backends would make spans of their own below it, with the addresses of their requests, which hold
// paths of files, and would send the ids of the trace to the backend.
package telemetry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// ServiceName is what the provider calls itself when neither OTEL_SERVICE_NAME nor OTEL_RESOURCE_ATTRIBUTES does.
const ServiceName = "terraform-provider-agentkernel"

// FlushTimeout is how long the end of the provider may wait for a collector. Terraform kills a provider that does not end
// within two seconds of being asked to.
const FlushTimeout = time.Second

// Tracing records spans and sends them away in the background: whoever ends a span never waits for the collector, and
// what does not fit into the queue is dropped.
type Tracing struct {
	provider *sdktrace.TracerProvider
	exporter sdktrace.SpanExporter
	tracer   trace.Tracer
	// parent is the span of whoever started this process (TRACEPARENT), if there is one.
	parent trace.SpanContext
	// shown gives the text of an error for the log.
	shown func(error) string
}

var _ sandboxcore.Tracer = (*Tracing)(nil)

// Start begins tracing if the environment asks for it, and gives nil if not. A setting that cannot be honoured is a log
// entry and no tracing: never a guess where the traces should go, and never the end of the provider.
func Start(ctx context.Context, version string) *Tracing {
	protocol, err := wanted(os.Getenv)
	if err != nil {
		slog.WarnContext(ctx, "no traces are sent", "reason", err.Error())
	}
	if protocol == "" {
		return nil
	}
	shown := withoutCredentials(os.Getenv)
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) {
		slog.WarnContext(ctx, "traces", "error", shown(err))
	}))
	otel.SetLogger(logr.New(sink{ctx}))
	exporter, err := newExporter(ctx, protocol)
	if err != nil {
		slog.WarnContext(ctx, "no traces are sent", "reason", shown(err))
		return nil
	}
	return start(ctx, version, exporter, os.Getenv)
}

// Protocols of OTLP that the provider speaks.
const (
	protocolHTTP = "http/protobuf"
	protocolGRPC = "grpc"
)

// wanted gives the protocol to send traces with, or "" when none are to be sent.
func wanted(getenv func(string) string) (string, error) {
	endpoint := first(getenv, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
	if endpoint == "" || strings.EqualFold(strings.TrimSpace(getenv("OTEL_SDK_DISABLED")), "true") {
		return "", nil
	}
	switch exporter := getenv("OTEL_TRACES_EXPORTER"); exporter {
	case "", "otlp":
	case "none":
		return "", nil
	default:
		return "", fmt.Errorf("OTEL_TRACES_EXPORTER is %q; the provider has otlp and none", exporter)
	}
	protocol := first(getenv, "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
	switch protocol {
	case "":
		protocol = protocolHTTP
	case protocolHTTP, protocolGRPC:
	default:
		return "", fmt.Errorf("OTEL_EXPORTER_OTLP_PROTOCOL is %q; the provider has %s and %s", protocol, protocolHTTP, protocolGRPC)
	}
	// The exporters send to localhost what has no address that they can read. The address itself may hold a password.
	if u, err := url.Parse(endpoint); err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
		return "", errors.New("the endpoint in OTEL_EXPORTER_OTLP_ENDPOINT is no http or https URL")
	}
	return protocol, nil
}

// withoutCredentials gives what shows an error in the log. The exporters quote the address of the collector, which may have a
// key in it, and what the collector answers, which may be what it was sent.
func withoutCredentials(getenv func(string) string) func(error) string {
	var hidden []string
	for _, name := range []string{"OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS"} {
		for header := range strings.SplitSeq(getenv(name), ",") {
			_, value, named := strings.Cut(header, "=")
			if !named {
				value = header
			}
			hidden = append(hidden, value)
			if plain, err := url.PathUnescape(value); err == nil {
				hidden = append(append(hidden, plain), strings.Fields(plain)...) // "Basic" and "Bearer" have the key as a word of its own
			}
		}
	}
	for _, name := range []string{"OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"} {
		u, err := url.Parse(strings.TrimSpace(getenv(name)))
		if err != nil {
			continue
		}
		password, _ := u.User.Password()
		hidden = append(append(hidden, u.User.Username(), password, u.RawQuery), strings.Split(u.Path, "/")...)
		for _, values := range u.Query() {
			hidden = append(hidden, values...)
		}
	}
	hidden = slices.DeleteFunc(hidden, func(s string) bool { return s == "traces" || strings.TrimSpace(s) == "" })
	redactor := sandboxcore.NewRedactor(hidden...)
	return func(err error) string { return sandboxcore.Printable(redactor.String(err.Error())) }
}

func first(getenv func(string) string, names ...string) string {
	for _, n := range names {
		if v := strings.TrimSpace(getenv(n)); v != "" {
			return v
		}
	}
	return ""
}

func newExporter(ctx context.Context, protocol string) (sdktrace.SpanExporter, error) {
	if protocol == protocolGRPC {
		return otlptracegrpc.New(ctx)
	}
	return otlptracehttp.New(ctx, otlptracehttp.WithProxy(proxyWithoutRedirect))
}

// proxyWithoutRedirect is the usual choice of a proxy, and the one place where a request can be refused without giving up
// what the exporter reads from the environment: OTEL_EXPORTER_OTLP_HEADERS holds credentials, which follow no redirect.
func proxyWithoutRedirect(r *http.Request) (*url.URL, error) {
	if r.Response != nil {
		return nil, errors.New("the collector answered with a redirect, which is not followed")
	}
	return http.ProxyFromEnvironment(r)
}

func start(ctx context.Context, version string, exporter sdktrace.SpanExporter, getenv func(string) string) *Tracing {
	res, err := resource.New(ctx,
		resource.WithAttributes(attribute.String("service.name", ServiceName), attribute.String("service.version", version)),
		resource.WithTelemetrySDK(), resource.WithFromEnv())
	if err != nil {
		slog.WarnContext(ctx, "traces: OTEL_RESOURCE_ATTRIBUTES cannot be read")
	}
	provider := sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithResource(res))
	carrier := propagation.MapCarrier{"traceparent": getenv("TRACEPARENT"), "tracestate": getenv("TRACESTATE")}
	return &Tracing{
		provider: provider, exporter: exporter,
		tracer: provider.Tracer("github.com/agentkernel/terraform-provider-agentkernel", trace.WithInstrumentationVersion(version)),
		parent: trace.SpanContextFromContext(propagation.TraceContext{}.Extract(ctx, carrier)),
		shown:  withoutCredentials(getenv),
	}
}

// Tracer gives what the engine records with: nil when there is no tracing.
func (t *Tracing) Tracer() sandboxcore.Tracer {
	if t == nil {
		return nil
	}
	return t
}

// Stop sends what is left and ends tracing. It waits for a collector at most FlushTimeout.
func (t *Tracing) Stop(ctx context.Context) {
	if t == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, FlushTimeout)
	defer cancel()
	t.stop(ctx)
}

func (t *Tracing) stop(ctx context.Context) {
	if err := t.provider.Shutdown(ctx); err != nil {
		slog.WarnContext(ctx, "the collector did not take all traces in time", "error", t.shown(err))
		_ = t.exporter.Shutdown(ctx) // ends the request that is under way
	}
}

type spanKey struct{}

// StartSpan is sandboxcore.Tracer's.
func (t *Tracing) StartSpan(ctx context.Context, kind sandboxcore.SpanKind, name string) (context.Context, func(sandboxcore.SpanFacts)) {
	parent := trace.ContextWithRemoteSpanContext(ctx, t.parent)
	if p, ok := ctx.Value(spanKey{}).(trace.Span); ok {
		parent = trace.ContextWithSpan(parent, p)
	}
	_, span := t.tracer.Start(parent, name, trace.WithSpanKind(kindOf(kind)))
	return context.WithValue(ctx, spanKey{}, span), func(f sandboxcore.SpanFacts) {
		span.SetAttributes(attributesOf(f)...)
		if f.Failed {
			span.SetStatus(status(f.Codes))
		}
		span.End()
	}
}

func kindOf(k sandboxcore.SpanKind) trace.SpanKind {
	switch k {
	case sandboxcore.SpanOperation:
		return trace.SpanKindServer
	case sandboxcore.SpanCall:
		return trace.SpanKindClient
	case sandboxcore.SpanStep:
	}
	return trace.SpanKindInternal
}

func attributesOf(f sandboxcore.SpanFacts) []attribute.KeyValue {
	var out []attribute.KeyValue
	for _, a := range []struct{ key, value string }{
		{"agentkernel.construct", f.Construct},
		{"agentkernel.change", f.Change},
		{"agentkernel.backend", string(f.Backend)},
		{"agentkernel.id", f.ID},
		{"agentkernel.run_id", f.RunID},
		{"agentkernel.fingerprint", f.Fingerprint},
	} {
		if a.value != "" {
			out = append(out, attribute.String(a.key, a.value))
		}
	}
	if f.ExitCode != nil {
		out = append(out, attribute.Int("agentkernel.exit_code", *f.ExitCode))
	}
	if f.Failed {
		kind := "_OTHER" // the value that the conventions have for an error without a name
		if len(f.Codes) > 0 {
			kind = string(f.Codes[0])
		}
		out = append(out, attribute.String("error.type", kind))
	}
	return out
}
