//go:build linux

package acceptance

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/telemetry/otlptest"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/testenv"
)

const tracedHCL = `
variable "api" {
  type      = string
  ephemeral = true
}

provider "agentkernel" {
  secrets          = { api = var.api }
  local_subprocess = { data_dir = "DATA" }
}

data "agentkernel_profile" "p" {
  name             = "traced"
  type             = "local_subprocess"
  local_subprocess = {}
}

resource "agentkernel_sandbox" "s" {
  profile    = data.agentkernel_profile.p.spec
  secret_env = { API = "api" }
}

resource "agentkernel_exec" "e" {
  binding = agentkernel_sandbox.s.binding
  script  = "echo cnr-prov-code $API"
}
`

// The provider as a program, under a real CLI, sends its spans before it ends.
func TestSpansOfAnApply(t *testing.T) {
	testenv.Require(t, "local")
	r := &otlptest.Receiver{}
	collector := httptest.NewServer(r)
	defer collector.Close()
	s := newStack(t, tracedHCL)
	s.env = append(s.env, "TF_VAR_api="+canaries["provider secrets"], "OTEL_EXPORTER_OTLP_ENDPOINT="+collector.URL,
		"TRACEPARENT=00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
	s.destroyAtEnd(t)
	s.apply(t)
	tree := r.Tree([]byte{0xb7, 0xad, 0x6b, 0x71, 0x69, 0x20, 0x33, 0x31})
	for _, want := range []string{
		"apply agentkernel_sandbox\n  create sandbox\n    local_subprocess connect\n", "    local_subprocess create\n",
		"apply agentkernel_exec\n  run exit=int_value:0\n    local_subprocess connect\n", "    local_subprocess run exit=int_value:0\n",
	} {
		if !strings.Contains("\n"+tree, "\n"+want) {
			t.Errorf("the tree lacks\n%s", want)
		}
	}
	for _, span := range r.Spans() {
		if len(span.ParentSpanId) == 0 {
			t.Errorf("%s is below nothing", span.Name)
		}
	}
	if t.Failed() {
		t.Log(tree)
	}
	if bytes.Contains(r.Raw(), []byte("cnr-prov")) {
		t.Error("code or a secret was sent")
	}
	lookFor(t, "the spans", r.Raw())
}

// Without a collector, and with one that takes requests and never answers, an apply goes on as ever, and says nothing of it.
func TestApplyWithoutItsCollector(t *testing.T) {
	testenv.Require(t, "local")
	hanging := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // a request whose body was read notices that the other side is gone
		<-r.Context().Done()
	}))
	defer hanging.Close()
	closed, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = closed.Close()
	for name, endpoint := range map[string]string{"nobody": "http://" + closed.Addr().String(), "hangs": hanging.URL} {
		t.Run(name, func(t *testing.T) {
			s := newStack(t, tracedHCL)
			s.env = append(s.env, "TF_VAR_api="+canaries["provider secrets"], "OTEL_EXPORTER_OTLP_ENDPOINT="+endpoint)
			s.destroyAtEnd(t)
			if out := s.apply(t); strings.Contains(out, "traces") || strings.Contains(out, "collector") || strings.Contains(out, "OTEL") {
				t.Errorf("the CLI shows it:\n%s", out)
			}
			s.wantEmptyPlan(t)
			text, err := os.ReadFile(s.log)
			if err != nil || !bytes.Contains(text, []byte("[WARN]")) || !bytes.Contains(text, []byte("traces")) {
				t.Errorf("the log tells nothing of it (%v)", err)
			}
			for line := range strings.Lines(string(text)) {
				if strings.Contains(line, "[ERROR]") && strings.Contains(line, "provider.terraform-provider-agentkernel") {
					t.Errorf("logged as an error: %s", line)
				}
			}
		})
	}
}
