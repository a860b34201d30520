// Package e2bpeer is a server that speaks E2B's API over real sockets and really does what it is told: sandboxes are
// processes of this machine (in namespaces of their own where the caller is root), their daemon starts, signals and
// loses processes as envd does, times run out and states change, tokens are asked for, errors have E2B's shapes, and
// egress rules are rules of the kernel.
//
// It is for tests: of the backend in internal/backends/e2b, and of itself against the official JavaScript SDK
// (make e2b-peer-check), which is what makes it more than our own idea of E2B. It imports nothing of that backend, so
// that a fact which both got wrong would have to be written wrong twice.
package e2bpeer
