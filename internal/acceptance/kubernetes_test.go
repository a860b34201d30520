//go:build linux

package acceptance

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/testenv"
)

// onCluster is a namespace of a test's own on the test cluster, as somebody sees it who is not Terraform.
type onCluster struct {
	testenv.Cluster
	ns string
}

func newOnCluster(t *testing.T, cluster testenv.Cluster) *onCluster {
	t.Helper()
	c := &onCluster{Cluster: cluster, ns: fmt.Sprintf("t%d-%d", os.Getpid(), time.Now().UnixNano())}
	c.kubectl(t, "create", "namespace", c.ns)
	t.Cleanup(func() { c.kubectl(t, "delete", "namespace", c.ns) })
	c.until(t, "the namespace has its service account", func() bool {
		return c.kubectl(t, "get", "serviceaccounts", "default", "--ignore-not-found", "-o", "name") != ""
	})
	return c
}

func (c *onCluster) kubectl(t testing.TB, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, c.Kubectl, append([]string{"--kubeconfig", c.Kubeconfig, "--namespace", c.ns}, args...)...) // #nosec G204 -- a test
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("kubectl %s: %v: %s", strings.Join(args, " "), err, errs.String())
	}
	return strings.TrimSpace(string(out))
}

func (c *onCluster) until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	limit := time.After(2 * time.Minute)
	for !ok() {
		select {
		case <-tick.C:
		case <-limit:
			t.Fatalf("it never came to be that %s", what)
		}
	}
}

// config is a provider and profiles in the namespace.
func (c *onCluster) config(sandboxes map[string]string) string {
	text := fmt.Sprintf(`
provider "agentkernel" {
  kubernetes = {
    config_path = %q
    namespaces  = [%q]
  }
}

locals {
  kubernetes = {
    namespace   = %q
    image       = %q
    pull_policy = "never"
  }
}

resource "agentkernel_profile" "plain" {
  name       = "plain"
  type       = "kubernetes"
  kubernetes = merge(local.kubernetes, { tolerations = ["node.kubernetes.io/unreachable:NoExecute:600", "node.kubernetes.io/not-ready:NoExecute:600"] })
}

resource "agentkernel_profile" "small" {
  name       = "small"
  type       = "kubernetes"
  kubernetes = merge(local.kubernetes, { workspace_size_mb = 1 })
}
`, c.Kubeconfig, c.ns, c.ns, c.Image)
	for name, profile := range sandboxes {
		text += fmt.Sprintf("\nresource \"agentkernel_sandbox\" %q {\n  profile = agentkernel_profile.%s.spec\n  name    = %q\n}\n", name, profile, name)
	}
	return text
}

// planned is what a plan says: the actions by address, and its warnings and errors by the object that they are about.
type planned struct {
	actions     map[string][]string
	diagnostics []string
}

func (p planned) says(parts ...string) bool {
	for _, d := range p.diagnostics {
		all := true
		for _, part := range parts {
			all = all && strings.Contains(d, part)
		}
		if all {
			return true
		}
	}
	return false
}

// plan makes a plan, which must not hang, and reads it.
func (s *stack) plan(t *testing.T) planned {
	t.Helper()
	begun := time.Now()
	file := filepath.Join(t.TempDir(), "plan")
	out := s.must(t, "plan", "-json", "-out", file)
	if took := time.Since(begun); took > time.Minute {
		t.Errorf("the plan took %s", took)
	}
	p := planned{actions: map[string][]string{}}
	for lines := bufio.NewScanner(strings.NewReader(out)); lines.Scan(); {
		var line struct {
			Type       string
			Diagnostic struct{ Severity, Summary, Detail string }
		}
		if json.Unmarshal(lines.Bytes(), &line) == nil && line.Type == "diagnostic" {
			p.diagnostics = append(p.diagnostics, line.Diagnostic.Severity+": "+line.Diagnostic.Summary+"\n"+line.Diagnostic.Detail)
		}
	}
	var shown struct {
		ResourceChanges []struct {
			Address string
			Change  struct{ Actions []string }
		} `json:"resource_changes"`
	}
	if err := json.Unmarshal([]byte(s.must(t, "show", "-json", file)), &shown); err != nil {
		t.Fatal(err)
	}
	for _, r := range shown.ResourceChanges {
		p.actions[r.Address] = r.Change.Actions
	}
	return p
}

// copyOf makes a pod again under its name, with all its marks, as somebody would who restores a backup.
func (c *onCluster) copyOf(t *testing.T, pod string) {
	t.Helper()
	var object map[string]any
	if err := json.Unmarshal([]byte(c.kubectl(t, "get", "pod", pod, "-o", "json")), &object); err != nil {
		t.Fatal(err)
	}
	c.kubectl(t, "delete", "pod", pod)
	meta := object["metadata"].(map[string]any) //nolint:forcetypeassert // a test
	for _, k := range []string{"uid", "resourceVersion", "creationTimestamp"} {
		delete(meta, k)
	}
	delete(object, "status")
	delete(object["spec"].(map[string]any), "nodeName") //nolint:forcetypeassert // a test
	text, err := json.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "pod.json")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	c.kubectl(t, "create", "-f", file)
}

// What clusters do to pods behind Terraform's back: deleted, evicted through the API, evicted by the node, replaced under the
// same name. Each is told as gone, with the reason, and a new one is planned; one that nobody touched is not.
func TestPodsThatDoNotSurvive(t *testing.T) {
	c := newOnCluster(t, testenv.KubernetesCluster(t))
	s := newStack(t, c.config(map[string]string{"kept": "plain", "deleted": "plain", "evicted": "plain", "replaced": "plain", "pressed": "small"}))
	s.destroyAtEnd(t)
	s.apply(t)
	pods := map[string]string{}
	for name, o := range s.state(t) {
		if short, is := strings.CutPrefix(name, "agentkernel_sandbox."); is {
			pods[short] = strings.TrimPrefix(o.text("native_id"), c.ns+"/")
		}
	}

	c.kubectl(t, "delete", "pod", pods["deleted"])
	// A finalizer keeps the object where the plan can see it: as long as there are sandboxes, there are pods that end.
	hold := func(finalizers string) {
		c.kubectl(t, "patch", "pod", pods["evicted"], "--type=merge", "-p", `{"metadata":{"finalizers":`+finalizers+`}}`)
	}
	hold(`["agentkernel-test/hold"]`)
	held := true
	t.Cleanup(func() {
		if held {
			hold("null")
		}
	})
	body := filepath.Join(t.TempDir(), "eviction.json")
	if err := os.WriteFile(body, []byte(`{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":"`+pods["evicted"]+`","namespace":"`+c.ns+`"}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	c.kubectl(t, "create", "--raw", "/api/v1/namespaces/"+c.ns+"/pods/"+pods["evicted"]+"/eviction", "-f", body)
	c.kubectl(t, "exec", pods["pressed"], "--", "python3", "-c", "open('/workspace/big','wb').write(b'x'*(8<<20))")
	c.until(t, "the node has evicted the pod", func() bool {
		return c.kubectl(t, "get", "pod", pods["pressed"], "-o", "jsonpath={.status.reason}") == "Evicted"
	})
	c.copyOf(t, pods["replaced"])

	p := s.plan(t)
	for name, why := range map[string]string{
		"deleted": "no such object", "evicted": "EvictionByEvictionAPI", "pressed": "Its node evicted it", "replaced": "another uid",
	} {
		if got := fmt.Sprint(p.actions["agentkernel_sandbox."+name]); got != "[create]" {
			t.Errorf("%s: planned is %s", name, got)
		}
		if !p.says("warning", pods[name], why) {
			t.Errorf("%s: nothing says %q:\n%s", name, why, strings.Join(p.diagnostics, "\n---\n"))
		}
	}
	if got := fmt.Sprint(p.actions["agentkernel_sandbox.kept"]); got != "[no-op]" {
		t.Errorf("the one that nobody touched: %s", got)
	}
	// A plan twice says the same, although looking at a dead pod removes its object.
	if again := s.plan(t); fmt.Sprint(again.actions) != fmt.Sprint(p.actions) {
		t.Errorf("%v, then %v", p.actions, again.actions)
	}
	hold("null")
	held = false
	s.apply(t)
	s.wantEmptyPlan(t)
	if got := c.kubectl(t, "get", "pod", pods["replaced"], "-o", "jsonpath={.metadata.deletionTimestamp}"); got != "" {
		t.Error("the pod that took the name was touched")
	}
	c.kubectl(t, "delete", "pod", pods["replaced"], "--grace-period=0", "--force")
}

// A node whose kubelet has stopped: the plan ends, says that the sandbox does not run and where, and once the cluster has
// given the pod up, that it is gone. The node comes back: the next plan knows it.
func TestPodOnAStoppedNode(t *testing.T) {
	c := newOnCluster(t, testenv.KubernetesClusterAlone(t))
	kubelet := c.Kubelet(t)
	s := newStack(t, c.config(map[string]string{"job": "plain"}))
	s.destroyAtEnd(t)
	s.apply(t)
	before := s.state(t)["agentkernel_sandbox.job"]
	pod := strings.TrimPrefix(before.text("native_id"), c.ns+"/")
	if err := syscall.Kill(kubelet, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	nodeIs := func(ready string) {
		t.Helper()
		c.until(t, "the node is "+ready, func() bool {
			return c.kubectl(t, "get", "nodes", "-o", `jsonpath={.items[*].status.conditions[?(@.type=="Ready")].status}`) == ready
		})
	}
	goOn := func() {
		if err := syscall.Kill(kubelet, syscall.SIGCONT); err != nil {
			t.Error(err)
		}
		nodeIs("True")
		c.until(t, "the node is free of taints", func() bool { return c.kubectl(t, "get", "nodes", "-o", `jsonpath={.items[*].spec.taints}`) == "" })
	}
	stopped := true
	t.Cleanup(func() {
		if stopped {
			goOn()
		}
	})
	nodeIs("Unknown")
	c.until(t, "the pod is not ready", func() bool {
		return c.kubectl(t, "get", "pod", pod, "-o", `jsonpath={.status.conditions[?(@.type=="Ready")].status}`) == "False"
	})
	p := s.plan(t)
	if got := fmt.Sprint(p.actions["agentkernel_sandbox.job"]); got != "[update]" {
		t.Errorf("on a node that does not answer: planned is %s", got)
	}
	// The apply cannot help, says so, and does not hang or lose anything.
	if code, out := s.run(t, "apply", "-auto-approve"); code == 0 || !strings.Contains(out, "AK5003") || !strings.Contains(out, "does not answer the cluster") {
		t.Errorf("the apply ended with %d:\n%s", code, out)
	}
	c.kubectl(t, "delete", "pod", pod, "--wait=false")
	p = s.plan(t)
	if got := fmt.Sprint(p.actions["agentkernel_sandbox.job"]); got != "[create]" || !p.says("warning", pod, "being deleted") {
		t.Errorf("given up: planned is %s:\n%s", got, strings.Join(p.diagnostics, "\n---\n"))
	}
	goOn()
	stopped = false
	s.apply(t)
	s.wantEmptyPlan(t)
	if after := s.state(t)["agentkernel_sandbox.job"]; after.text("native_id") == before.text("native_id") {
		t.Error("the sandbox is the same")
	}
}
