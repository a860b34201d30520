package sandboxcore

import (
	"context"
	"maps"
)

// Measurer is an Endpoint that can tell what its sandboxes use at the moment.
type Measurer interface {
	// Measure gives facts for people by id, such as "memory_used_bytes". What cannot be had is left out; that is no error.
	Measure(ctx context.Context, ids []string) map[string]map[string]string
}

// Measure adds to the details of sandboxes of one backend what they use at the moment, where that can be told.
func (e *Engine) Measure(ctx context.Context, t BackendType, list []SandboxInfo) {
	ep, err := e.endpoint(ctx, t)
	if err != nil {
		return
	}
	m, ok := optional[Measurer](ep)
	if !ok || len(list) == 0 {
		return
	}
	ids := make([]string, len(list))
	for i := range list {
		ids[i] = list[i].NativeID
	}
	facts := m.Measure(ctx, ids)
	for i := range list {
		details := maps.Clone(list[i].Details)
		if details == nil {
			details = map[string]string{}
		}
		maps.Copy(details, facts[list[i].NativeID])
		list[i].Details = details
	}
}
