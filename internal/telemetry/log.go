package telemetry

import (
	"context"
	"log/slog"
	"strings"

	"github.com/go-logr/logr"
	"go.opentelemetry.io/otel/codes"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// status is the status of a span that failed: the codes, never the text of an error.
func status(all []sandboxcore.Code) (codes.Code, string) {
	names := make([]string, len(all))
	for i, c := range all {
		names[i] = string(c)
	}
	return codes.Error, strings.Join(names, " ")
}

// sink takes what the SDK says about itself. Only the messages, which are fixed texts: their values may be parts of
// OTEL_EXPORTER_OTLP_HEADERS.
type sink struct{ ctx context.Context }

var _ logr.LogSink = sink{}

func (sink) Init(logr.RuntimeInfo) {}

// Enabled gives what is a warning or worse.
func (sink) Enabled(level int) bool { return level <= 1 }

func (s sink) Info(_ int, msg string, _ ...any) {
	slog.WarnContext(s.ctx, "traces", "sdk", msg)
}

func (s sink) Error(_ error, msg string, _ ...any) {
	slog.WarnContext(s.ctx, "traces", "sdk", msg)
}

func (s sink) WithValues(...any) logr.LogSink { return s }

func (s sink) WithName(string) logr.LogSink { return s }
