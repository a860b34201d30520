package telemetry_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/hashicorp/terraform-plugin-framework/providerserver"
	"go.opentelemetry.io/otel/trace"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/grpc"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/protocoltest"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/provider"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore/backendtest"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/telemetry"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/telemetry/otlptest"
)

type config = protocoltest.Config

// environment sets the variables of OpenTelemetry, and only these.
func environment(t *testing.T, set map[string]string) {
	t.Helper()
	for _, kv := range os.Environ() {
		if name, _, _ := strings.Cut(kv, "="); strings.HasPrefix(name, "OTEL_") || name == "TRACEPARENT" || name == "TRACESTATE" {
			t.Setenv(name, "") // restores it at the end
			_ = os.Unsetenv(name)
		}
	}
	for k, v := range set {
		t.Setenv(k, v)
	}
}

// logBuffer is a log that may still be written to.
type logBuffer struct {
	mu  sync.Mutex
	out bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.out.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.out.String()
}

// logged takes the log of the test.
func logged(t *testing.T) *logBuffer {
	t.Helper()
	before := slog.Default()
	t.Cleanup(func() { slog.SetDefault(before) })
	out := &logBuffer{}
	slog.SetDefault(slog.New(provider.LogHandler(out)))
	return out
}

// traced starts a provider on fake that records with tracing.
func traced(t *testing.T, fake *backendtest.Fake, tracing *telemetry.Tracing, cfg config) *protocoltest.Server {
	t.Helper()
	made := provider.New("test", sandboxcore.NewRegistry(fake.Factory()), provider.WithGetenv(func(string) string { return "" }), provider.WithTracer(tracing.Tracer()))
	s := protocoltest.NewServer(t, provider.Traced(providerserver.NewProtocol6(made())(), tracing.Tracer()))
	if d := s.Configure(cfg); d.HasError() {
		t.Fatal(d)
	}
	return s
}

const canary = "cnr-7f3a/9c+1e"

// session uses everything that takes something confidential, with canaries in all of it.
func session(t *testing.T, fake *backendtest.Fake, tracing *telemetry.Tracing) {
	t.Helper()
	fake.Settings = []sandboxcore.Setting{{Name: "image", Kind: sandboxcore.KindString, Description: "Image."}}
	fake.OnRun = func(ctx context.Context, req sandboxcore.RunRequest, stdout, stderr io.Writer) (sandboxcore.RunResult, error) {
		if trace.SpanContextFromContext(ctx).IsValid() {
			t.Error("libraries below the backend find a span and would make their own")
		}
		_, _ = io.WriteString(stdout, canary+"-stdout")
		_, _ = io.WriteString(stderr, canary+"-stderr")
		switch {
		case strings.Contains(string(req.Text), "breaks"):
			return sandboxcore.RunResult{}, &sandboxcore.Error{Code: sandboxcore.CodeUnknownOutcome, Attempted: "x", Object: canary + "-object", Said: canary + "-said", Err: errors.New(canary + "-error")}
		case strings.Contains(string(req.Text), "fails"):
			return sandboxcore.RunResult{ExitCode: 3}, nil
		}
		return sandboxcore.RunResult{}, nil
	}
	s := traced(t, fake, tracing, config{"secrets": config{"token": canary + "-secret"}})
	profile := s.MustApply("agentkernel_profile", protocoltest.State{}, config{"name": "p", "type": "docker", "docker": config{"image": canary + "-image"}})
	box := s.MustApply("agentkernel_sandbox", protocoltest.State{}, config{
		"profile": profile.Get("spec"), "name": "cnr-7f3a-name", "env": config{"A": canary + "-env"}, "secret_env": config{"T": "token"},
		"env_wo": config{"W": canary + "-envwo"}, "env_wo_version": 1, "labels": config{"l": canary + "-label"}, "packages": []string{"cnr7f3a-package"},
	})
	run := config{"binding": box.Get("binding"), "secret_env": config{"T": "token"}, "env": config{"A": canary + "-env"}, "stdin": canary + "-stdin", "triggers": config{"t": canary + "-trigger"}}
	s.MustApply("agentkernel_exec", protocoltest.State{}, run.With(config{"command": []string{"prog", canary + "-argument"}}))
	for _, text := range []string{"fails", "breaks"} {
		p := s.Plan("agentkernel_exec", protocoltest.State{}, run.With(config{"script": text + " " + canary + "-code"}))
		if _, d := s.Apply(p); !d.HasError() {
			t.Errorf("%s: no error", text)
		}
	}
	s.MustApply("agentkernel_file", protocoltest.State{}, config{"binding": box.Get("binding"), "path": canary + "-path", "content": canary + "-content"})
	if d := s.Invoke("agentkernel_exec", config{"profile": profile.Get("spec"), "script": canary + "-action"}).Wait(); d.HasError() {
		t.Error(d)
	}
	if _, d := s.Open("agentkernel_exec", config{"profile": profile.Get("spec"), "script": canary + "-ephemeral"}); d.HasError() {
		t.Error(d)
	}
	s.List("agentkernel_sandbox", config{"backend": "docker"}, 10, false, 0)
	if _, d := s.Apply(s.PlanDestroy(box)); d.HasError() {
		t.Error(d)
	}
}

// What a session writes as a tree: provider operation, engine step, call of the backend.
const wantTree = `apply agentkernel_sandbox
  create sandbox
    docker connect
    docker identity
    docker admit
    docker create
    install packages
      docker run exit=int_value:0
`

func TestSpansArriveOverHTTP(t *testing.T) {
	log := logged(t)
	r := &otlptest.Receiver{}
	server := httptest.NewServer(r)
	defer server.Close()
	environment(t, map[string]string{
		"OTEL_EXPORTER_OTLP_ENDPOINT": server.URL, "OTEL_EXPORTER_OTLP_HEADERS": "x-key=" + "cnr-7f3a-key", "OTEL_SERVICE_NAME": "my-pipeline",
		"TRACEPARENT": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "TRACESTATE": "vendor=x",
	})
	tracing := telemetry.Start(t.Context(), "1.2.3")
	session(t, &backendtest.Fake{}, tracing)
	tracing.Stop(t.Context())

	parent := []byte{0xb7, 0xad, 0x6b, 0x71, 0x69, 0x20, 0x33, 0x31}
	tree := r.Tree(parent)
	for _, want := range []string{
		wantTree,
		"configure provider\n", "plan agentkernel_sandbox\n",
		"apply agentkernel_exec error=AK5006\n  run exit=int_value:3 error=AK5006\n    docker connect\n",
		"    docker run exit=int_value:3\n",
		"apply agentkernel_exec error=AK5004\n  run error=AK5004\n", "    docker run error=AK5004\n",
		"apply agentkernel_file\n  file write\n", "    docker write file\n",
		"invoke action agentkernel_exec\n  run exit=int_value:0\n", "    clean up\n      docker destroy\n",
		"open ephemeral agentkernel_exec\n  run exit=int_value:0\n",
		"list agentkernel_sandbox\n  list sandboxes\n", "    docker list\n",
		"  destroy sandbox\n",
	} {
		if !strings.Contains("\n"+tree, "\n"+want) {
			t.Errorf("the tree lacks\n%s", want)
		}
	}
	if t.Failed() {
		t.Log(tree)
	}
	if n := strings.Count(tree, "\n"); n != len(r.Spans()) {
		t.Errorf("%d of %d spans are below the parent", n, len(r.Spans()))
	}
	for _, s := range r.Spans() {
		if s.TraceState != "vendor=x" || !bytes.Equal(s.TraceId, []byte{0x0a, 0xf7, 0x65, 0x19, 0x16, 0xcd, 0x43, 0xdd, 0x84, 0x48, 0xeb, 0x21, 0x1c, 0x80, 0x31, 0x9c}) {
			t.Errorf("%s: trace %x, state %q", s.Name, s.TraceId, s.TraceState)
		}
		if len(s.Events) > 0 {
			t.Errorf("%s has events, whose attributes are not bounded: %v", s.Name, s.Events)
		}
		if s.EndTimeUnixNano < s.StartTimeUnixNano {
			t.Errorf("%s ends before it starts", s.Name)
		}
	}
	if bytes.Contains(r.Raw(), []byte("cnr-7f3a")) || bytes.Contains(r.Raw(), []byte("cnr7f3a")) {
		t.Errorf("a canary was sent: %q", r.Raw())
	}
	if r.Service() != "my-pipeline" || !slices.Contains(r.Headers("X-Key"), "cnr-7f3a-key") {
		t.Errorf("service %q, headers %q", r.Service(), r.Headers("X-Key"))
	}
	if log.String() != "" {
		t.Errorf("logged: %s", log)
	}
}

func TestSpansArriveOverGRPC(t *testing.T) {
	r := &otlptest.Receiver{}
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	collector.RegisterTraceServiceServer(server, r)
	var served sync.WaitGroup
	served.Go(func() { _ = server.Serve(listener) })
	defer served.Wait()
	defer server.Stop()
	environment(t, map[string]string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://" + listener.Addr().String(), "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"})
	tracing := telemetry.Start(t.Context(), "1.2.3")
	session(t, &backendtest.Fake{}, tracing)
	tracing.Stop(t.Context())
	if tree := r.Tree(nil); !strings.Contains(tree, wantTree) || r.Service() != telemetry.ServiceName {
		t.Errorf("%s\nservice %q", tree, r.Service())
	}
	if bytes.Contains(r.Raw(), []byte("cnr-7f3a")) {
		t.Error("a canary was sent")
	}
}

func TestNothingIsTracedUnlessAskedFor(t *testing.T) {
	on := map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}
	for name, c := range map[string]struct {
		set    map[string]string
		reason string // in the log
	}{
		"nothing set":        {map[string]string{"TRACEPARENT": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "OTEL_SERVICE_NAME": "x"}, ""},
		"disabled":           {map[string]string{"OTEL_SDK_DISABLED": "TRUE"}, ""},
		"exporter none":      {map[string]string{"OTEL_TRACES_EXPORTER": "none"}, ""},
		"exporter console":   {map[string]string{"OTEL_TRACES_EXPORTER": "console"}, "console"},
		"protocol json":      {map[string]string{"OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"}, "http/json"},
		"no URL":             {map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "cnr-host:4318"}, "no http or https URL"},
		"URL cannot be read": {map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://cnr:%zz@host"}, "no http or https URL"},
	} {
		t.Run(name, func(t *testing.T) {
			log := logged(t)
			set := map[string]string{}
			if name != "nothing set" {
				set = map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": on["OTEL_EXPORTER_OTLP_ENDPOINT"]}
			}
			maps.Copy(set, c.set)
			environment(t, set)
			tracing := telemetry.Start(t.Context(), "x")
			if tracing.Tracer() != nil {
				t.Error("something is traced")
			}
			tracing.Stop(t.Context())
			if !strings.Contains(log.String(), c.reason) || (c.reason == "") != (log.String() == "") || strings.Contains(log.String(), "cnr") {
				t.Errorf("logged: %s", log)
			}
		})
	}
}

// A collector that takes a request and never answers holds nothing up, and its request is ended with the provider.
func TestCollectorThatHangs(t *testing.T) {
	log := logged(t)
	arrived, gone := make(chan struct{}), make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // a request whose body was read notices that the other side is gone
		close(arrived)
		<-r.Context().Done()
		close(gone)
	}))
	defer server.Close()
	environment(t, map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": server.URL})
	tracing := telemetry.Start(t.Context(), "x")
	session(t, &backendtest.Fake{}, tracing)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-arrived
		cancel() // stands for the end of FlushTimeout
	}()
	tracing.Stop(ctx)
	<-gone
	if !strings.Contains(log.String(), `"@level":"warn"`) || !strings.Contains(log.String(), "in time") {
		t.Errorf("logged: %s", log)
	}
}

// A collector that refuses, or asks to be tried later, costs a log entry.
func TestCollectorThatRefuses(t *testing.T) {
	for _, status := range []int{http.StatusInternalServerError, http.StatusServiceUnavailable} {
		t.Run(http.StatusText(status), func(t *testing.T) {
			log := logged(t)
			ctx, cancel := context.WithCancel(t.Context())
			var asked sync.Once
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Retry-After", "3600")
				http.Error(w, "\x1b[31mno room\n\n"+strings.Repeat("x", 10_000), status)
				if status == http.StatusServiceUnavailable {
					asked.Do(cancel)
				}
			}))
			defer server.Close()
			defer cancel()
			environment(t, map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": server.URL})
			tracing := telemetry.Start(t.Context(), "x")
			session(t, &backendtest.Fake{}, tracing)
			tracing.Stop(ctx)
			if log.String() == "" || len(log.String()) > 2000 || strings.Contains(log.String(), `\u001b`) || strings.Contains(log.String(), `"@level":"error"`) {
				t.Errorf("logged: %s", log)
			}
		})
	}
}

// Headers for the collector are credentials: they follow no redirect, and what is wrong with them is not quoted in the log.
func TestHeadersOfTheCollectorStayWithIt(t *testing.T) {
	log := logged(t)
	elsewhere := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		t.Errorf("a redirect was followed, with the key %q", r.Header.Get("X-Key"))
	}))
	defer elsewhere.Close()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, elsewhere.URL, http.StatusTemporaryRedirect)
	}))
	defer server.Close()
	environment(t, map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": server.URL, "OTEL_EXPORTER_OTLP_HEADERS": "x-key=cnr-key,cnr-without-a-name,y=%zzcnr"})
	tracing := telemetry.Start(t.Context(), "x")
	session(t, &backendtest.Fake{}, tracing)
	tracing.Stop(t.Context())
	if !strings.Contains(log.String(), "redirect") || strings.Contains(log.String(), "cnr") {
		t.Errorf("logged: %s", log)
	}
}

// The address of a collector may hold a credential, and a collector may answer with what it was sent. The log quotes neither.
func TestLogTellsNoCredentialOfTheCollector(t *testing.T) {
	echo := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Error(w, "no such key: "+r.Header.Get("X-Key")+" "+r.Header.Get("Authorization")+" at "+r.URL.Path, http.StatusUnauthorized)
	}))
	defer echo.Close()
	closed := httptest.NewServer(nil)
	closed.Close()
	headers := "x-key=cnr-7f3a-key,authorization=Basic%20Y25yOmNuci03ZjNhLXBhc3M="
	for name, set := range map[string]map[string]string{
		"path, refused":         {"OTEL_EXPORTER_OTLP_ENDPOINT": echo.URL + "/in/cnr-7f3a-path", "OTEL_EXPORTER_OTLP_HEADERS": headers},
		"traces' own variables": {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": echo.URL + "/cnr-7f3a-path/v1/traces", "OTEL_EXPORTER_OTLP_TRACES_HEADERS": headers},
		"path, nobody listens":  {"OTEL_EXPORTER_OTLP_ENDPOINT": closed.URL + "/in/cnr-7f3a-path"},
		"user and password":     {"OTEL_EXPORTER_OTLP_ENDPOINT": strings.Replace(closed.URL, "http://", "http://cnr-7f3a-user:cnr-7f3a-pass@", 1)},
	} {
		t.Run(name, func(t *testing.T) {
			log := logged(t)
			environment(t, set)
			tracing := telemetry.Start(t.Context(), "x")
			session(t, &backendtest.Fake{}, tracing)
			tracing.Stop(t.Context())
			if got := log.String(); got == "" || strings.Contains(got, "7f3a") || strings.Contains(got, "Y25yOmNuci03ZjNhLXBhc3M") {
				t.Errorf("logged: %s", got)
			}
		})
	}
}
