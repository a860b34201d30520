package docker

import (
	"context"
	"fmt"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/system"
	"github.com/moby/moby/client"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// sandbox is the handle of one container with our marks.
type sandbox struct {
	e            *endpoint
	info         sandboxcore.SandboxInfo
	volumes      []string // of its writable paths
	helperVolume string
}

// Info is the look that was taken when the handle was made.
func (s *sandbox) Info() sandboxcore.SandboxInfo { return s.info }

// Pause freezes every process of the sandbox. One that is stopped is started first, so that both ways end in the same
// state.
func (s *sandbox) Pause(ctx context.Context) error {
	return s.change(ctx, "paused", func(ctx context.Context, state container.ContainerState) error {
		if state == container.StatePaused {
			return nil
		}
		_, err := s.e.cli.ContainerPause(ctx, s.info.NativeID, client.ContainerPauseOptions{})
		return err
	})
}

// Resume lets it run again, whether it was paused or stopped.
func (s *sandbox) Resume(ctx context.Context) error {
	return s.change(ctx, "resumed", func(ctx context.Context, state container.ContainerState) error {
		if state != container.StatePaused {
			return nil
		}
		_, err := s.e.cli.ContainerUnpause(ctx, s.info.NativeID, client.ContainerUnpauseOptions{})
		return err
	})
}

// change starts a sandbox that is stopped, and acts on one that runs or is paused: once more if that changed meanwhile.
func (s *sandbox) change(ctx context.Context, what string, act func(context.Context, container.ContainerState) error) error {
	defer s.e.listing.drop()
	var err error
	for range 4 {
		var f found
		if f, err = s.e.inspect(ctx, s.info.NativeID); err != nil {
			return err
		}
		if status, _ := stateOf(f.state); status == sandboxcore.StatusStopped {
			if err = s.restart(ctx, f); err != nil && !isConflict(err) {
				return err
			}
			continue
		}
		call, cancel := withDeadline(ctx, s.e.timings.call)
		if err = act(call, f.state); err == nil {
			cancel()
			return nil
		}
		out := s.e.failure(call, err, sandboxcore.CodeProvision, "the sandbox could not be "+what, objectID(s.info.NativeID),
			"Check that the engine can freeze containers (the freezer of its cgroups).")
		cancel()
		switch {
		case isNotFound(err):
			return s.e.gone("the sandbox could not be "+what, s.info.NativeID)
		case !isConflict(err):
			return out
		}
		err = out
	}
	if err == nil {
		err = &sandboxcore.Error{
			Code: sandboxcore.CodeProvision, Attempted: "the sandbox could not be " + what, Object: objectID(s.info.NativeID),
			Said: "It stopped again each time that it was started.", Next: "Look at docker inspect and the engine's log; replacing the sandbox makes a new container.",
		}
	}
	return err
}

// Update applies cpu and memory. Labels, and with them the marks, cannot change on a Docker container.
func (s *sandbox) Update(ctx context.Context, p *sandboxcore.Profile, _ sandboxcore.Marks) error {
	info, err := s.e.engineInfo(ctx)
	if err != nil {
		return err
	}
	now, err := s.e.limits(ctx, s.info.NativeID)
	if err != nil {
		return err
	}
	want := resourcesOf(p)
	// The engine takes zero as "leave it": a limit is lifted by setting it to all that there is.
	if want.NanoCPUs == 0 && now.NanoCPUs != 0 {
		want.NanoCPUs = allCPUs(info)
	}
	if want.Memory == 0 && now.Memory != 0 {
		want.Memory, want.MemorySwap = info.MemTotal, info.MemTotal
	}
	if want.NanoCPUs == now.NanoCPUs && want.Memory == now.Memory {
		return nil
	}
	ctx, cancel := withDeadline(ctx, s.e.timings.call)
	defer cancel()
	defer s.e.listing.drop()
	_, err = s.e.cli.ContainerUpdate(ctx, s.info.NativeID, client.ContainerUpdateOptions{Resources: &want})
	if isNotFound(err) {
		return s.e.gone("the limits of the sandbox could not be changed", s.info.NativeID)
	}
	return s.e.failure(ctx, err, sandboxcore.CodeProvision, "the limits of the sandbox could not be changed", objectID(s.info.NativeID),
		"A memory limit below what the sandbox uses now is refused by the kernel: free memory first, or replace the sandbox.")
}

func allCPUs(info *system.Info) int64 { return int64(info.NCPU) * 1e9 }

// limits are the limits that a container has now.
func (e *endpoint) limits(ctx context.Context, id string) (container.Resources, error) {
	const attempted = "the limits of the sandbox could not be read"
	ctx, cancel := withDeadline(ctx, e.timings.call)
	defer cancel()
	r, err := e.cli.ContainerInspect(ctx, id, client.ContainerInspectOptions{})
	if isNotFound(err) {
		return container.Resources{}, e.gone(attempted, id)
	}
	if err == nil && r.Container.HostConfig == nil {
		err = errIncomplete
	}
	if err != nil {
		return container.Resources{}, e.failure(ctx, err, sandboxcore.CodeUnreachable, attempted, objectID(id), "Check the engine's log.")
	}
	return r.Container.HostConfig.Resources, nil
}

// ReadLive takes cpu and memory from the engine: the labels of a container, and with them its spec, stay as they were when
// it was made.
func (e *endpoint) ReadLive(ctx context.Context, nativeID string, p *sandboxcore.Profile) error {
	info, err := e.engineInfo(ctx)
	if err != nil {
		return err
	}
	now, err := e.limits(ctx, nativeID)
	if err != nil {
		return err
	}
	// Update never leaves zero: a limit without one that the spec asks for was dropped by an engine that has none.
	made := resourcesOf(p)
	if now.NanoCPUs > 0 && now.NanoCPUs != made.NanoCPUs {
		p.Policy.CPU = new(float64(now.NanoCPUs) / 1e9)
		if now.NanoCPUs == allCPUs(info) {
			p.Policy.CPU = nil
		}
	}
	if now.Memory > 0 && now.Memory != made.Memory {
		p.Policy.MemoryMB = new(now.Memory >> 20)
		if now.Memory == info.MemTotal {
			p.Policy.MemoryMB = nil
		}
	}
	return nil
}

// Destroy removes the container with everything that belongs to it, and asks again.
func (s *sandbox) Destroy(ctx context.Context) error {
	defer s.e.listing.drop()
	if err := s.removeContainer(ctx); err != nil {
		return err
	}
	for _, v := range s.volumes {
		if err := s.e.removeVolume(ctx, v, s.info.Marks.Request); err != nil {
			return err
		}
	}
	if s.helperVolume != "" {
		s.e.dropHelper(ctx, s.helperVolume)
	}
	return nil
}

func (s *sandbox) removeContainer(ctx context.Context) error {
	id := s.info.NativeID
	until := time.Now().Add(s.e.timings.gone)
	said := ""
	ask := true
	for wait := 20 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		if ask {
			call, cancel := withDeadline(ctx, s.e.timings.call)
			_, err := s.e.cli.ContainerRemove(call, id, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
			if away := s.e.target.unreachable(call, err, "the sandbox could not be removed"); away != nil {
				cancel()
				return away
			}
			cancel()
			if err != nil && !isNotFound(err) {
				said = engineError{err}.Error()
			}
			// "Removal already in progress" needs patience and no second request.
			ask = err != nil && !isConflict(err)
		}
		state, err := s.look(ctx)
		if err != nil {
			return err
		}
		if state == "" {
			return nil
		}
		if state != container.StateRemoving {
			ask = true
		}
		if !time.Now().Before(until) || !pause(ctx, wait) {
			return s.stillThere(ctx, state, said)
		}
	}
}

// look asks whether the container is still there, and in which state.
func (s *sandbox) look(ctx context.Context) (container.ContainerState, error) {
	ctx, cancel := withDeadline(ctx, s.e.timings.call)
	defer cancel()
	r, err := s.e.cli.ContainerInspect(ctx, s.info.NativeID, client.ContainerInspectOptions{})
	switch {
	case isNotFound(err):
		return "", nil
	case err != nil:
		return "", s.e.failure(ctx, err, sandboxcore.CodeDeleteFailed, "it could not be checked whether the sandbox is gone", objectID(s.info.NativeID), "Run the command again.")
	case r.Container.ID != s.info.NativeID:
		return "", nil
	case r.Container.State == nil:
		return container.StateDead, nil
	}
	return r.Container.State.Status, nil
}

func (s *sandbox) stillThere(ctx context.Context, state container.ContainerState, said string) error {
	e := &sandboxcore.Error{
		Code: sandboxcore.CodeDeleteFailed, Attempted: "the sandbox could not be removed", Object: objectID(s.info.NativeID),
		Said: fmt.Sprintf("The engine still has the container, in state %q.", state),
		Next: "Run the command again; if it stays, look at docker inspect and the engine's log.", Err: ctx.Err(),
	}
	if said != "" {
		e.Said += " It said: " + sentence(said)
	}
	return e
}

// removeVolume removes one volume of ours. The engine frees it a moment after its container.
func (e *endpoint) removeVolume(ctx context.Context, name, request string) error {
	until := time.Now().Add(e.timings.gone)
	for wait := 20 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		call, cancel := withDeadline(ctx, e.timings.call)
		_, err := e.cli.VolumeRemove(call, name, client.VolumeRemoveOptions{})
		out := e.failure(call, err, sandboxcore.CodeDeleteFailed, "a volume of the sandbox could not be removed", name, "Run the command again, or remove it with docker volume rm.")
		cancel()
		if err == nil || isNotFound(err) {
			return nil
		}
		if !isConflict(err) || !time.Now().Before(until) || !pause(ctx, wait) {
			return out
		}
		e.removeTemporaries(ctx, request)
	}
}
