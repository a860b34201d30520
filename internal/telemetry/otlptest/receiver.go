// Package otlptest holds a collector for tests: it takes traces over OTLP and shows them as a tree.
package otlptest

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

// Receiver keeps what it is sent. It is an http.Handler for OTLP/HTTP and a collector.TraceServiceServer for gRPC. The zero
// value works, and it is safe for concurrent use.
type Receiver struct {
	collector.UnimplementedTraceServiceServer

	mu      sync.Mutex
	raw     []byte
	spans   []*tracepb.Span
	service string
	headers []http.Header
}

// ServeHTTP takes one request of OTLP/HTTP in protobuf.
func (r *Receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(req.Body)
	var export collector.ExportTraceServiceRequest
	if err == nil {
		err = proto.Unmarshal(body, &export)
	}
	if err != nil || req.URL.Path != "/v1/traces" {
		http.Error(w, "not OTLP", http.StatusBadRequest)
		return
	}
	r.keep(&export, body, req.Header)
}

// Export takes one request over gRPC.
func (r *Receiver) Export(_ context.Context, req *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	raw, err := proto.Marshal(req)
	if err != nil {
		return nil, err
	}
	r.keep(req, raw, nil)
	return &collector.ExportTraceServiceResponse{}, nil
}

func (r *Receiver) keep(req *collector.ExportTraceServiceRequest, raw []byte, header http.Header) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.raw = append(r.raw, raw...)
	r.headers = append(r.headers, header)
	for _, rs := range req.ResourceSpans {
		for _, a := range rs.Resource.Attributes {
			if a.Key == "service.name" {
				r.service = a.Value.GetStringValue()
			}
		}
		for _, ss := range rs.ScopeSpans {
			r.spans = append(r.spans, ss.Spans...)
		}
	}
}

// Raw gives every byte that came, for a search.
func (r *Receiver) Raw() []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	return bytes.Clone(r.raw)
}

// Spans gives the spans so far, in the order of their start.
func (r *Receiver) Spans() []*tracepb.Span {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := slices.Clone(r.spans)
	slices.SortStableFunc(out, func(a, b *tracepb.Span) int {
		switch {
		case a.StartTimeUnixNano < b.StartTimeUnixNano:
			return -1
		case a.StartTimeUnixNano > b.StartTimeUnixNano:
			return 1
		}
		return 0
	})
	return out
}

// Service gives the name that the sender calls itself.
func (r *Receiver) Service() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.service
}

// Headers gives one header of each request over HTTP.
func (r *Receiver) Headers(name string) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []string
	for _, h := range r.headers {
		out = append(out, h.Get(name))
	}
	return out
}

// Tree writes the spans below the one with the id parent (nil: those without a parent), one a line, indented, with exit
// status and error code where they have one.
func (r *Receiver) Tree(parent []byte) string {
	var b strings.Builder
	write(&b, r.Spans(), parent, "")
	return b.String()
}

func write(b *strings.Builder, spans []*tracepb.Span, parent []byte, indent string) {
	for _, s := range spans {
		if !bytes.Equal(s.ParentSpanId, parent) {
			continue
		}
		b.WriteString(indent + s.Name)
		for _, a := range s.Attributes {
			if a.Key == "agentkernel.exit_code" {
				b.WriteString(" exit=" + a.Value.String())
			}
			if a.Key == "error.type" {
				b.WriteString(" error=" + a.Value.GetStringValue())
			}
		}
		b.WriteString("\n")
		write(b, spans, s.SpanId, indent+"  ")
	}
}
