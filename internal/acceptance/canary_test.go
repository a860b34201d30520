//go:build linux

package acceptance

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/testenv"
)

// Each secret input has a canary of its own, so that a leak names its way.
var canaries = map[string]string{
	"provider secrets": "cnr-prov/8f2+6a1c?94", "sandbox env_wo": "cnr-sbwo/1b7+93de?05", "exec env_wo": "cnr-exwo/5c0+27fa?6b",
}

const canaryHCL = `
variable "api" {
  type      = string
  ephemeral = true
}
variable "box" {
  type      = string
  ephemeral = true
}
variable "run" {
  type      = string
  ephemeral = true
}

provider "agentkernel" {
  secrets          = { api = var.api }
  audit_log        = "DATA.audit"
  local_subprocess = { data_dir = "DATA" }
  bubblewrap       = { data_dir = "DATA" }
}

data "agentkernel_profile" "p" {
  name   = "canary"
  type   = "TYPE"
  TYPE = SETTINGS
}

resource "agentkernel_sandbox" "s" {
  profile        = data.agentkernel_profile.p.spec
  name           = "canary"
  secret_env     = { API = "api" }
  env_wo         = { BOX = var.box }
  env_wo_version = 1
  labels         = { team = "x" }
}

resource "agentkernel_exec" "passes" {
  binding        = agentkernel_sandbox.s.binding
  secret_env     = { API2 = "api" }
  env_wo         = { RUN = var.run }
  env_wo_version = 1
  base64_output  = true
  code           = <<-EOT
    import os, sys, base64, urllib.parse, time, json, subprocess
    assert len(os.environ["API"]) == len(os.environ["API2"]) == 20, os.environ.get("API")
    for k in ("API", "API2", "BOX", "RUN"):
        v = os.environ[k]
        for out in (sys.stdout, sys.stderr):
            print(k, v, base64.b64encode(v.encode()).decode(), base64.b64encode(("u:" + v).encode()).decode(), urllib.parse.quote(v, safe=""), v.encode().hex(), json.dumps(v), file=out)
            out.flush()
            for c in v:  # in pieces
                out.write(c)
                out.flush()
            out.write("\n")
    subprocess.run(["sleep", "0.3"])
    print("done")
  EOT
}

# One-shot, with everything that a run can be given.
resource "agentkernel_exec" "once" {
  profile        = data.agentkernel_profile.p.spec
  secret_env     = { API = "api" }
  env_wo         = { RUN = var.run }
  env_wo_version = 1
  command        = ["python3", "-c", "import os; print(os.environ['API'], os.environ['RUN'])"]
  destroy_script = "echo $API"
}

resource "agentkernel_exec" "fails" {
  count          = FAILS
  binding        = agentkernel_sandbox.s.binding
  secret_env     = { API = "api" }
  env_wo         = { RUN = var.run }
  env_wo_version = 1
  output_files   = ["leak"]
  script         = "echo $API $RUN $BOX; echo $API $RUN $BOX >&2; echo $API > leak; exit EXIT"
}

output "stdout" {
  value = agentkernel_exec.passes.stdout
}
`

// A secret through every secret input, at TRACE, in runs that pass and that fail: it shows in nothing that is kept,
// printed or visible to others on the machine.
func TestCanary(t *testing.T) {
	for _, backend := range []struct {
		kind, settings string
		parts          []testenv.Part
	}{
		{"local_subprocess", "{}", []testenv.Part{"local"}},
		{"bubblewrap", "{}", []testenv.Part{"bubblewrap"}},
		{"docker", fmt.Sprintf("{ image = %q, pull_policy = \"never\" }", testenv.Image("python")), []testenv.Part{"docker"}},
	} {
		t.Run(backend.kind, func(t *testing.T) {
			testenv.Require(t, backend.parts...)
			hcl := func(fails, exit int) string {
				return strings.NewReplacer("TYPE", backend.kind, "SETTINGS", backend.settings, "FAILS", fmt.Sprint(fails), "EXIT", fmt.Sprint(exit)).Replace(canaryHCL)
			}
			s := newStack(t, hcl(0, 0))
			s.env = append(s.env, "TF_VAR_api="+canaries["provider secrets"], "TF_VAR_box="+canaries["sandbox env_wo"], "TF_VAR_run="+canaries["exec env_wo"])
			s.destroyAtEnd(t)
			stop := watchCommandLines(t)
			started := time.Now()

			printed := s.apply(t)
			s.wantEmptyPlan(t)
			if out := s.must(t, "output", "-raw", "stdout"); strings.Count(out, "***") < 24 || !strings.Contains(out, "done") {
				t.Errorf("the output is not there, or not redacted:\n%s", out)
			} else {
				printed += out
			}
			if backend.kind == "docker" {
				lookAtEngine(t, s, started)
			}
			for _, exit := range []int{3, 0} { // fails by its status; then by a file that holds a secret
				s.write(t, hcl(1, exit))
				code, out := s.run(t, "apply", "-auto-approve")
				if code == 0 {
					t.Errorf("exit %d: the apply succeeded:\n%s", exit, out)
				}
				printed += out
			}
			printed += s.must(t, "plan", "-out=saved") + s.must(t, "show", "-json", "saved") + s.must(t, "show", "-json")
			s.write(t, hcl(0, 0))
			printed += s.must(t, "destroy", "-auto-approve")
			stop()
			lookFor(t, "printed text", []byte(printed))
			lookInFiles(t, filepath.Dir(s.dir))
			audit, err := os.ReadFile(s.data + ".audit")
			if err != nil || bytes.Count(audit, []byte(`"operation":"run"`)) < 4 {
				t.Errorf("the audit log is not there: %v\n%s", err, audit)
			}
		})
	}
}

// lookFor fails when text holds a canary in any encoding.
func lookFor(t *testing.T, where string, text []byte) {
	t.Helper()
	for way, c := range canaries {
		for _, shape := range []string{
			c, base64.StdEncoding.EncodeToString([]byte(c))[:24], base64.StdEncoding.EncodeToString([]byte("u:" + c))[4:24], url.QueryEscape(c), hex.EncodeToString([]byte(c)),
			strings.ReplaceAll(c, "+", `\u002b`),
		} {
			if i := bytes.Index(text, []byte(shape)); i >= 0 {
				t.Errorf("the canary of %s is in %s: …%s…", way, where, bytes.ReplaceAll(text[max(0, i-120):min(len(text), i+80)], []byte(shape), []byte("<CANARY>")))
			}
		}
	}
}

// lookInFiles looks into configuration, state, backups, plan files, logs and the data directories.
func lookInFiles(t *testing.T, dir string) {
	t.Helper()
	seen := 0
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		text, err := os.ReadFile(path) // #nosec G304 -- a file of the test
		if err != nil {
			return err
		}
		seen++
		if filepath.Base(path) == "saved" { // a plan is a zip file
			unzip := exec.Command("python3", "-c", "import sys,zipfile\nz=zipfile.ZipFile(sys.argv[1])\nfor n in z.namelist(): sys.stdout.buffer.write(z.read(n))", path) // #nosec G204 -- a test
			if text, err = unzip.Output(); err != nil {
				return err
			}
		}
		lookFor(t, path, text)
		return nil
	})
	if err != nil || seen < 4 {
		t.Errorf("%d files looked at: %v", seen, err)
	}
}

// watchCommandLines looks at all command lines of the machine until stop is called.
func watchCommandLines(t *testing.T) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var wg sync.WaitGroup
	wg.Go(func() {
		for ctx.Err() == nil {
			files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
			for _, f := range files {
				if text, err := os.ReadFile(f); err == nil {
					lookFor(t, "a command line", text)
				}
			}
			select {
			case <-ctx.Done():
			case <-time.After(5 * time.Millisecond):
			}
		}
	})
	return sync.OnceFunc(func() { cancel(); wg.Wait() })
}

// lookAtEngine looks at what the engine tells of the sandbox. A sandbox's own environment is shown by inspect, as the
// documentation says; everything else, and every secret of a run, is not.
func lookAtEngine(t *testing.T, s *stack, since time.Time) {
	t.Helper()
	id := strings.TrimPrefix(s.state(t)["agentkernel_sandbox.s"].text("id"), "docker/")
	docker := func(args ...string) []byte {
		out, err := exec.CommandContext(t.Context(), "docker", args...).CombinedOutput() // #nosec G204 -- a test
		if err != nil {
			t.Fatalf("docker %v: %v\n%s", args, err, out)
		}
		return out
	}
	lookFor(t, "docker inspect without the environment", docker("inspect", "--format", "{{json .Config.Labels}} {{json .HostConfig}} {{json .Args}} {{json .Mounts}} {{json .ExecIDs}} {{json .State}} {{json .Name}}", id))
	lookFor(t, "docker events", docker("events", "--since", fmt.Sprint(since.Unix()-1), "--until", fmt.Sprint(time.Now().Unix()+1), "--format", "{{json .}}"))
	lookFor(t, "docker ps", docker("ps", "-a", "--no-trunc", "--format", "{{json .}}"))
	if env := docker("inspect", "--format", "{{json .Config.Env}}", id); bytes.Contains(env, []byte(canaries["exec env_wo"])) {
		t.Error("a secret of a run is in the container's environment")
	}
}
