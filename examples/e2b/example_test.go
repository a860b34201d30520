//go:build linux

// Package e2b_test applies the example against a server of our own that speaks E2B's API.
package e2b_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/e2bpeer"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/testenv"
)

func TestExample(t *testing.T) {
	cli := testenv.TerraformCLI(t)
	testenv.Require(t, testenv.Local)
	peer, err := e2bpeer.Start(context.WithoutCancel(t.Context()), e2bpeer.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := peer.Close(); err != nil {
			t.Error(err)
		}
	})
	dir := t.TempDir()
	bin := filepath.Join(dir, "bin")
	env := append(os.Environ(), "TF_CLI_CONFIG_FILE="+filepath.Join(dir, "cli.tfrc"), "CHECKPOINT_DISABLE=1", "TF_IN_AUTOMATION=1", "TF_INPUT=0", "AGENTKERNEL_AUDIT_LOG=",
		"E2B_DOMAIN=", "E2B_API_KEY="+peer.Key(), "E2B_API_URL="+peer.APIURL(), "E2B_SANDBOX_URL="+peer.SandboxURL())
	run := func(in string, want int, program string, args ...string) string {
		t.Helper()
		c := exec.CommandContext(t.Context(), program, args...)
		c.Dir, c.Env = in, env
		out, err := c.CombinedOutput()
		if c.ProcessState == nil || c.ProcessState.ExitCode() != want {
			t.Fatalf("%s %v: %v\n%s", filepath.Base(program), args, err, out)
		}
		return string(out)
	}
	run("../..", 0, "go", "build", "-o", filepath.Join(bin, "terraform-provider-agentkernel"), ".")
	for name, text := range map[string]string{
		"cli.tfrc": "provider_installation {\n  dev_overrides {\n    \"agentkernel/agentkernel\" = \"" + bin + "\"\n  }\n  direct {}\n}\n",
		"main.tf":  string(read(t, "main.tf")),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	destroyed := false
	t.Cleanup(func() {
		if !destroyed {
			c := exec.CommandContext(context.WithoutCancel(t.Context()), cli, "destroy", "-auto-approve", "-no-color")
			c.Dir, c.Env = dir, env
			_ = c.Run()
		}
	})

	out := run(dir, 0, cli, "apply", "-auto-approve", "-no-color")
	for _, want := range []string{"written by user", `"stage" = "test"`, `"token" = 23`} {
		if !strings.Contains(out, want) {
			t.Errorf("the apply does not show %s:\n%s", want, out)
		}
	}
	first := peer.States()
	run(dir, 0, cli, "plan", "-detailed-exitcode", "-no-color")

	// Another allow-list changes the sandbox that is there.
	out = run(dir, 0, cli, "apply", "-auto-approve", "-no-color", `-var=allow=["example.net"]`)
	if !strings.Contains(out, "1 changed") && !strings.Contains(out, "2 changed") && !strings.Contains(out, "3 changed") || strings.Contains(out, "must be replaced") {
		t.Errorf("not in place:\n%s", out)
	}
	if after := peer.States(); len(first) != 1 || len(after) != 1 || !slices.Equal(keys(first), keys(after)) {
		t.Errorf("%v became %v", first, after)
	}
	run(dir, 0, cli, "plan", "-detailed-exitcode", "-no-color", `-var=allow=["example.net"]`)

	// Somebody ended it: the plan says so, and the next apply makes a new one.
	for id := range first {
		peer.Kill(id)
	}
	run(dir, 2, cli, "plan", "-detailed-exitcode", "-no-color")
	run(dir, 0, cli, "apply", "-auto-approve", "-no-color")
	run(dir, 0, cli, "destroy", "-auto-approve", "-no-color")
	destroyed = true
	if left := peer.States(); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
	state, _ := filepath.Glob(filepath.Join(dir, "*.tfstate*"))
	for _, f := range state {
		if strings.Contains(string(read(t, f)), peer.Key()) {
			t.Errorf("the API key is in %s", f)
		}
	}
}

func read(t *testing.T, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func keys(m map[string]string) []string {
	var out []string
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}
