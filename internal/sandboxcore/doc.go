// Package sandboxcore is the engine of the provider: the single path from a request to a backend.
//
// It holds the model (profiles, policies, principals, capabilities, bindings), the canonical spec, the gate
// that decides whether a request may reach a backend, typed errors with stable codes, the treatment of
// untrusted output (bounding, redaction, cleaning), the audit log, and the Engine that joins them.
//
// The arrows of the project point to this package: the Terraform layer (internal/provider) and the backends
// (internal/backends/...) import it, and it imports neither. It knows no Terraform and no backend SDK.
package sandboxcore
