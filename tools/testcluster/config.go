package main

import (
	"fmt"
	"os"
)

// writeConfigs writes the configuration files of containerd, the pod network, the kubelet and the API server's audit.
func (c *cluster) writeConfigs() error {
	for name, text := range map[string]string{
		"containerd.toml":       c.containerdConfig(),
		"cni/10-pods.conflist":  cniConfig(),
		"kubelet.yaml":          c.kubeletConfig(),
		"audit-policy.yaml":     auditPolicy,
		"known-leftovers-of.md": leftovers,
	} {
		if err := os.WriteFile(c.path(name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

const leftovers = `While the cluster runs it has, outside this directory: the links ` + nodeLink + ` and ` + podLink + `,
the chains KUBE-*, CNI-* and ` + chain + ` of the packet filter, the sets of kube-router, control groups below kubepods, network
namespaces cni-*, and links in /var/log/containers. "testcluster down" removes them.
`

func (c *cluster) containerdConfig() string {
	return fmt.Sprintf(`version = 2
root = %q
state = %q
oom_score = 0

[grpc]
  address = %q

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = %q
  # Without CAP_SYS_RESOURCE nobody can lower the score, and no pod would start.
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = %q
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
    # A second name of the same runtime: what a runtime class of a real cluster points to.
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.other]
      runtime_type = "io.containerd.runc.v2"
`, c.path("containerd"), runDir+"/containerd", containerdSocket, pauseImage, c.path("cni"))
}

func cniConfig() string {
	return fmt.Sprintf(`{"cniVersion": "0.4.0", "name": "agentkernel-testcluster", "plugins": [
  {"type": "bridge", "bridge": %q, "isGateway": true, "ipMasq": true, "hairpinMode": true,
   "ipam": {"type": "host-local", "ranges": [[{"subnet": %q}]], "routes": [{"dst": "0.0.0.0/0"}], "dataDir": %q}}
]}
`, podLink, podCIDR, runDir+"/ipam")
}

func (c *cluster) kubeletConfig() string {
	return fmt.Sprintf(`apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: false}, webhook: {enabled: false}, x509: {clientCAFile: %q}}
authorization: {mode: AlwaysAllow}
tlsCertFile: %q
tlsPrivateKeyFile: %q
address: %s
port: %d
healthzPort: 0
readOnlyPort: 0
cgroupDriver: cgroupfs
failSwapOn: false
enforceNodeAllocatable: []
containerRuntimeEndpoint: unix://%s
podLogsDir: %q
maxPods: 240
podPidsLimit: 1024
nodeStatusUpdateFrequency: 5s
nodeLeaseDurationSeconds: 20
volumeStatsAggPeriod: 5s
# Images come from nowhere else, so that none may be collected, and a full disk of the machine is not our matter.
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
evictionHard: {memory.available: 50Mi, nodefs.available: "1%%", imagefs.available: "1%%"}
# Hundreds of pods at once: the default of five requests a second is for large clusters.
kubeAPIQPS: 200
kubeAPIBurst: 400
registryPullQPS: 0
eventRecordQPS: 0
serializeImagePulls: false
shutdownGracePeriod: 0s
logging: {verbosity: 1}
`, c.path("pki", "ca.crt"), c.path("pki", "kubelet.crt"), c.path("pki", "kubelet.key"), nodeAddress, kubeletPort, containerdSocket, c.path("logs", "pods"))
}

// auditPolicy keeps everything that is said about pods and policies, request bodies included: the tests look for
// secrets in it.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: None
  userGroups: ["system:nodes"]
- level: None
  users: ["kube-router", "system:apiserver", "system:kube-scheduler", "system:kube-controller-manager"]
- level: None
  userGroups: ["system:serviceaccounts:kube-system"]
- level: RequestResponse
  resources:
  - group: ""
    resources: ["pods", "pods/*", "namespaces", "secrets", "configmaps"]
  - group: networking.k8s.io
  - group: agents.x-k8s.io
- level: Metadata
`
