// Package examples_test applies every example as it stands.
package examples_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/testenv"
)

// TestExamples applies each example, wants an empty plan afterwards, destroys it, and wants nothing left of it.
func TestExamples(t *testing.T) {
	cli := testenv.TerraformCLI(t)

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
	bin := filepath.Join(base, "bin")
	run(t, "..", nil, "go", "build", "-o", filepath.Join(bin, "terraform-provider-agentkernel"), ".")
	config := filepath.Join(base, "cli.tfrc")
	write(t, config, "provider_installation {\n  dev_overrides {\n    \"agentkernel/agentkernel\" = \""+bin+"\"\n"+
		"    \"hashicorp/agentkernel\" = \""+bin+"\"\n  }\n  direct {}\n}\n")

	var found []string
	for _, pattern := range []string{"provider", "data-sources/*", "functions/*", "ephemeral-resources/*", "resources/*", "guides/*"} {
		dirs, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, dirs...)
	}
	if len(found) < 8 {
		t.Fatalf("found only %v", found)
	}
	for _, example := range found {
		t.Run(strings.ReplaceAll(example, string(filepath.Separator), ":"), func(t *testing.T) {
			text := copyExample(t, example, filepath.Join(base, example))
			if strings.Contains(text, `"ec2_ssm"`) {
				t.Skip("applied by TestAttachedExamples, which has a machine for it")
			}
			if strings.Contains(text, `"bubblewrap"`) {
				testenv.Require(t, testenv.Bubblewrap)
			}
			dir, state := filepath.Join(base, example), filepath.Join(base, example, "state-home")
			env := []string{
				"TF_CLI_CONFIG_FILE=" + config, "CHECKPOINT_DISABLE=1", "TF_IN_AUTOMATION=1", "TF_INPUT=0",
				"XDG_STATE_HOME=" + state, "AGENTKERNEL_AUDIT_LOG=",
			}
			destroyed := false
			defer func() {
				if !destroyed {
					ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
					defer cancel()
					if out, err := command(ctx, dir, env, cli, "destroy", "-auto-approve", "-no-color").CombinedOutput(); err != nil {
						t.Errorf("destroy after a failure: %v\n%s", err, out)
					}
				}
			}()
			run(t, dir, env, cli, "apply", "-auto-approve", "-no-color")
			run(t, dir, env, cli, "plan", "-detailed-exitcode", "-no-color")
			run(t, dir, env, cli, "destroy", "-auto-approve", "-no-color")
			destroyed = true

			left, err := filepath.Glob(filepath.Join(state, "agentkernel", "*", "*"))
			if err != nil {
				t.Fatal(err)
			}
			for _, path := range left {
				if info, err := os.Stat(path); err == nil && info.IsDir() {
					t.Errorf("left behind: %s", path)
				}
			}
		})
	}
}

// TestExamplesOfNewerTerraform validates the examples whose constructs not every program knows. What they do is tested
// over the plugin protocol, in internal/provider.
func TestExamplesOfNewerTerraform(t *testing.T) {
	cli := testenv.TerraformCLI(t)
	var bin string
	for pattern, part := range map[string]testenv.Part{"actions/*": testenv.Actions, "list-resources/*": testenv.Queries} {
		dirs, err := filepath.Glob(pattern)
		if err != nil || len(dirs) == 0 {
			t.Fatalf("%s: found nothing (%v)", pattern, err)
		}
		for _, example := range dirs {
			t.Run(strings.ReplaceAll(example, string(filepath.Separator), ":"), func(t *testing.T) {
				testenv.Require(t, part)
				if bin == "" {
					bin = filepath.Join(t.TempDir(), "terraform-provider-agentkernel")
					run(t, "..", nil, "go", "build", "-o", bin, ".")
				}
				dir := t.TempDir()
				copyFiles(t, example, dir)
				config := filepath.Join(t.TempDir(), "cli.tfrc")
				write(t, config, "provider_installation {\n  dev_overrides {\n    \"agentkernel/agentkernel\" = \""+filepath.Dir(bin)+"\"\n"+
					"    \"hashicorp/agentkernel\" = \""+filepath.Dir(bin)+"\"\n  }\n  direct {}\n}\n")
				run(t, dir, []string{"TF_CLI_CONFIG_FILE=" + config, "CHECKPOINT_DISABLE=1"}, cli, "validate", "-no-color")
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

// copyExample copies the configuration only, so that nothing is written among the examples, and gives its text.
func copyExample(t *testing.T, from, to string) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(from, "*.tf"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%s holds no configuration (%v)", from, err)
	}
	if err := os.MkdirAll(to, 0o755); err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for _, file := range files {
		if strings.HasPrefix(filepath.Base(file), "import-") {
			continue // shows how an object that exists is imported; here none exists
		}
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(content)
		write(t, filepath.Join(to, filepath.Base(file)), string(content))
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
