package provider_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/hashicorp/terraform-plugin-framework/providerserver"
	"github.com/hashicorp/terraform-plugin-go/tfprotov6"
	"github.com/hashicorp/terraform-plugin-testing/helper/resource"
	"github.com/hashicorp/terraform-plugin-testing/knownvalue"
	"github.com/hashicorp/terraform-plugin-testing/plancheck"
	"github.com/hashicorp/terraform-plugin-testing/statecheck"
	"github.com/hashicorp/terraform-plugin-testing/terraform"
	"github.com/hashicorp/terraform-plugin-testing/tfjsonpath"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/backends"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/provider"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/testenv"
)

// The tests of this file drive a real Terraform and real backends. terraform-plugin-testing itself plans again after
// each step, with and without a refresh, and fails when that plan is not empty.

type factories = map[string]func() (tfprotov6.ProviderServer, error)

// acceptance finds the program, and gives providers whose sandboxes on this machine lie in a directory of the test.
func acceptance(t *testing.T, parts ...testenv.Part) (factories, string) {
	t.Helper()
	testenv.Require(t, parts...)
	testenv.PluginTesting(t)
	dir := stateHome(t)
	getenv := func(name string) string {
		switch name {
		case "XDG_STATE_HOME":
			return dir
		case "AGENTKERNEL_AUDIT_LOG":
			return ""
		}
		return os.Getenv(name)
	}
	return factories{
		"agentkernel": providerserver.NewProtocol6WithError(provider.New("test", backends.Registry(), provider.WithGetenv(getenv))()),
	}, dir
}

// stateHome is a directory that the users of bubblewrap's sandboxes may enter, unlike t.TempDir. It must be empty of
// sandboxes in the end.
func stateHome(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "agentkernel-acc-")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		left := sandboxDirs(dir)
		if len(left) > 0 {
			t.Errorf("left behind: %v", left)
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// sandboxDirs lists the workspaces below a state directory.
func sandboxDirs(dir string) []string {
	var left []string
	found, _ := filepath.Glob(filepath.Join(dir, "agentkernel", "*", "*"))
	for _, f := range found {
		if info, err := os.Stat(f); err == nil && info.IsDir() {
			left = append(left, f)
		}
	}
	return left
}

// place is a backend as the acceptance tests use it.
type place struct {
	name, typeName, block string
	parts                 []testenv.Part
}

func places() []place {
	return []place{
		{"local_subprocess", "local_subprocess", "{}", []testenv.Part{testenv.Local}},
		{"bubblewrap", "bubblewrap", "{}", []testenv.Part{testenv.Bubblewrap}},
		{"docker", "docker", dockerBlock("python"), []testenv.Part{testenv.Docker}},
		// The image's USER, WORKDIR, ENV, ENTRYPOINT and CMD must not come back as a difference.
		{"docker, image with defaults of its own", "docker", dockerBlock("user"), []testenv.Part{testenv.Docker}},
	}
}

func dockerBlock(image string) string {
	return fmt.Sprintf(`{ image = %q, pull_policy = "never" }`, testenv.Image(image))
}

// job is a profile, a sandbox and a run.
func (p place) job(sandbox, run string) string {
	return fmt.Sprintf(`
data "agentkernel_profile" "p" {
  name = "acc"
  type = %[1]q
  %[1]s = %[2]s
}
resource "agentkernel_sandbox" "s" {
  profile = data.agentkernel_profile.p.spec
  %[3]s
}
resource "agentkernel_exec" "e" {
  binding = agentkernel_sandbox.s.binding
  %[4]s
}
`, p.typeName, p.block, sandbox, run)
}

func TestAccLifeCycle(t *testing.T) {
	for _, p := range places() {
		t.Run(p.name, func(t *testing.T) {
			f, _ := acceptance(t, p.parts...)
			exit := func(code int) statecheck.StateCheck {
				return statecheck.ExpectKnownValue("agentkernel_exec.e", tfjsonpath.New("exit_code"), knownvalue.Int64Exact(int64(code)))
			}
			stdout := func(s string) statecheck.StateCheck {
				return statecheck.ExpectKnownValue("agentkernel_exec.e", tfjsonpath.New("stdout"), knownvalue.StringExact(s))
			}
			inPlace := resource.ConfigPlanChecks{PreApply: []plancheck.PlanCheck{
				plancheck.ExpectResourceAction("agentkernel_sandbox.s", plancheck.ResourceActionNoop),
				plancheck.ExpectResourceAction("agentkernel_exec.e", plancheck.ResourceActionUpdate),
			}}
			sandbox := `env = { GREETING = "hello" }`
			resource.UnitTest(t, resource.TestCase{
				ProtoV6ProviderFactories: f,
				Steps: []resource.TestStep{
					{
						Config:            p.job(sandbox, `code = "import os; print(os.environ['GREETING'])"`),
						ConfigStateChecks: []statecheck.StateCheck{exit(0), stdout("hello\n")},
						ConfigPlanChecks: resource.ConfigPlanChecks{PreApply: []plancheck.PlanCheck{
							plancheck.ExpectKnownValue("agentkernel_sandbox.s", tfjsonpath.New("binding").AtMapKey("backend"), knownvalue.StringExact(p.typeName)),
							plancheck.ExpectUnknownValue("agentkernel_sandbox.s", tfjsonpath.New("binding").AtMapKey("id")),
						}},
					},
					{
						Config:            p.job(sandbox, `command = ["sh", "-c", "cat; exit 3"]`+"\n  stdin = \"data\"\n  success_exit_codes = [3]"),
						ConfigPlanChecks:  inPlace,
						ConfigStateChecks: []statecheck.StateCheck{exit(3), stdout("data")},
					},
					{
						Config: p.job(sandbox, `script = "printf '{}' > out.json; echo done"`+"\n  output_files = [\"out.json\"]"),
						ConfigStateChecks: []statecheck.StateCheck{
							exit(0), stdout("done\n"),
							statecheck.ExpectKnownValue("agentkernel_exec.e", tfjsonpath.New("files").AtMapKey("out.json").AtMapKey("size"), knownvalue.Int64Exact(2)),
						},
					},
					{
						// A run that fails keeps the old record and says what happened.
						Config:      p.job(sandbox, `script = "echo seen; echo why >&2; exit 9"`),
						ExpectError: regexp.MustCompile(`(?s)AK5006`),
					},
					{Config: p.job(sandbox, `script = "printf '{}' > out.json; echo done"`+"\n  output_files = [\"out.json\"]"), ConfigPlanChecks: resource.ConfigPlanChecks{PreApply: []plancheck.PlanCheck{plancheck.ExpectEmptyPlan()}}},
					{ResourceName: "agentkernel_sandbox.s", ImportState: true, ImportStateVerify: true},
					{ResourceName: "agentkernel_sandbox.s", ImportState: true, ImportStateKind: resource.ImportBlockWithID},
				},
			})
		})
	}
}

func TestAccOneShot(t *testing.T) {
	for _, p := range places() {
		t.Run(p.name, func(t *testing.T) {
			f, dir := acceptance(t, p.parts...)
			resource.UnitTest(t, resource.TestCase{
				ProtoV6ProviderFactories: f,
				Steps: []resource.TestStep{{
					Config: fmt.Sprintf(`
resource "agentkernel_profile" "p" {
  name = "acc"
  type = %[1]q
  %[1]s = %[2]s
}
resource "agentkernel_exec" "e" {
  profile = agentkernel_profile.p.spec
  script  = "echo once"
}`, p.typeName, p.block),
					ConfigStateChecks: []statecheck.StateCheck{statecheck.ExpectKnownValue("agentkernel_exec.e", tfjsonpath.New("stdout"), knownvalue.StringExact("once\n"))},
					Check: func(*terraform.State) error {
						if left := sandboxDirs(dir); len(left) > 0 {
							return fmt.Errorf("left behind: %v", left)
						}
						return nil
					},
				}},
			})
		})
	}
}

// TestAccSecretsAndTheirPlace: values reach the code by all ways and the output hides them.
func TestAccSecrets(t *testing.T) {
	for _, p := range places() {
		t.Run(p.name, func(t *testing.T) {
			f, _ := acceptance(t, p.parts...)
			resource.UnitTest(t, resource.TestCase{
				ProtoV6ProviderFactories: f,
				Steps: []resource.TestStep{{
					Config: `provider "agentkernel" { secrets = { token = "canary-named-4411" } }` + p.job(
						`secret_env = { BOX = "token" }`,
						`secret_env = { RUN = "token" }`+"\n  env_wo = { WO = \"canary-written-4411\" }\n  env_wo_version = 1\n"+
							`  code = "import os; print(*(len(os.environ[k]) for k in ('BOX', 'RUN', 'WO')), os.environ['RUN'], os.environ['WO'])"`),
					ConfigStateChecks: []statecheck.StateCheck{
						statecheck.ExpectKnownValue("agentkernel_exec.e", tfjsonpath.New("stdout"), knownvalue.StringExact("17 17 19 *** ***\n")),
						statecheck.ExpectKnownValue("agentkernel_exec.e", tfjsonpath.New("env_wo"), knownvalue.Null()),
					},
				}},
			})
		})
	}
}

// TestAccUntrustedOutput: a MiB of code works, and bytes that are no text are stored as such only on request.
func TestAccUntrustedOutput(t *testing.T) {
	for _, p := range places()[:3] {
		t.Run(p.name, func(t *testing.T) {
			f, _ := acceptance(t, p.parts...)
			// From a file: Terraform itself takes minutes to put such a text together in an expression.
			code := strings.Repeat("# "+strings.Repeat("x", 1021)+"\n", 1024) + `import sys; sys.stdout.buffer.write(b'\xff\x1b[31mok\xe2\x80\xae')`
			file := filepath.Join(t.TempDir(), "code.py")
			if err := os.WriteFile(file, []byte(code), 0o600); err != nil {
				t.Fatal(err)
			}
			resource.UnitTest(t, resource.TestCase{
				ProtoV6ProviderFactories: f,
				Steps: []resource.TestStep{
					{
						Config: p.job("", fmt.Sprintf("code = file(%q)\n  base64_output = true", file)),
						ConfigStateChecks: []statecheck.StateCheck{
							statecheck.ExpectKnownValue("agentkernel_exec.e", tfjsonpath.New("stdout"), knownvalue.StringExact("\ufffd\\x1b[31mok\\u202e")),
							statecheck.ExpectKnownValue("agentkernel_exec.e", tfjsonpath.New("stdout_base64"), knownvalue.StringExact("/xtbMzFtb2vigK4=")),
							statecheck.ExpectKnownValue("agentkernel_exec.e", tfjsonpath.New("stdout_bytes"), knownvalue.Int64Exact(11)),
						},
					},
					{
						Config:      p.job("", "script = \"echo begun; sleep 60\"\n  timeout = \"2s\""),
						ExpectError: regexp.MustCompile(`(?s)AK5001`),
					},
				},
			})
		})
	}
}

// TestAccSensitiveValuesKeepTheirMark: a sensitive variable in a plain map stays hidden in the plan, and hides no other key.
func TestAccSensitiveValuesKeepTheirMark(t *testing.T) {
	f, _ := acceptance(t, testenv.Local)
	p := place{typeName: "local_subprocess", block: "{}"}
	resource.UnitTest(t, resource.TestCase{
		ProtoV6ProviderFactories: f,
		Steps: []resource.TestStep{{
			Config: `
variable "hidden" {
  sensitive = true
  default   = "not for everybody"
}
` + p.job(`env = { HIDDEN = var.hidden, OPEN = "1" }`, `script = "true"`),
			ConfigPlanChecks: resource.ConfigPlanChecks{PreApply: []plancheck.PlanCheck{
				plancheck.ExpectSensitiveValue("agentkernel_sandbox.s", tfjsonpath.New("env").AtMapKey("HIDDEN")),
			}},
			ConfigStateChecks: []statecheck.StateCheck{
				statecheck.ExpectSensitiveValue("agentkernel_sandbox.s", tfjsonpath.New("env").AtMapKey("HIDDEN")),
				statecheck.ExpectKnownValue("agentkernel_sandbox.s", tfjsonpath.New("env").AtMapKey("OPEN"), knownvalue.StringExact("1")),
			},
		}},
	})
}

// TestAccDockerDrift: what somebody does to a container behind our back gives exactly the documented plan.
func TestAccDockerDrift(t *testing.T) {
	f, _ := acceptance(t, testenv.Docker)
	if _, err := exec.LookPath("docker"); err != nil {
		testenv.Skip(t, testenv.Docker, "no docker program to interfere with", "apt-get install docker.io")
	}
	p := place{typeName: "docker", block: dockerBlock("python")}
	cfg := p.job(`desired_state = "running"`, `script = "echo here"`)
	var id string
	note := func(s *terraform.State) error {
		id = s.RootModule().Resources["agentkernel_sandbox.s"].Primary.Attributes["native_id"]
		return nil
	}
	docker := func(args ...string) func() {
		return func() {
			if out, err := exec.CommandContext(t.Context(), "docker", append(args, id)...).CombinedOutput(); err != nil {
				t.Fatalf("docker %v: %v\n%s", args, err, out)
			}
		}
	}
	sandbox := func(a plancheck.ResourceActionType) resource.ConfigPlanChecks {
		return resource.ConfigPlanChecks{PreApply: []plancheck.PlanCheck{plancheck.ExpectResourceAction("agentkernel_sandbox.s", a)}}
	}
	running := []statecheck.StateCheck{statecheck.ExpectKnownValue("agentkernel_sandbox.s", tfjsonpath.New("status"), knownvalue.StringExact("running"))}
	resource.UnitTest(t, resource.TestCase{
		ProtoV6ProviderFactories: f,
		Steps: []resource.TestStep{
			{Config: cfg, Check: note},
			{PreConfig: docker("stop", "-t", "0"), Config: cfg, ConfigPlanChecks: sandbox(plancheck.ResourceActionUpdate), ConfigStateChecks: running},
			{PreConfig: docker("pause"), Config: cfg, ConfigPlanChecks: sandbox(plancheck.ResourceActionUpdate), ConfigStateChecks: running},
			{PreConfig: docker("rm", "-f"), Config: cfg, ConfigPlanChecks: sandbox(plancheck.ResourceActionCreate), ConfigStateChecks: running, Check: note},
			{
				Config:            strings.Replace(cfg, `"running"`, `"paused"`, 1),
				ConfigPlanChecks:  sandbox(plancheck.ResourceActionUpdate),
				ConfigStateChecks: []statecheck.StateCheck{statecheck.ExpectKnownValue("agentkernel_sandbox.s", tfjsonpath.New("status"), knownvalue.StringExact("paused"))},
			},
			{
				// A run in a paused sandbox is refused and names what to change.
				Config:      strings.Replace(strings.Replace(cfg, `"running"`, `"paused"`, 1), "echo here", "echo there", 1),
				ExpectError: regexp.MustCompile(`(?s)AK5003`),
			},
			{Config: cfg, ConfigPlanChecks: sandbox(plancheck.ResourceActionUpdate), ConfigStateChecks: running},
		},
	})
}

// TestAccWorkspaceDrift: a workspace that somebody removed is gone, and is made anew.
func TestAccWorkspaceDrift(t *testing.T) {
	for _, p := range places()[:2] {
		t.Run(p.name, func(t *testing.T) {
			f, dir := acceptance(t, p.parts...)
			cfg := p.job("", `script = "echo here"`)
			resource.UnitTest(t, resource.TestCase{
				ProtoV6ProviderFactories: f,
				Steps: []resource.TestStep{
					{Config: cfg},
					{
						PreConfig: func() {
							for _, d := range sandboxDirs(dir) {
								if err := os.RemoveAll(d); err != nil {
									t.Fatal(err)
								}
							}
						},
						Config: cfg,
						ConfigPlanChecks: resource.ConfigPlanChecks{PreApply: []plancheck.PlanCheck{
							plancheck.ExpectResourceAction("agentkernel_sandbox.s", plancheck.ResourceActionCreate),
							plancheck.ExpectResourceAction("agentkernel_exec.e", plancheck.ResourceActionUpdate),
						}},
					},
				},
			})
		})
	}
}

func TestAccRefusals(t *testing.T) {
	f, dir := acceptance(t)
	refuse := func(typeName, policy, code string) resource.TestStep {
		return resource.TestStep{
			Config: fmt.Sprintf(`
data "agentkernel_profile" "p" {
  name = "refused"
  type = %[1]q
  %[1]s = {}
  policy = { %[2]s }
}
resource "agentkernel_sandbox" "s" {
  profile = data.agentkernel_profile.p.spec
}`, typeName, policy),
			PlanOnly: true, ExpectError: regexp.MustCompile(code),
		}
	}
	resource.UnitTest(t, resource.TestCase{
		ProtoV6ProviderFactories: f,
		Steps: []resource.TestStep{
			refuse("local_subprocess", `network_egress = "deny"`, "AK2001"),
			refuse("local_subprocess", `memory_mb = 64`, "AK2004"),
			refuse("local_subprocess", `min_isolation = "container"`, "AK2005"),
			refuse("bubblewrap", "network_egress = \"allowlist\"\n    network_allow = [\"example.org\"]", "AK2001"),
			refuse("docker", `fs_allow_read = ["/etc"]`, "AK2003"),
			refuse("docker", `min_isolation = "micro_vm"`, "AK2005"),
		},
	})
	if left := sandboxDirs(dir); len(left) > 0 {
		t.Errorf("something was made: %v", left)
	}
}
