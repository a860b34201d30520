// Package e2b is the backend for E2B and for servers that speak its API: micro-VMs of the E2B cloud, of a self-hosted
// E2B, and of compatible servers such as CubeSandbox.
//
// There is no Go SDK to build on. The control plane is a small client on net/http (api.go, wire.go); the daemon inside
// each sandbox, envd, is spoken to with connectrpc.com/connect and messages of our own (envd.go). ADR 10 says why.
//
// What the comments call facts of the wire was read in E2B's OpenAPI description and its handlers, and tried against a
// real envd 0.6.13; each is named where it matters. internal/e2bpeer keeps the same facts on the server's side and is
// checked against the official JavaScript SDK (make e2b-peer-check).
package e2b
