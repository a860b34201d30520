//go:build linux

package acceptance

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/testenv"
)

const killHCL = `
provider "agentkernel" {
  docker = { host = "HOST" }
}
data "agentkernel_profile" "p" {
  name   = "kill"
  type   = "docker"
  docker = { image = "IMAGE", pull_policy = "never" }
  policy = { fs_allow_write = ["/workspace"], timeout = 30 }
}
resource "agentkernel_sandbox" "s" {
  profile = data.agentkernel_profile.p.spec
  name    = "NAME"
}
resource "agentkernel_exec" "in" {
  binding = agentkernel_sandbox.s.binding
  code    = "print('in')"
}
resource "agentkernel_exec" "once" {
  profile    = data.agentkernel_profile.p.spec
  depends_on = [agentkernel_exec.in]
  code       = "print('once')"
}
`

// engineObject is a container or volume of the engine.
type engineObject struct {
	kind, id string
	labels   map[string]string
}

func docker(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(context.WithoutCancel(t.Context()), "docker", args...).CombinedOutput() // #nosec G204 -- a test
	if err != nil {
		t.Fatalf("docker %v: %v\n%s", args, err, out)
	}
	return string(out)
}

// The provider is killed, or the CLI interrupted, at every request of an apply and a destroy that changes
// something on the engine, and when killed also at the one after it. What
// exists afterwards is in the state or carries our marks; after an interrupt, which leaves time to clean up, it is in the
// state. The next destroy works, and then nothing is left.
func TestKilledAtEveryRequest(t *testing.T) {
	testenv.Require(t, "docker", "terraform")
	proxy := newEngineProxy(t)
	name := fmt.Sprintf("kill-%d", os.Getpid())
	hcl := strings.NewReplacer("HOST", proxy.host, "IMAGE", testenv.Image("python"), "NAME", name).Replace(killHCL)

	clean := newStack(t, hcl)
	proxy.reset(0, nil)
	clean.apply(t)
	applySteps, applyChanges := proxy.turning(true), proxy.turning(false)
	proxy.reset(0, nil)
	clean.must(t, "destroy", "-auto-approve")
	destroySteps, destroyChanges := proxy.turning(true), proxy.turning(false)
	if len(applySteps) < 8 || len(destroySteps) < 2 {
		t.Fatalf("only the requests %v and %v were found", applySteps, destroySteps)
	}

	type steps struct {
		op string
		at []int
	}
	for _, way := range []struct {
		name   string
		signal syscall.Signal
		steps  []steps
	}{
		{"provider killed", syscall.SIGKILL, []steps{{"apply", applySteps}, {"destroy", destroySteps}}},
		{"CLI interrupted", syscall.SIGINT, []steps{{"apply", applyChanges}, {"destroy", destroyChanges}}}, // which takes long: it waits for the provider to clean up
	} {
		for _, op := range way.steps {
			t.Run(way.name+" in "+op.op, func(t *testing.T) {
				s := newStack(t, hcl)
				hits := 0
				for _, n := range op.at {
					if op.op == "destroy" {
						proxy.reset(0, nil)
						s.apply(t)
					}
					own := s.request(t)
					cli := s.command(t.Context(), op.op, "-auto-approve", "-no-color")
					var out bytes.Buffer
					cli.Stdout, cli.Stderr = &out, &out
					hit, started := make(chan struct{}), make(chan int, 1)
					proxy.reset(n, func(_ http.ResponseWriter, forward func()) {
						defer close(hit)
						pid := <-started
						if way.signal == syscall.SIGKILL {
							s.killProvider(pid)
						} else {
							_ = syscall.Kill(pid, syscall.SIGINT)
						}
						forward() // the engine does what it was asked, although nobody waits for it any more
					})
					err := cli.Start()
					if err != nil {
						t.Fatal(err)
					}
					started <- cli.Process.Pid
					err = cli.Wait()
					step := proxy.step(n)
					if n > len(proxy.seen()) {
						// Who else is on the engine decides whether the volume of the run helper is there already, so that there are
						// sometimes fewer requests: then nothing has happened.
						if err != nil {
							t.Fatalf("%s: %v\n%s", step, err, out.String())
						}
						proxy.reset(0, nil)
						close(hit)
					} else if hits++; way.signal == syscall.SIGKILL && err == nil && n != op.at[len(op.at)-1] {
						t.Errorf("%s: the CLI tells of no error:\n%s", step, out.String())
					}
					select {
					case <-hit:
					case <-time.After(time.Minute):
						t.Fatalf("%s has no end:\n%s", step, out.String())
					}
					proxy.reset(0, nil)
					settle(t, s, proxy, own, step, way.signal == syscall.SIGINT)
					s.must(t, "destroy", "-auto-approve")
					if left := proxy.exists(t); len(left) > 0 {
						t.Fatalf("%s: after a whole destroy there is %+v", step, left)
					}
				}
				if 2*hits < len(op.at) {
					t.Errorf("of the requests %v only %d were made", op.at, hits)
				}
				s.apply(t)
				s.wantEmptyPlan(t)
				s.must(t, "destroy", "-auto-approve")
			})
		}
	}
}

// request gives the request id in the marks of the sandbox in the state, empty if there is none.
func (s *stack) request(t *testing.T) string {
	t.Helper()
	id := strings.TrimPrefix(s.state(t)["agentkernel_sandbox.s"].text("id"), "docker/")
	if id == "" {
		return ""
	}
	out, err := exec.CommandContext(t.Context(), "docker", "inspect", "--format", "{{index .Config.Labels \""+sandboxcore.MarkRequest+"\"}}", id).Output() // #nosec G204 -- a test
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(out))
}

// settle checks what exists after an accident and removes what only the marks lead to.
func settle(t *testing.T, s *stack, proxy *engineProxy, request, step string, all bool) {
	t.Helper()
	known := ""
	if o, ok := s.state(t)["agentkernel_sandbox.s"]; ok {
		known = strings.TrimPrefix(o.text("id"), "docker/")
	}
	if r := s.request(t); r != "" {
		request = r
	}
	for _, o := range proxy.exists(t) {
		switch {
		case o.labels[sandboxcore.MarkManaged] != "true":
			t.Errorf("%s: %s %s carries no mark: %v", step, o.kind, o.id, o.labels)
			continue
		case o.id == known, request != "" && o.labels[sandboxcore.MarkRequest] == request:
			continue // in the state, or goes with what is
		case all:
			t.Errorf("%s: %s %s is not in the state: %v", step, o.kind, o.id, o.labels)
		}
	}
	// Orphans, containers before their volumes.
	for _, kind := range []string{"container", "volume"} {
		for _, o := range proxy.exists(t) {
			if o.kind != kind || o.id == known || (request != "" && o.labels[sandboxcore.MarkRequest] == request) {
				continue
			}
			if kind == "container" {
				docker(t, "rm", "-fv", o.id)
			} else {
				docker(t, "volume", "rm", "-f", o.id)
			}
		}
	}
}

const killLocalHCL = `
provider "agentkernel" {
  TYPE = { data_dir = "DATA" }
}
data "agentkernel_profile" "p" {
  name = "kill"
  type = "TYPE"
  TYPE = {}
}
resource "agentkernel_sandbox" "s" {
  profile = data.agentkernel_profile.p.spec
}
`

// The provider is killed at many moments of making and removing a sandbox: what lies in the data directory afterwards is
// in the state, or carries its marks, or is a half-made directory that nothing takes for a sandbox.
func TestKilledWhileMaking(t *testing.T) {
	for _, kind := range []string{"local_subprocess", "bubblewrap"} {
		t.Run(kind, func(t *testing.T) {
			testenv.Require(t, map[string]testenv.Part{"local_subprocess": "local", "bubblewrap": "bubblewrap"}[kind], "terraform")
			s := newStack(t, strings.ReplaceAll(killLocalHCL, "TYPE", kind))
			s.destroyAtEnd(t)
			for _, op := range []string{"apply", "destroy", "apply", "destroy"} {
				cli := s.command(t.Context(), op, "-auto-approve", "-no-color")
				if err := cli.Start(); err != nil {
					t.Fatal(err)
				}
				kinds := s.entries(t)
				// The moment at which the data directory changes is in the middle of the operation.
				for cliRuns(cli) && slices.Equal(kinds, s.entries(t)) {
					time.Sleep(time.Millisecond)
				}
				s.killProvider(cli.Process.Pid)
				_ = cli.Wait()
				known := s.state(t)["agentkernel_sandbox.s"].text("native_id")
				for _, dir := range s.workspaces(t) {
					if filepath.Base(dir) == known {
						continue
					}
					text, err := os.ReadFile(filepath.Join(dir, "marker.json")) // #nosec G304 -- a file of the test
					if err != nil || !strings.Contains(string(text), sandboxcore.MarkManaged) {
						t.Errorf("%s: %s is neither in the state nor marked: %v", op, dir, err)
					}
					if err := os.RemoveAll(dir); err != nil { // an orphan that its marks lead to
						t.Fatal(err)
					}
				}
				s.apply(t)
				s.wantEmptyPlan(t)
			}
		})
	}
}

func (s *stack) entries(t *testing.T) []string {
	t.Helper()
	out, err := filepath.Glob(filepath.Join(s.data, "*", "*"))
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func cliRuns(cmd *exec.Cmd) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", cmd.Process.Pid))
	return err == nil && !strings.Contains(string(text), ") Z ")
}
