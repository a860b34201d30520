//go:build linux

package acceptance

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/testenv"
)

// raw carries messages as they are: the benchmark needs the call, not what is in the answer.
type raw struct{}

func (raw) Marshal(v any) ([]byte, error)      { return *v.(*[]byte), nil }        //nolint:forcetypeassert // only called with it
func (raw) Unmarshal(data []byte, v any) error { *v.(*[]byte) = data; return nil } //nolint:forcetypeassert // as above
func (raw) Name() string                       { return "raw" }

// From the start of the process to the answer of GetProviderSchema (service tfplugin6.Provider of the plugin protocol),
// as Terraform waits for it at each command.
func BenchmarkColdStart(b *testing.B) {
	dir, err := build()
	if err != nil {
		b.Fatal(err)
	}
	var took []time.Duration
	for b.Loop() {
		for range 5 {
			took = append(took, coldStart(b, filepath.Join(dir, "bin", "terraform-provider-agentkernel")))
		}
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "cold-start-ms")
	b.ReportMetric(100, "goal:cold-start-ms")
	b.ReportMetric(0, "ns/op")
}

func coldStart(b *testing.B, program string) time.Duration {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.Context(), time.Minute)
	defer cancel()
	begin := time.Now()
	cmd := exec.CommandContext(ctx, program) // #nosec G204 -- the provider
	// The cookie by which a plugin knows that Terraform started it (go-plugin handshake of terraform-plugin-go).
	cmd.Env = append(os.Environ(), "TF_PLUGIN_MAGIC_COOKIE=d602bf8f470bc67ca7faa0386276bbdd4330efaf76d1a219cb4d6991ca9872b2", "PLUGIN_PROTOCOL_VERSIONS=6")
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	defer func() { cancel(); _ = cmd.Wait() }()
	line, err := bufio.NewReader(out).ReadString('\n')
	parts := strings.Split(strings.TrimSpace(line), "|") // core version | protocol | network | address | grpc | certificate
	if err != nil || len(parts) < 5 {
		b.Fatalf("handshake %q: %v", line, err)
	}
	conn, err := grpc.NewClient(parts[2]+":"+parts[3], grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Close()
	request, answer := []byte{}, []byte{}
	err = conn.Invoke(ctx, "/tfplugin6.Provider/GetProviderSchema", &request, &answer, grpc.ForceCodec(raw{}), grpc.MaxCallRecvMsgSize(64<<20))
	if err != nil || !strings.Contains(string(answer), "agentkernel_sandbox") {
		b.Fatalf("schema of %d bytes: %v", len(answer), err)
	}
	return time.Since(begin)
}

// The peak memory of the provider while a run prints a gibibyte, with the hash of the stream right.
func BenchmarkOutputMemory(b *testing.B) {
	const size = 1 << 30
	sum := sha256.New()
	zeros := make([]byte, 1<<20)
	for range size / len(zeros) {
		sum.Write(zeros)
	}
	want := hex.EncodeToString(sum.Sum(nil))
	for _, kind := range []string{"local_subprocess", "docker"} {
		b.Run(kind, func(b *testing.B) {
			settings := "{}"
			part := testenv.Part("local")
			if kind == "docker" {
				part, settings = "docker", fmt.Sprintf("{ image = %q, pull_policy = \"never\" }", testenv.Image("python"))
			}
			testenv.Require(b, part, "terraform")
			s := newStack(b, strings.NewReplacer("TYPE", kind, "SETTINGS", settings).Replace(`
provider "agentkernel" {
  local_subprocess = { data_dir = "DATA" }
}
data "agentkernel_profile" "p" {
  name = "output"
  type = "TYPE"
  TYPE = SETTINGS
}
resource "agentkernel_exec" "e" {
  profile = data.agentkernel_profile.p.spec
  command = ["head", "-c", "1073741824", "/dev/zero"]
}
output "sha256" {
  value = agentkernel_exec.e.stdout_sha256
}
`))
			s.env = append(s.env, "TF_LOG=", "TF_LOG_PATH=")
			peak := 0
			for b.Loop() {
				cli := s.command(b.Context(), "apply", "-auto-approve", "-no-color")
				if err := cli.Start(); err != nil {
					b.Fatal(err)
				}
				ended := make(chan struct{})
				var watch sync.WaitGroup
				watch.Go(func() {
					for {
						peak = max(peak, peakMemory(s.providerPID(cli.Process.Pid)))
						select {
						case <-ended:
							return
						case <-time.After(50 * time.Millisecond):
						}
					}
				})
				err := cli.Wait()
				close(ended)
				watch.Wait()
				if err != nil {
					b.Fatal(err)
				}
				if got := strings.TrimSpace(s.must(b, "output", "-raw", "sha256")); got != want {
					b.Errorf("sha256 %s, want %s", got, want)
				}
				s.must(b, "destroy", "-auto-approve")
			}
			b.ReportMetric(float64(peak)/1024, "peak-MB")
			b.ReportMetric(150, "goal:peak-MB")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// peakMemory gives VmHWM of a process in KiB (proc(5)), 0 if there is none.
func peakMemory(pid int) int {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		var kib int
		if _, err := fmt.Sscanf(line, "VmHWM: %d kB", &kib); err == nil {
			return kib
		}
	}
	return 0
}
