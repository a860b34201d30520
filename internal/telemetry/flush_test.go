package telemetry

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// stuck is an exporter that never gets rid of anything.
type stuck struct {
	once    sync.Once
	stopped chan struct{}
}

func (s *stuck) ExportSpans(context.Context, []sdktrace.ReadOnlySpan) error {
	<-s.stopped
	return nil
}

func (s *stuck) Shutdown(context.Context) error {
	s.once.Do(func() { close(s.stopped) })
	return nil
}

// The clock of this test stands still while anything runs.
func TestEndOfTheProviderWaitsForFlushTimeoutAtMost(t *testing.T) {
	if FlushTimeout >= 2*time.Second {
		t.Error("Terraform kills the provider before")
	}
	synctest.Test(t, func(t *testing.T) {
		tracing := start(t.Context(), "x", &stuck{stopped: make(chan struct{})}, func(string) string { return "" })
		began := time.Now()
		for range 10_000 { // more than the queue holds: ending a span waits for nobody
			_, end := tracing.StartSpan(t.Context(), sandboxcore.SpanStep, "step")
			end(sandboxcore.SpanFacts{})
		}
		if took := time.Since(began); took != 0 {
			t.Errorf("the work waited %v for the collector", took)
		}
		tracing.Stop(t.Context())
		if took := time.Since(began); took != FlushTimeout {
			t.Errorf("the end took %v", took)
		}
	})
}
