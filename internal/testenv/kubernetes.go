package testenv

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// Kubernetes is the cluster that `make cluster-up` starts, or with AGENTKERNEL_TESTCLUSTER=existing the one of
// KUBECONFIG.
const Kubernetes Part = "kubernetes"

func init() {
	table = append(table, entry{Kubernetes, probeKubernetes, "make cluster-up (Debian packages etcd-server, containerd, runc, containernetworking-plugins, ipset, iptables, debootstrap)"})
}

// Cluster is the test cluster as its administrator sees it.
type Cluster struct {
	Kubeconfig string
	Kubectl    string
	// Image is an image with Python, UserImage one whose configuration gets in the way (USER, WORKDIR, ENV, ENTRYPOINT),
	// BareImage one with a single static program. The last two are empty in a cluster that was not started here.
	Image, UserImage, BareImage string
	// AuditLog is the audit log of the API server, Pids the directory with the process ids of the cluster's parts; empty
	// in a cluster that was not started here.
	AuditLog, Pids string
}

// Kubelet gives the process id of the node's kubelet, to be stopped with a signal. It skips the test in a cluster that was not
// started here.
func (c Cluster) Kubelet(tb testing.TB) int {
	tb.Helper()
	if c.Pids == "" {
		Skip(tb, Kubernetes, "the node of a cluster that was not started here is not stopped", "make cluster-up")
	}
	text, err := os.ReadFile(filepath.Join(c.Pids, "kubelet"))
	if err != nil {
		tb.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		tb.Fatal(err)
	}
	return pid
}

func cluster() (Cluster, error) {
	if os.Getenv("AGENTKERNEL_TESTCLUSTER") == "existing" {
		c := Cluster{Kubeconfig: os.Getenv("KUBECONFIG"), Kubectl: "kubectl", Image: os.Getenv("AGENTKERNEL_TESTCLUSTER_IMAGE")}
		if c.Kubeconfig == "" || c.Image == "" {
			return c, errors.New("AGENTKERNEL_TESTCLUSTER=existing needs KUBECONFIG and AGENTKERNEL_TESTCLUSTER_IMAGE")
		}
		return c, nil
	}
	dir := os.Getenv("AGENTKERNEL_TESTCLUSTER_DIR")
	if dir == "" {
		dir = filepath.Join(os.TempDir(), fmt.Sprintf("agentkernel-testcluster.%d", os.Getuid()))
	}
	c := Cluster{
		Kubeconfig: filepath.Join(dir, "kubeconfig"), Kubectl: filepath.Join(dir, "bin", "kubectl"),
		Image: "agentkernel-test/python:1", UserImage: "agentkernel-test/user:1", BareImage: "agentkernel-test/bare:1",
		AuditLog: filepath.Join(dir, "audit.log"), Pids: filepath.Join(dir, "pids"),
	}
	if _, err := os.Stat(c.Kubeconfig); err != nil {
		return c, errors.New("no test cluster runs")
	}
	return c, nil
}

// KubernetesCluster gives the test cluster, and skips the test without one. Until the end of the test nobody disturbs the
// cluster: see KubernetesClusterAlone.
func KubernetesCluster(tb testing.TB) Cluster {
	tb.Helper()
	return shareCluster(tb, false)
}

// KubernetesClusterAlone is for a test that changes what all others rely on (the node, a definition of the whole cluster).
// It waits until no test of any process uses the cluster, and lets none begin before it has ended.
func KubernetesClusterAlone(tb testing.TB) Cluster {
	tb.Helper()
	return shareCluster(tb, true)
}

func shareCluster(tb testing.TB, alone bool) Cluster {
	tb.Helper()
	Require(tb, Kubernetes)
	c, err := cluster()
	if err != nil {
		tb.Fatal(err)
	}
	if c.Pids == "" {
		return c
	}
	release, err := lockFile(filepath.Join(c.Pids, "..", "tests.lock"), alone)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(release)
	return c
}

func probeKubernetes() error {
	c, err := cluster()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), probeTimeout)
	defer cancel()
	out, err := exec.CommandContext(ctx, c.Kubectl, "--kubeconfig", c.Kubeconfig, "get", "nodes", "-o",
		`jsonpath={.items[*].status.conditions[?(@.type=="Ready")].status}`).CombinedOutput()
	if err != nil {
		return fmt.Errorf("the cluster of %s does not answer: %s", c.Kubeconfig, lastLine(out))
	}
	if !strings.Contains(string(out), "True") {
		return fmt.Errorf("the cluster of %s has no node that is ready", c.Kubeconfig)
	}
	return nil
}
