//go:build linux

// Package kubernetes_test applies the example to the test cluster, as the service account that it makes and with exactly
// the rights that it grants.
package kubernetes_test

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/testenv"
)

func TestExample(t *testing.T) {
	cli := testenv.TerraformCLI(t)
	cluster := testenv.KubernetesCluster(t)
	dir := t.TempDir()
	bin, config := filepath.Join(dir, "bin"), filepath.Join(dir, "kubeconfig")
	env := append(os.Environ(), "TF_CLI_CONFIG_FILE="+filepath.Join(dir, "cli.tfrc"), "CHECKPOINT_DISABLE=1", "TF_IN_AUTOMATION=1", "TF_INPUT=0", "AGENTKERNEL_AUDIT_LOG=",
		"KUBECONFIG="+config, "TF_VAR_image="+cluster.Image)
	run := func(ctx context.Context, in string, want int, program string, args ...string) string {
		t.Helper()
		c := exec.CommandContext(ctx, program, args...)
		c.Dir, c.Env = in, env
		out, err := c.CombinedOutput()
		if c.ProcessState == nil || c.ProcessState.ExitCode() != want {
			t.Fatalf("%s %v: %v\n%s", filepath.Base(program), args, err, out)
		}
		return string(out)
	}
	admin := func(args ...string) string {
		t.Helper()
		return run(context.WithoutCancel(t.Context()), ".", 0, cluster.Kubectl, append([]string{"--kubeconfig", cluster.Kubeconfig}, args...)...)
	}
	run(t.Context(), "../..", 0, "go", "build", "-o", filepath.Join(bin, "terraform-provider-agentkernel"), ".")
	admin("apply", "-f", "cluster.yaml")
	t.Cleanup(func() { admin("delete", "--ignore-not-found", "-f", "cluster.yaml") })
	// All of the example works without what it calls optional.
	const identity = "terraform-sandboxes-cluster-identity"
	admin("delete", "clusterrolebinding", identity)
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	example, err := os.ReadFile("main.tf")
	if err != nil {
		t.Fatal(err)
	}
	write("main.tf", string(example))
	write("cli.tfrc", "provider_installation {\n  dev_overrides {\n    \"agentkernel/agentkernel\" = \""+bin+"\"\n  }\n  direct {}\n}\n")
	write("kubeconfig", serviceAccountConfig(t, admin))
	tf := func(want int, args ...string) string {
		t.Helper()
		return run(t.Context(), dir, want, cli, append(args, "-no-color")...)
	}
	destroyed := false
	t.Cleanup(func() {
		if !destroyed {
			c := exec.CommandContext(context.WithoutCancel(t.Context()), cli, "destroy", "-auto-approve", "-no-color")
			c.Dir, c.Env = dir, env
			_ = c.Run()
		}
	})

	out := tf(0, "apply", "-auto-approve")
	for _, want := range []string{"written by user 1000", `"stage" = "test"`, `"token" = 23`, `"network" = false`} {
		if !strings.Contains(out, want) {
			t.Errorf("the apply does not show %s:\n%s", want, out)
		}
	}
	tf(0, "plan", "-detailed-exitcode")
	var id string
	if err := json.Unmarshal([]byte(run(t.Context(), dir, 0, cli, "output", "-json", "-no-color", "id")), &id); err != nil || !strings.HasPrefix(id, "kubernetes/agents/") {
		t.Fatalf("id %q, %v", id, err)
	}
	pod := strings.TrimPrefix(id, "kubernetes/agents/")

	// Forgotten and imported again by its id: the next plan is empty.
	tf(0, "state", "rm", "agentkernel_sandbox.job")
	tf(0, "import", "agentkernel_sandbox.job", id)
	tf(0, "plan", "-detailed-exitcode")

	// Labels change in place.
	write("main.tf", strings.Replace(string(example), `team = "data"`, `team = "platform"`, 1))
	if out := tf(0, "apply", "-auto-approve"); strings.Contains(out, "must be replaced") {
		t.Errorf("not in place:\n%s", out)
	}
	if got := admin("-n", "agents", "get", "pod", pod, "-o", "jsonpath={.metadata.labels.team}"); got != "platform" {
		t.Errorf("label %q", got)
	}
	tf(0, "plan", "-detailed-exitcode")

	// Somebody deleted the pod: the plan says so, and the next apply makes a new one.
	admin("-n", "agents", "delete", "pod", pod)
	if out := tf(2, "plan", "-detailed-exitcode"); !strings.Contains(out, "AK5002") && !strings.Contains(out, "gone") && !strings.Contains(out, "no such object") {
		t.Errorf("the plan does not say why:\n%s", out)
	}
	tf(0, "apply", "-auto-approve")

	// The right to see which cluster it is makes it another one, and taking it away undoes that: as the manifest says.
	endpoint := func() string {
		return run(t.Context(), dir, 0, cli, "state", "show", "-no-color", "agentkernel_sandbox.job")
	}
	if out := endpoint(); !strings.Contains(out, `"server-`) {
		t.Errorf("the endpoint is not told by the server's address:\n%s", out)
	}
	admin("apply", "-f", "cluster.yaml")
	if out := tf(1, "plan"); !strings.Contains(out, "AK5009") {
		t.Errorf("not told as another cluster:\n%s", out)
	}
	admin("delete", "clusterrolebinding", identity)
	tf(0, "plan", "-detailed-exitcode")
	tf(0, "destroy", "-auto-approve")
	destroyed = true
	if left := admin("-n", "agents", "get", "pods,configmaps,networkpolicies", "-l", "agentkernel.io/managed=true", "-o", "name"); left != "" {
		t.Errorf("left behind: %s", left)
	}
	state, _ := filepath.Glob(filepath.Join(dir, "*.tfstate*"))
	for _, f := range state {
		if text, err := os.ReadFile(f); err != nil || strings.Contains(string(text), "an example, not a token") {
			t.Errorf("the secret is in %s: %v", f, err)
		}
	}
}

// serviceAccountConfig is a kubeconfig of the provider's service account.
func serviceAccountConfig(t *testing.T, admin func(...string) string) string {
	t.Helper()
	token := strings.TrimSpace(admin("-n", "agents", "create", "token", "terraform"))
	server := admin("config", "view", "--raw", "-o", "jsonpath={.clusters[0].cluster.server}")
	ca := admin("config", "view", "--raw", "-o", "jsonpath={.clusters[0].cluster.certificate-authority-data}")
	return `{"apiVersion":"v1","kind":"Config","current-context":"c","clusters":[{"name":"c","cluster":{"server":"` + server + `","certificate-authority-data":"` + ca + `"}}],` +
		`"users":[{"name":"terraform","user":{"token":"` + token + `"}}],"contexts":[{"name":"c","context":{"cluster":"c","user":"terraform","namespace":"agents"}}]}`
}
