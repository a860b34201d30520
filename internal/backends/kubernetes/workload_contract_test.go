package kubernetes

import (
	"testing"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore/backendtest"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/testenv"
)

// The contract for workload = "sandbox", with the project's own definitions and a test double in the place of its controller.
func TestSandboxWorkloadContract(t *testing.T) {
	c := clusterOf(t, testenv.KubernetesClusterAlone(t))
	if c.AuditLog == "" {
		t.Skip("SKIP kubernetes: definitions are not changed in a cluster that was not started here; enable with: make cluster-up")
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
	})
}
