package kubernetes

import (
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore/backendtest"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/testenv"
)

// The contract for workload = "sandbox", with the project's own definitions and a test double in the place of its controller.
func TestSandboxWorkloadContract(t *testing.T) {
	// Another definition in the cluster disturbs nobody but the test that begins without it, and that one is alone.
	t.Parallel()
	c := newCluster(t)
	if c.AuditLog == "" {
		testenv.Skip(t, testenv.Kubernetes, "definitions are not changed in a cluster that was not started here", "make cluster-up")
	}
	c.installSandboxAPI(t, sandboxVersions[0])
	c.startController(t, &sandboxAPI{version: sandboxVersions[0]})
	backendtest.Run(t, backendtest.Target{
		Factory:  Factory(),
		Provider: sandboxcore.Settings{keyConfigPath: c.Kubeconfig, keyNamespaces: []any{c.ns}},
		Settings: sandboxcore.Settings{
			keyImage: c.Image, keyPullPolicy: "never", keyNamespace: c.ns, keyNetworkPolicy: true, keyWorkload: workloadSandbox, keyStorageClass: c.disks(t, 100),
		},
		NoSecretEnv: true,
		Foreign:     c.somebodysSandbox,
	})
}

// somebodysSandbox makes a Sandbox without our marks, and gives a check that nobody has touched it.
func (c *cluster) somebodysSandbox(t *testing.T) (nativeID string, untouched func(*testing.T)) {
	t.Helper()
	manifest := filepath.Join(t.TempDir(), "foreign.yaml")
	writeFile(t, manifest, "apiVersion: "+sandboxGroup+"/"+sandboxVersions[0]+"\nkind: Sandbox\nmetadata: {name: foreign, labels: {somebody: else}}\n"+
		"spec: {operatingMode: Suspended, podTemplate: {spec: {containers: [{name: main, image: "+c.Image+"}]}}}\n")
	c.kubectl(t, "create", "-f", manifest)
	look := func(t *testing.T) string {
		return c.kubectl(t, "get", "sandboxes.agents.x-k8s.io", "foreign", "-o", "jsonpath={.metadata.uid} {.metadata.labels} {.metadata.deletionTimestamp}")
	}
	before := look(t)
	t.Cleanup(func() {
		if out, err := exec.Command(c.Kubectl, "--kubeconfig", c.Kubeconfig, "--namespace", c.ns, "delete", "-f", manifest).CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	})
	return c.ns + "/sandbox/foreign", func(t *testing.T) {
		t.Helper()
		if now := look(t); now != before {
			t.Errorf("it was touched: %s, before %s", now, before)
		}
	}
}
