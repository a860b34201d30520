//go:build !linux || !(amd64 || arm64)

package bubblewrap

import (
	"context"
	"runtime"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

func connect(context.Context, sandboxcore.Settings, func(string) string) (sandboxcore.Endpoint, error) {
	return nil, &sandboxcore.Error{
		Code: sandboxcore.CodeUnreachable, Attempted: "bubblewrap cannot be used on this machine", Object: runtime.GOOS + "/" + runtime.GOARCH,
		Said: "it is a Linux program, and the run helper exists for linux/amd64 and linux/arm64.",
		Next: "Run the provider there, or use another backend.", Attribute: []string{string(sandboxcore.BackendBubblewrap)},
	}
}
