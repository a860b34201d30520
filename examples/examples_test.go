// Package examples_test applies every example as it stands.
package examples_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/testenv"
)

// elsewhere are the folders that TestExamples leaves to another test, with the file and the name of that test.
var elsewhere = map[string][2]string{
	"actions/agentkernel_exec":           {"examples_test.go", "TestExamplesOfNewerTerraform"},
	"list-resources/agentkernel_sandbox": {"examples_test.go", "TestExamplesOfNewerTerraform"},
	"demo/refused":                       {"examples_test.go", "TestDemoRefusal"},
	"ec2-ssm":                            {"attached_test.go", "TestAttachedExamples"},
	"data-sources/agentkernel_attached_environment": {"attached_test.go", "TestAttachedExamples"},
	"e2b":        {"e2b/example_test.go", "TestExample"},
	"kubernetes": {"kubernetes/example_test.go", "TestExample"},
}

// folders gives every folder with configuration, below this one.
func folders(t *testing.T) []string {
	t.Helper()
	var out []string
	err := filepath.WalkDir(".", func(name string, entry fs.DirEntry, err error) error {
		if err == nil && (filepath.Ext(name) == ".tf" || strings.HasSuffix(name, ".tfquery.hcl")) {
			if dir := filepath.ToSlash(filepath.Dir(name)); !slices.Contains(out, dir) {
				out = append(out, dir)
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(out) < 20 {
		t.Fatalf("found only %v", out)
	}
	return out
}

// TestEveryFolderIsApplied: what TestExamples does not apply has a test that exists and names the folder.
func TestEveryFolderIsApplied(t *testing.T) {
	found := folders(t)
	for folder, test := range elsewhere {
		if !slices.Contains(found, folder) {
			t.Errorf("%s has no configuration", folder)
		}
		content, err := os.ReadFile(filepath.FromSlash(test[0]))
		if err != nil {
			t.Error(err)
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), test[0], content, parser.SkipObjectResolution)
		if err != nil {
			t.Error(err)
			continue
		}
		if !slices.ContainsFunc(parsed.Decls, func(d ast.Decl) bool {
			f, ok := d.(*ast.FuncDecl)
			return ok && f.Name.Name == test[1]
		}) {
			t.Errorf("%s: there is no %s in %s", folder, test[1], test[0])
		}
		// A test in the folder itself reads what is beside it; another one names the folder, or the one that it is in.
		inside := strings.HasPrefix(test[0], folder+"/")
		if last := path.Base(folder); !inside && !strings.Contains(string(content), last) && !strings.Contains(string(content), path.Dir(folder)+"/*") {
			t.Errorf("%s does not name %s", test[0], folder)
		}
	}
}

// mirror is a directory with this provider, as a registry would have it. It is made once.
var mirror string

func TestMain(m *testing.M) {
	status := m.Run()
	if mirror != "" {
		if err := os.RemoveAll(mirror); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}
	os.Exit(status)
}

var built = sync.OnceValues(func() (string, error) {
	var err error
	if mirror, err = os.MkdirTemp("", "agentkernel-mirror-"); err != nil {
		return "", err
	}
	place := func(host string) string {
		return filepath.Join(mirror, host, "agentkernel", "agentkernel", "0.0.1", runtime.GOOS+"_"+runtime.GOARCH)
	}
	const name = "terraform-provider-agentkernel_v0.0.1"
	build := exec.Command("go", "build", "-o", filepath.Join(place("registry.terraform.io"), name), ".")
	build.Dir = ".."
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w\n%s", err, out)
	}
	// OpenTofu looks for the same under the name of its own registry.
	if err := os.MkdirAll(place("registry.opentofu.org"), 0o755); err != nil {
		return "", err
	}
	return mirror, os.Link(filepath.Join(place("registry.terraform.io"), name), filepath.Join(place("registry.opentofu.org"), name))
})

// bench is where examples are applied, with a place for sandboxes.
type bench struct {
	cli, base string
	env       []string
}

func newBench(t *testing.T) *bench {
	t.Helper()
	// Not t.TempDir: under root, sandboxes run under a user of their own, who must be able to enter the directory.
	base, err := os.MkdirTemp("", "agentkernel-examples-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(base); err != nil {
			t.Error(err)
		}
	})
	if err := os.Chmod(base, 0o755); err != nil {
		t.Fatal(err)
	}
	b := &bench{cli: testenv.TerraformCLI(t), base: base}
	if _, err := built(); err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(base, "cli.tfrc")
	write(t, config, "provider_installation {\n  filesystem_mirror {\n    path = \""+filepath.ToSlash(mirror)+"\"\n  }\n}\n")
	none := filepath.Join(base, "none")
	b.env = []string{
		"TF_CLI_CONFIG_FILE=" + config, "CHECKPOINT_DISABLE=1", "TF_IN_AUTOMATION=1", "TF_INPUT=0", "AGENTKERNEL_AUDIT_LOG=",
		"XDG_STATE_HOME=" + filepath.Join(base, "state-home"),
		// An example that asks every backend asks nobody who is not here.
		"E2B_API_KEY=", "KUBECONFIG=" + none, "AWS_EC2_METADATA_DISABLED=true", "AWS_REGION=", "AWS_DEFAULT_REGION=", "AWS_PROFILE=",
		"AWS_ACCESS_KEY_ID=", "AWS_SECRET_ACCESS_KEY=", "AWS_CONFIG_FILE=" + none, "AWS_SHARED_CREDENTIALS_FILE=" + none,
	}
	return b
}

func (b *bench) run(t *testing.T, dir string, arguments ...string) {
	t.Helper()
	run(t, dir, b.env, b.cli, append(arguments, "-no-color")...)
}

// apply does all that is done with a configuration in dir, wants an empty plan after the apply, and wants nothing left
// after the destroy. between runs before that.
func (b *bench) apply(t *testing.T, dir string, between func()) {
	t.Helper()
	b.run(t, dir, "init")
	b.run(t, dir, "validate")
	destroyed := false
	defer func() {
		if !destroyed {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
			defer cancel()
			if out, err := command(ctx, dir, b.env, b.cli, "destroy", "-auto-approve", "-no-color").CombinedOutput(); err != nil {
				t.Errorf("destroy after a failure: %v\n%s", err, out)
			}
		}
	}()
	b.run(t, dir, "apply", "-auto-approve")
	b.run(t, dir, "plan", "-detailed-exitcode")
	if between != nil {
		between()
	}
	b.run(t, dir, "destroy", "-auto-approve")
	destroyed = true

	left, err := filepath.Glob(filepath.Join(b.base, "state-home", "agentkernel", "*", "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range left {
		if info, err := os.Stat(path); err == nil && info.IsDir() && filepath.Base(path) != "helper" && filepath.Base(filepath.Dir(path)) != "helper" {
			t.Errorf("left behind: %s", path)
		}
	}
}

// TestExamples initialises, validates and applies each example, wants an empty plan afterwards, destroys it, and wants
// nothing left of it.
func TestExamples(t *testing.T) {
	b := newBench(t)
	for _, example := range folders(t) {
		if _, other := elsewhere[example]; other {
			continue
		}
		t.Run(strings.ReplaceAll(example, "/", ":"), func(t *testing.T) {
			dir := filepath.Join(b.base, filepath.FromSlash(example))
			text := copyExample(t, example, dir)
			if strings.Contains(text, `"bubblewrap"`) {
				testenv.Require(t, testenv.Bubblewrap)
			}
			if strings.Contains(text, "ephemeral") {
				testenv.Require(t, testenv.Ephemeral)
			}
			b.apply(t, dir, nil)
		})
	}
}

// TestImportExamples takes the sandbox of the example into another state, in each of the ways that its page shows, and
// wants an empty plan.
func TestImportExamples(t *testing.T) {
	testenv.Require(t, testenv.Bubblewrap)
	b := newBench(t)
	const folder, placeholder = "resources/agentkernel_sandbox", "0123456789abcdef01234567"
	dir := filepath.Join(b.base, "sandbox")
	copyExample(t, folder, dir)
	b.apply(t, dir, func() {
		out, err := command(t.Context(), dir, b.env, b.cli, "output", "-json", "binding").Output()
		if err != nil {
			t.Fatal(err)
		}
		var binding struct {
			ID string `json:"id"`
		}
		if err := json.Unmarshal(out, &binding); err != nil {
			t.Fatal(err)
		}
		_, native, _ := strings.Cut(binding.ID, "/")
		// shown is a file of the example with the id of this sandbox.
		shown := func(t *testing.T, name string) string {
			t.Helper()
			content, err := os.ReadFile(filepath.Join(filepath.FromSlash(folder), name))
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(string(content), placeholder) {
				t.Fatalf("%s names no id:\n%s", name, content)
			}
			return strings.ReplaceAll(string(content), placeholder, native)
		}
		other := func(t *testing.T, name string, files ...string) string {
			t.Helper()
			to := filepath.Join(b.base, name)
			if err := os.MkdirAll(to, 0o755); err != nil {
				t.Fatal(err)
			}
			for _, file := range append(files, "terraform.tf") {
				content, err := os.ReadFile(filepath.Join(filepath.FromSlash(folder), file))
				if err != nil {
					t.Fatal(err)
				}
				write(t, filepath.Join(to, file), string(content))
			}
			return to
		}
		for name, part := range map[string]testenv.Part{"import-by-string-id.tf": testenv.Terraform, "import-by-identity.tf": testenv.Identity} {
			t.Run(name, func(t *testing.T) {
				testenv.Require(t, part)
				to := other(t, "with-"+name)
				block := shown(t, name)
				// As the page says: for this one plan the block names the provider, which Terraform 1.16 asks for.
				write(t, filepath.Join(to, name), strings.Replace(block, "import {\n", "import {\n  provider = agentkernel\n", 1))
				b.run(t, to, "init")
				b.run(t, to, "plan", "-generate-config-out=generated.tf")
				write(t, filepath.Join(to, name), block)
				out, err := command(t.Context(), to, b.env, b.cli, "apply", "-auto-approve", "-no-color").CombinedOutput()
				if err != nil || !strings.Contains(string(out), "1 imported, 0 added, 0 changed, 0 destroyed") {
					t.Errorf("%v\n%s", err, out)
				}
				b.run(t, to, "plan", "-detailed-exitcode")
			})
		}
		t.Run("import.sh", func(t *testing.T) {
			to := other(t, "with-command", "resource.tf")
			b.run(t, to, "init")
			lines := strings.Split(strings.TrimSpace(shown(t, "import.sh")), "\n")
			words := strings.Fields(lines[len(lines)-1])
			if len(words) != 4 || words[0] != "terraform" {
				t.Fatalf("import.sh ends with %q", words)
			}
			run(t, to, b.env, b.cli, words[1], "-no-color", words[2], words[3])
			b.run(t, to, "plan", "-detailed-exitcode")
		})
	})
}

// TestExamplesOfNewerTerraform is TestExamples for constructs that an older Terraform does not know. What they do is tested
// over the plugin protocol, in internal/provider, and the documentation holds them against the schemas.
func TestExamplesOfNewerTerraform(t *testing.T) {
	b := newBench(t)
	for pattern, part := range map[string]testenv.Part{"actions/*": testenv.Actions, "list-resources/*": testenv.Queries} {
		dirs, err := filepath.Glob(pattern)
		if err != nil || len(dirs) == 0 {
			t.Fatalf("%s: found nothing (%v)", pattern, err)
		}
		for _, example := range dirs {
			t.Run(strings.ReplaceAll(example, string(filepath.Separator), ":"), func(t *testing.T) {
				testenv.Require(t, part, testenv.Bubblewrap)
				dir := filepath.Join(b.base, example)
				copyFiles(t, example, dir)
				if pattern == "actions/*" {
					b.apply(t, dir, nil)
					return
				}
				b.run(t, dir, "init")
				b.run(t, dir, "validate", "-query")
			})
		}
	}
}

func copyFiles(t *testing.T, from, to string) {
	t.Helper()
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
}

// TestDemoRefusal is the half of `make demo` that must fail.
func TestDemoRefusal(t *testing.T) {
	cli := testenv.TerraformCLI(t)
	base := t.TempDir()
	bin := filepath.Join(base, "bin")
	run(t, "..", nil, "go", "build", "-o", filepath.Join(bin, "terraform-provider-agentkernel"), ".")
	config := filepath.Join(base, "cli.tfrc")
	write(t, config, "provider_installation {\n  dev_overrides {\n    \"agentkernel/agentkernel\" = \""+bin+"\"\n  }\n  direct {}\n}\n")
	copyExample(t, filepath.Join("demo", "refused"), filepath.Join(base, "refused"))

	out, err := command(t.Context(), filepath.Join(base, "refused"), []string{"TF_CLI_CONFIG_FILE=" + config, "CHECKPOINT_DISABLE=1"},
		cli, "plan", "-input=false", "-no-color").CombinedOutput()
	if _, ended := errors.AsType[*exec.ExitError](err); !ended {
		t.Fatalf("the plan ended with %v and should have failed:\n%s", err, out)
	}
	for _, want := range []string{"AK2001", "AK2004", "policy.network_egress", "policy.memory_mb", "local_subprocess"} {
		if !strings.Contains(strings.Join(strings.Fields(string(out)), " "), want) {
			t.Errorf("the refusal does not say %s:\n%s", want, out)
		}
	}
}

// copyExample copies the files of the folder, so that nothing is written among the examples, and gives the text of the
// configuration.
func copyExample(t *testing.T, from, to string) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(from, "*"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(to, 0o755); err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for _, file := range files {
		info, err := os.Stat(file)
		if err != nil {
			t.Fatal(err)
		}
		if info.IsDir() || strings.HasPrefix(filepath.Base(file), "import") {
			continue // an import shows how an object that exists is taken; here none exists
		}
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if filepath.Ext(file) == ".tf" {
			all.Write(content)
		}
		write(t, filepath.Join(to, filepath.Base(file)), string(content))
	}
	if all.Len() == 0 {
		t.Fatalf("%s holds no configuration", from)
	}
	return all.String()
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func command(ctx context.Context, dir string, env []string, program string, arguments ...string) *exec.Cmd {
	c := exec.CommandContext(ctx, program, arguments...)
	c.Dir = dir
	c.Env = append(os.Environ(), env...)
	return c
}

func run(t *testing.T, dir string, env []string, program string, arguments ...string) {
	t.Helper()
	if out, err := command(t.Context(), dir, env, program, arguments...).CombinedOutput(); err != nil {
		t.Fatalf("%s %s: %v\n%s", filepath.Base(program), strings.Join(arguments, " "), err, out)
	}
}
