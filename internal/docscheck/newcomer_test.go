package docscheck_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/testenv"
)

// TestNewcomersPath types what the README says, in a home directory with nothing in it. `make build` is that of a directory
// which holds the program already: compiling is tested by everything else.
func TestNewcomersPath(t *testing.T) {
	testenv.Require(t, testenv.Bubblewrap)
	cli := newCLI(t)
	var typed string
	for _, b := range pagesByName(readPages(t))["README.md"].blocks {
		if b.comment == "a newcomer's path" {
			typed = b.text
		}
	}
	if !strings.Contains(typed, "make build\n") || !strings.HasSuffix(typed, "terraform apply\n") {
		t.Fatalf("the README says %q", typed)
	}
	// Not t.TempDir: where the provider is root, sandboxes run under a user of their own.
	home, err := os.MkdirTemp("", "agentkernel-newcomer-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(home); err != nil {
			t.Error(err)
		}
	})
	if err := os.Chmod(home, 0o755); err != nil {
		t.Fatal(err)
	}
	clone, first, programs := filepath.Join(home, "clone"), filepath.Join(home, "first-sandbox"), filepath.Join(home, "bin")
	for _, dir := range []string{clone, programs} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	const program = "terraform-provider-agentkernel"
	write(t, filepath.Join(clone, "GNUmakefile"), "build:\n\ttest -x "+program+"\n")
	if err := os.Symlink(filepath.Join(bin, program), filepath.Join(clone, program)); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(cli.Path, filepath.Join(programs, "terraform")); err != nil {
		t.Fatal(err)
	}
	env := append(
		os.Environ(), "HOME="+home, "XDG_STATE_HOME="+filepath.Join(home, "state"), "PATH="+programs+string(os.PathListSeparator)+os.Getenv("PATH"),
		"TF_CLI_CONFIG_FILE=", "CHECKPOINT_DISABLE=1", "AGENTKERNEL_AUDIT_LOG=", "TF_CLI_ARGS_apply=-auto-approve -no-color",
	)
	shell := func(dir, text string) (string, error) {
		c := exec.CommandContext(t.Context(), "bash", "-eu", "-c", text)
		c.Dir, c.Env = dir, env
		out, err := c.CombinedOutput()
		return string(out), err
	}
	destroy := "export TF_CLI_CONFIG_FILE=$PWD/dev.tfrc; terraform destroy -auto-approve -no-color"
	destroyed := false
	defer func() {
		if _, err := os.Stat(filepath.Join(first, "terraform.tfstate")); err == nil && !destroyed {
			if out, err := shell(first, destroy); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		}
	}()
	out, err := shell(clone, typed)
	if err != nil || !strings.Contains(out, "total = 6\n") {
		t.Fatalf("%v\n%s", err, out)
	}

	// The wish that cannot be kept.
	text, err := os.ReadFile(filepath.Join(first, "main.tf"))
	if err != nil {
		t.Fatal(err)
	}
	refused := strings.NewReplacer(`type       = "bubblewrap"`, `type = "local_subprocess"`, "bubblewrap = {}", "local_subprocess = {}").Replace(string(text))
	write(t, filepath.Join(first, "main.tf"), refused)
	if out, err := shell(first, "export TF_CLI_CONFIG_FILE=$PWD/dev.tfrc; terraform plan -no-color"); err == nil || !strings.Contains(out, "Code: AK2001") || !strings.Contains(out, "policy.network_egress") {
		t.Errorf("%v\n%s", err, out)
	}
	write(t, filepath.Join(first, "main.tf"), string(text))
	if out, err := shell(first, destroy); err != nil || !strings.Contains(out, "2 destroyed") {
		t.Errorf("%v\n%s", err, out)
	}
	destroyed = true
}
