//go:build linux

package acceptance

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/backends"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/protocoltest"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/provider"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/testenv"
)

type arguments = protocoltest.Config

const sandboxType = "agentkernel_sandbox"

// query is a provider that is asked over the protocol: a CLI that knows list resources is not needed.
func query(t *testing.T) *protocoltest.Server {
	t.Helper()
	s := protocoltest.New(t, provider.New("test", backends.Registry(), provider.WithGetenv(os.Getenv)))
	if d := s.Configure(arguments{"docker": arguments{}}); d.HasError() {
		t.Fatal(d)
	}
	return s
}

func list(t *testing.T, s *protocoltest.Server, filter arguments, limit int64, includeResource bool) []protocoltest.Listed {
	t.Helper()
	all := s.List(sandboxType, arguments{"backend": "docker"}.With(filter), limit, includeResource, 0)
	for _, l := range all {
		if len(l.Diags) > 0 {
			t.Fatalf("%v: %s", filter, l.Diags)
		}
	}
	return all
}

const manyHCL = `
data "agentkernel_profile" "p" {
  count  = 2
  name   = "many"
  type   = "docker"
  docker = { image = "IMAGE", pull_policy = "never" }
  policy = { network_egress = "deny", timeout = 30 + count.index }
}
resource "agentkernel_sandbox" "s" {
  count   = 25
  profile = data.agentkernel_profile.p[count.index == 7 ? 1 : 0].spec
  name    = "many-${count.index % 5}"
  labels  = { test = "NAME", half = tostring(count.index % 2) }
}
output "ids" { value = agentkernel_sandbox.s[*].native_id }
output "fingerprint" { value = data.agentkernel_profile.p[1].fingerprint }
`

const foundHCL = `
data "agentkernel_sandboxes" "d" {
  backend = "docker"
  FILTER
}
output "found" { value = data.agentkernel_sandboxes.d.sandboxes[*].id }
`

// found are the ids that the data source gives.
func found(t *testing.T, filter string) []string {
	t.Helper()
	s := newStack(t, strings.ReplaceAll(foundHCL, "FILTER", filter))
	s.apply(t)
	var ids []string
	s.output(t, "found", &ids)
	return ids
}

func (s *stack) output(t *testing.T, name string, into any) {
	t.Helper()
	if err := json.Unmarshal([]byte(s.must(t, "output", "-json", name)), into); err != nil {
		t.Fatal(err)
	}
}

// TestQueryOfARealEngine lists 25 sandboxes among whatever else the engine has.
func TestQueryOfARealEngine(t *testing.T) {
	testenv.Require(t, "docker", "terraform")
	const many = 25
	name := fmt.Sprintf("query-%d", os.Getpid())
	s := newStack(t, strings.NewReplacer("IMAGE", testenv.Image("bare"), "NAME", name).Replace(manyHCL))
	s.destroyAtEnd(t)
	s.apply(t)
	var ids []string
	var fingerprint string
	s.output(t, "ids", &ids)
	s.output(t, "fingerprint", &fingerprint)

	q := query(t)
	ours := arguments{"labels": arguments{"test": name}}
	all := list(t, q, ours, 0, true)
	var seen []string
	for _, l := range all {
		id, _ := l.Identity["native_id"].(string)
		seen = append(seen, id)
		if l.Resource.Get("id") != "docker/"+id || l.Resource.Get("labels", "test") != name || l.Resource.Get("endpoint") != l.Identity["endpoint"] {
			t.Errorf("%s has the object %s", l.DisplayName, l.Resource.JSON())
		}
	}
	slices.Sort(ids)
	slices.Sort(seen)
	if len(ids) != many || !slices.Equal(seen, ids) {
		t.Errorf("made   %v\nlisted %v", ids, seen)
	}
	imported, d := q.ImportIdentity(sandboxType, all[3].Identity)
	if d.HasError() || !imported.Value.Equal(all[3].Resource.Value) {
		t.Errorf("listed   %s\nimported %s %s", all[3].Resource.JSON(), imported.JSON(), d)
	}
	for limit, want := range map[int64]int{1: 1, 10: 10, many: many, many + 1: many} {
		got := list(t, q, ours, limit, false)
		if len(got) != want {
			t.Errorf("limit %d gives %d", limit, len(got))
		}
		for i, l := range got { // oldest first: a limit cuts off the same ones each time
			if l.Identity["native_id"] != all[i].Identity["native_id"] {
				t.Errorf("limit %d: number %d is another one", limit, i)
			}
		}
	}
	for _, c := range []struct {
		filter arguments
		hcl    string
		want   int
	}{
		{arguments{"name": "many-3"}, `name = "many-3"`, many / 5},
		{arguments{"labels": arguments{"test": name, "half": "1"}}, "", many / 2},
		{arguments{"fingerprint": fingerprint}, `fingerprint = "` + fingerprint + `"`, 1},
		{arguments{"name": "many-2", "fingerprint": fingerprint}, `name = "many-2"` + "\n" + `fingerprint = "` + fingerprint + `"`, 1},
		{arguments{"name": "many-3", "fingerprint": fingerprint}, `name = "many-3"` + "\n" + `fingerprint = "` + fingerprint + `"`, 0},
	} {
		filter, labels := ours.With(c.filter), `labels = { test = "`+name+`" }`
		if c.hcl == "" {
			labels = `labels = { test = "` + name + `", half = "1" }`
		}
		if got := list(t, q, filter, 0, false); len(got) != c.want {
			t.Errorf("the list gives %d with %v, and should give %d", len(got), c.filter, c.want)
		}
		if got := found(t, labels+"\n"+c.hcl); len(got) != c.want {
			t.Errorf("the data source gives %d with %v, and should give %d", len(got), c.filter, c.want)
		}
	}
}

const orphanHCL = `
provider "agentkernel" {
  docker  = { host = "HOST" }
  secrets = { token = "hunter2hunter2" }
}
data "agentkernel_profile" "p" {
  name   = "orphan"
  type   = "docker"
  docker = { image = "IMAGE", pull_policy = "never" }
  policy = { network_egress = "deny", cpu = 0.5, fs_allow_write = ["/workspace"] }
}
resource "agentkernel_sandbox" "s" {
  profile    = data.agentkernel_profile.p.spec
  name       = "NAME"
  env        = { A = "1" }
  secret_env = { T = "token" }
  labels     = { team = "x" }
  timeouts   = { create = "5m" }
}
`

// secretHCL is the provider of whoever takes an orphan over. A plan that changes a sandbox asks for its secrets by name.
const secretHCL = `
provider "agentkernel" {
  secrets = { token = "hunter2hunter2" }
}
`

// written are what Terraform writes into the configuration of an import.
func written(s protocoltest.State) arguments {
	out := arguments{}
	for _, name := range []string{"profile", "name", "env", "secret_env", "env_wo_version", "labels", "packages", "principal", "desired_state", "max_lifetime", "timeouts"} {
		out[name] = s.Get(name)
	}
	return out
}

// TestOrphanIsFoundAndImported: the provider is killed while it makes a sandbox, at two moments: when the engine has made
// the container, and when it has started it. No state knows it, and yet it is found and taken over.
func TestOrphanIsFoundAndImported(t *testing.T) {
	testenv.Require(t, "docker", "terraform")
	// With another sandbox on the engine the first start of a new one succeeds: the helper is there.
	anchor := newStack(t, strings.NewReplacer("HOST", engineSocket(), "IMAGE", testenv.Image("user"), "NAME", "anchor").Replace(orphanHCL))
	anchor.destroyAtEnd(t)
	anchor.apply(t)
	for moment, c := range map[string]struct {
		path   *regexp.Regexp
		status string
		plan   string
	}{
		"made":    {regexp.MustCompile(`/containers/create$`), "stopped", "1 to import, 0 to add, 1 to change, 0 to destroy"},
		"started": {regexp.MustCompile(`/containers/[0-9a-f]{64}/start$`), "running", "1 to import, 0 to add, 0 to change, 0 to destroy"},
	} {
		t.Run(moment, func(t *testing.T) {
			proxy := newEngineProxy(t)
			name := fmt.Sprintf("orphan-%s-%d", moment, os.Getpid())
			s := newStack(t, strings.NewReplacer("HOST", proxy.host, "IMAGE", testenv.Image("user"), "NAME", name).Replace(orphanHCL))
			cli := s.command(t.Context(), "apply", "-auto-approve", "-no-color")
			var out bytes.Buffer
			cli.Stdout, cli.Stderr = &out, &out
			hit, started := make(chan struct{}), make(chan int, 1)
			made := false
			proxy.await(func(r *http.Request) bool {
				// Other containers than the sandbox's are made and started besides, to hand over its directories.
				made = made || strings.HasPrefix(r.URL.Query().Get("name"), "agentkernel-"+name)
				return r.Method == http.MethodPost && made && c.path.MatchString(r.URL.Path)
			}, func(_ http.ResponseWriter, forward func()) {
				defer close(hit)
				s.killProvider(<-started)
				forward() // the engine does what it was asked, although nobody waits for it any more
			})
			if err := cli.Start(); err != nil {
				t.Fatal(err)
			}
			started <- cli.Process.Pid
			_ = cli.Wait()
			select {
			case <-hit:
			case <-time.After(time.Minute):
				t.Fatalf("no such request was made:\n%s", out.String())
			}
			proxy.reset(0, nil)
			if known := s.state(t); len(known) != 0 {
				t.Fatalf("the state knows %v", known)
			}
			t.Cleanup(func() {
				for _, o := range proxy.exists(t) {
					t.Errorf("left behind: %+v", o)
					if o.kind == "container" {
						docker(t, "rm", "-fv", o.id)
					}
				}
			})

			q := query(t)
			listed := list(t, q, arguments{"name": name}, 0, true)
			if len(listed) != 1 {
				t.Fatalf("%d are listed", len(listed))
			}
			if listed[0].Resource.Get("status") != c.status {
				t.Fatalf("listed %s", listed[0].Resource.JSON())
			}
			id, _ := listed[0].Resource.Get("id").(string)
			if got := found(t, `name = "`+name+`"`); !slices.Equal(got, []string{id}) {
				t.Errorf("the data source gives %v, and the list %s", got, id)
			}
			imported, d := q.ImportIdentity(sandboxType, listed[0].Identity)
			if d.HasError() || !imported.Value.Equal(listed[0].Resource.Value) {
				t.Errorf("listed   %s\nimported %s %s", listed[0].Resource.JSON(), imported.JSON(), d)
			}

			// With a configuration that Terraform writes. While there is none, Terraform 1.16 looks for a provider of its own
			// maker unless one is named; as soon as there is one, none may be named.
			block := fmt.Sprintf("import {\n  to = agentkernel_sandbox.s\n  id = %q\n}\n", id)
			heir := newStack(t, secretHCL+strings.Replace(block, "{", "{\n  provider = agentkernel", 1))
			heir.destroyAtEnd(t)
			if out := heir.must(t, "plan", "-generate-config-out=generated.tf"); !strings.Contains(out, c.plan) {
				t.Errorf("planned:\n%s", out)
			}
			heir.write(t, secretHCL+block)
			heir.apply(t)
			heir.wantEmptyPlan(t)
			generated, err := os.ReadFile(filepath.Join(heir.dir, "generated.tf"))
			if err != nil || bytes.Contains(generated, []byte("hunter2")) {
				t.Errorf("%v:\n%s", err, generated)
			}

			// By id, with the command, into another state; and by identity.
			other := newStack(t, secretHCL+string(generated))
			other.must(t, "import", "agentkernel_sandbox.s", id)
			other.wantEmptyPlan(t)
			q = query(t) // another process, which has no look of before in its memory
			imported, d = q.ImportIdentity(sandboxType, listed[0].Identity)
			if d.HasError() {
				t.Fatal(d)
			}
			q.MustBeSettled(imported, written(imported))
			if imported.Get("status") != "running" {
				t.Errorf("it is %v", imported.Get("status"))
			}

			// It is a sandbox like any other.
			heir.write(t, secretHCL+`
resource "agentkernel_exec" "e" {
  binding = agentkernel_sandbox.s.binding
  script  = "test $(id -u) != 0 && echo $A > /workspace/f && cat /workspace/f"
}
output "said" { value = agentkernel_exec.e.stdout }
`)
			heir.apply(t)
			var said string
			if heir.output(t, "said", &said); said != "1\n" {
				t.Errorf("it says %q", said)
			}
		})
	}
}

const actionHCL = `
provider "agentkernel" {
  secrets = { token = "hunter2hunter2" }
}
data "agentkernel_profile" "p" {
  name   = "look"
  type   = "docker"
  docker = { image = "IMAGE", pull_policy = "never" }
  policy = { network_egress = "deny", cpu = 0.5 }
}
resource "agentkernel_sandbox" "s" {
  profile = data.agentkernel_profile.p.spec
  name    = "NAME"
  env     = { A = "1" }
  lifecycle {
    action_trigger {
      events  = [after_create]
      actions = [action.agentkernel_exec.made]
    }
  }
}
action "agentkernel_exec" "made" {
  config {
    binding = agentkernel_sandbox.s.binding
    script  = "echo triggered > /workspace/f; echo said $A"
  }
}
action "agentkernel_exec" "asked" {
  config {
    binding    = agentkernel_sandbox.s.binding
    script     = "cat /workspace/f; echo said $T"
    secret_env = { T = "token" }
  }
}
action "agentkernel_exec" "refused" {
  config {
    binding  = agentkernel_sandbox.s.binding
    code     = "1"
    language = "cobol"
  }
}
`

const listHCL = `
list "agentkernel_sandbox" "l" {
  provider = agentkernel
  config {
    backend = "docker"
    name    = "NAME"
  }
}
list "agentkernel_sandbox" "away" {
  provider = agentkernel
  config {
    backend = "e2b"
  }
}
`

// TestQueryAndActionsOfTheCLI is the real look at what the other tests show over the protocol: a CLI that knows list resources
// and actions accepts them, runs them and takes over what it found.
func TestQueryAndActionsOfTheCLI(t *testing.T) {
	testenv.Require(t, testenv.Docker, testenv.Queries, testenv.Actions, testenv.Identity)
	name := fmt.Sprintf("look-%d", os.Getpid())
	replaced := strings.NewReplacer("IMAGE", testenv.Image("python"), "NAME", name)
	s := newStack(t, replaced.Replace(actionHCL))
	s.destroyAtEnd(t)
	if out := s.apply(t); !strings.Contains(out, "said 1") || !strings.Contains(out, "Actions: 1 invoked") {
		t.Errorf("the trigger ran nothing:\n%s", out)
	}
	s.wantEmptyPlan(t)
	out := s.must(t, "apply", "-auto-approve", "-invoke=action.agentkernel_exec.asked")
	if !strings.Contains(out, "triggered") || !strings.Contains(out, "said ***") || strings.Contains(out, "hunter2") {
		t.Errorf("asked for, it says:\n%s", out)
	}
	if code, out := s.run(t, "apply", "-auto-approve", "-invoke=action.agentkernel_exec.refused"); code == 0 || !strings.Contains(out, "AK4001") {
		t.Errorf("refused with status %d:\n%s", code, out)
	}

	if err := os.WriteFile(filepath.Join(s.dir, "look.tfquery.hcl"), []byte(replaced.Replace(listHCL)), 0o600); err != nil {
		t.Fatal(err)
	}
	code, out := s.run(t, "query")
	if id := s.state(t)["agentkernel_sandbox.s"].text("id"); code == 0 || !strings.Contains(out, name+" ("+id+")") || !strings.Contains(out, "AK5010") {
		t.Errorf("the query ended with %d:\n%s", code, out)
	}
	only, _, _ := strings.Cut(replaced.Replace(listHCL), `list "agentkernel_sandbox" "away"`)
	if err := os.WriteFile(filepath.Join(s.dir, "look.tfquery.hcl"), []byte(only), 0o600); err != nil {
		t.Fatal(err)
	}
	s.must(t, "query", "-generate-config-out=generated.tf")
	generated, err := os.ReadFile(filepath.Join(s.dir, "generated.tf"))
	if err == nil {
		err = os.Remove(filepath.Join(s.dir, "generated.tf")) // it is for another state
	}
	if err != nil {
		t.Fatal(err)
	}
	heir := newStack(t, string(generated)) // with an import by identity in it
	if out := heir.apply(t); !strings.Contains(out, "1 imported, 0 added, 0 changed, 0 destroyed") {
		t.Errorf("the import changes something:\n%s\n%s", generated, out)
	}
	heir.wantEmptyPlan(t)
}
