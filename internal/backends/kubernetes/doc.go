// Package kubernetes is the backend whose sandboxes are pods of a cluster, alone (workload "pod") or kept by the
// controller of kubernetes-sigs/agent-sandbox (workload "sandbox").
//
// The run helper is PID 1 of every pod. It comes from a ConfigMap that belongs to the pod, so that an image needs
// neither a shell nor any other program, and nothing has to be streamed into a pod before it can be used. A pod starts
// behind a scheduling gate: its policy, its helper and its own mark exist, owned by it, before the gate opens, and the
// cluster itself removes them with the pod whoever deletes that. See docs/adr/0006-kubernetes-sandboxes.md.
package kubernetes
