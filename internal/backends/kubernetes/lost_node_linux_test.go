package kubernetes

import (
	"context"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/testenv"
)

// A node that does not answer: not a running sandbox, no hang, and gone once the cluster gives the pod up.
func TestLostNode(t *testing.T) {
	c := clusterOf(t, testenv.KubernetesClusterAlone(t))
	pid := c.Kubelet(t)
	s := c.create(t, c.profile(set(keyTolerations, []any{"dedicated=agents:NoSchedule", "node.kubernetes.io/unreachable:NoExecute:600"})))
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	resume := func() { _ = syscall.Kill(pid, syscall.SIGCONT) }
	t.Cleanup(resume)
	// While the cluster has not noticed, a run ends with its own deadline.
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if o := python(ctx, s, "print(1)"); o.err == nil {
		t.Error("a run on a stopped node ended well")
	}
	c.eventually(t, "the sandbox does not count as running", func() bool {
		m, err := c.find(t.Context(), t, s)
		if err != nil {
			t.Fatal(err)
		}
		return m.Info().Status == sandboxcore.StatusStopped && m.Info().Details["reason"] == "its node testnode does not answer the cluster"
	})
	refused(t, python(t.Context(), mustFind(t, c, s), "print(1)").err, sandboxcore.CodeStopped, "does not answer")
	// A cluster whose nodes are all lost gives no pod up; this is what it does when others are left.
	c.kubectl(t, "taint", "nodes", "testnode", "agentkernel-test/lost=:NoExecute")
	untaint := func() {
		_ = exec.Command(c.Kubectl, "--kubeconfig", c.Kubeconfig, "taint", "nodes", "testnode", "agentkernel-test/lost-").Run()
	}
	t.Cleanup(untaint)
	refused(t, c.untilGone(t, s), sandboxcore.CodeGone, "DeletionByTaintManager")
	stuck := *s
	stuck.e = dial(t, sandboxcore.Settings{keyConfigPath: c.Kubeconfig})
	stuck.e.timings.gone = time.Second
	refused(t, stuck.Destroy(t.Context()), sandboxcore.CodeDeleteFailed, "testnode")
	resume()
	untaint()
	c.eventually(t, "the node is back", func() bool {
		return c.kubectl(t, "get", "nodes", "-o", `jsonpath={.items[*].status.conditions[?(@.type=="Ready")].status}{.items[*].spec.taints}`) == "True"
	})
}
