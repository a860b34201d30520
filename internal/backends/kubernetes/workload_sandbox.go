package kubernetes

import (
	"context"

	"k8s.io/apimachinery/pkg/types"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

type sandboxAPI struct{}
type sandboxObject struct{ uid types.UID }

func (*sandboxObject) ready(context.Context, *sandbox) error                 { return nil }
func (*sandboxObject) setRunning(context.Context, *sandbox, bool) error      { return nil }
func (*sandboxObject) patch(context.Context, *sandbox, map[string]any) error { return nil }
func (*sandboxObject) remove(context.Context, *sandbox) error                { return nil }
func (b *building) sandbox(context.Context) (sandboxcore.ManagedSandbox, error) {
	return nil, nil
}
func (e *endpoint) findSandbox(context.Context, string, string, string) (sandboxcore.ManagedSandbox, error) {
	return nil, nil
}
func (e *endpoint) listSandboxes(context.Context, string, string) ([]sandboxcore.SandboxInfo, error) {
	return nil, nil
}
