package docker

import (
	"context"
	"strings"

	"github.com/moby/moby/client"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// ReadEnv gives the environment of the container's own configuration (field Config.Env of the engine's inspect answer):
// the image's and the sandbox's.
func (s *sandbox) ReadEnv(ctx context.Context) (map[string]string, error) {
	const attempted = "the environment of the sandbox could not be read"
	ctx, cancel := withDeadline(ctx, s.e.timings.call)
	defer cancel()
	r, err := s.e.cli.ContainerInspect(ctx, s.info.NativeID, client.ContainerInspectOptions{})
	switch {
	case isNotFound(err):
		return nil, s.e.gone(attempted, s.info.NativeID)
	case err == nil && r.Container.Config == nil:
		err = errIncomplete
	}
	if err != nil {
		return nil, s.e.failure(ctx, err, sandboxcore.CodeUnreachable, attempted, objectID(s.info.NativeID), "Check the engine's log.")
	}
	env := make(map[string]string, len(r.Container.Config.Env))
	for _, kv := range r.Container.Config.Env {
		k, v, _ := strings.Cut(kv, "=")
		env[k] = v
	}
	return env, nil
}
