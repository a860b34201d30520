package docker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// startAttempts bounds how often a start is tried again after the helper's volume was filled.
const startAttempts = 3

func asError(err error, target **sandboxcore.Error) bool { return errors.As(err, target) }

func isSandboxError(err error) bool {
	var known *sandboxcore.Error
	return errors.As(err, &known)
}

// Create makes one container and starts it.
func (e *endpoint) Create(ctx context.Context, req sandboxcore.CreateRequest, onCreated func(sandboxcore.SandboxInfo)) (sandboxcore.ManagedSandbox, error) {
	info, err := e.engineInfo(ctx)
	if err != nil {
		return nil, err
	}
	if err := platformRefusal(info); err != nil {
		return nil, err
	}
	if !plainRequest(req.Marks.Request) {
		return nil, &sandboxcore.Error{
			Code: sandboxcore.CodeProvision, Attempted: "the sandbox was refused before anything was created", Object: req.Marks.Name,
			Said: "The request has no usable id.", Next: "This is a fault of the provider; please report it.",
		}
	}
	arch := goArch(info.Architecture)
	volume, err := helperVolumeName(arch)
	if err != nil {
		return nil, err
	}
	if _, err := labelsOf(req.Marks, imageFacts{}); err != nil {
		return nil, err
	}
	o := optionsOf(req.Profile)
	p, image, created, err := e.createContainer(ctx, req, o, volume)
	if err != nil {
		return nil, err
	}
	s := &sandbox{e: e, info: sandboxcore.SandboxInfo{
		NativeID: created.ID, Endpoint: info.ID, Status: sandboxcore.StatusStopped, Marks: req.Marks,
		CreatedAt: req.Marks.Created, Details: details(image.ref, image.id, image.digest),
	}, helperVolume: volume}
	s.volumes = append(slices.Sorted(maps.Values(p.volumes)), p.covered...)
	e.listing.drop()
	if onCreated != nil {
		onCreated(s.info)
	}
	for _, w := range created.Warnings {
		e.log.WarnContext(ctx, "the engine warned while making the container", "id", created.ID, "warning", w)
	}
	if err := e.giveDirectories(ctx, created.ID, image.id, req.Marks.Request, p); err != nil {
		return nil, err
	}
	if err := e.startNew(ctx, created.ID, arch, volume, image.id); err != nil {
		blame(err, req)
		return nil, err
	}
	e.listing.drop()
	s.info.Status = sandboxcore.StatusRunning
	return s, nil
}

// createContainer makes the container. After an error nothing is left.
func (e *endpoint) createContainer(ctx context.Context, req sandboxcore.CreateRequest, o options, volume string) (plan, imageFacts, client.ContainerCreateResult, error) {
	for attempt := 0; ; attempt++ {
		image, err := e.image(ctx, o)
		if err != nil {
			return plan{}, image, client.ContainerCreateResult{}, err
		}
		p, err := planContainer(req, image, volume)
		if err != nil {
			return p, image, client.ContainerCreateResult{}, err
		}
		if len(p.tmpfs) > 0 {
			who, err := e.ownerBefore(ctx, image.id, p.options.Config.User)
			if err != nil {
				return p, image, client.ContainerCreateResult{}, err
			}
			p.setOwner(who, o.workspaceMB)
		}
		call, cancel := withDeadline(ctx, e.timings.call)
		created, err := e.cli.ContainerCreate(call, p.options)
		if err == nil && created.ID == "" {
			err = errors.New("malformed HTTP answer: the engine names no container")
		}
		if err == nil {
			cancel()
			return p, image, created, nil
		}
		out := e.createFailure(call, err, req)
		cancel()
		e.removeLost(ctx, err, kindSandbox, req.Marks.Request)
		// Somebody removed the image after we looked.
		if isNotFound(err) && strings.Contains(strings.ToLower(err.Error()), "image") && attempt == 0 && o.pullPolicy != pullNever {
			e.images.drop()
			continue
		}
		return p, image, created, out
	}
}

func (e *endpoint) createFailure(ctx context.Context, err error, req sandboxcore.CreateRequest) error {
	out := e.failure(ctx, err, sandboxcore.CodeProvision, "the sandbox could not be created", req.Marks.Name, "Correct what the engine complains about in the docker attribute of the profile.")
	blame(out, req)
	return out
}

// blame points at the attribute that an engine's refusal is about, where its words tell.
func blame(err error, req sandboxcore.CreateRequest) {
	var known *sandboxcore.Error
	if !errors.As(err, &known) || known.Code != sandboxcore.CodeProvision || req.Profile == nil {
		return
	}
	o := optionsOf(req.Profile)
	said := strings.ToLower(known.Error())
	switch {
	case o.network != "" && strings.Contains(said, "network") && strings.Contains(said, "not found"):
		known.Attribute, known.Next = []string{"docker", keyNetwork}, "Create the network with docker network create, or name one that exists."
	case o.runtime != "" && strings.Contains(said, "runtime"):
		known.Attribute = []string{"docker", keyRuntime}
	case strings.Contains(said, "unable to find user"), strings.Contains(said, "no matching entries in passwd"):
		known.Attribute, known.Next = []string{"docker", keyUser}, "Name a user of the image, or a number."
	case strings.Contains(said, "minimum memory limit"):
		known.Attribute = []string{"policy", "memory_mb"}
	case strings.Contains(said, "range of cpus"):
		known.Attribute = []string{"policy", "cpu"}
	}
}

// removeLost removes what an unsuccessful create may have left: volumes that the engine made first, and the container
// itself when the answer never came. An engine goes on with a create whose caller is gone, so it is looked for a while.
func (e *endpoint) removeLost(ctx context.Context, cause error, kind, request string) {
	answered := isNotFound(cause) || isConflict(cause) || e.target.unreachable(ctx, cause, "") == nil
	_ = sandboxcore.WithCleanup(ctx, func(ctx context.Context) error {
		until := time.Now().Add(e.timings.lost)
		filter := labelFilter(sandboxcore.MarkManaged+"=true", sandboxcore.MarkKind+"="+kind, sandboxcore.MarkRequest+"="+request)
		for {
			found, err := e.cli.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: filter})
			if err != nil {
				e.log.WarnContext(ctx, "it could not be checked whether a failed create left a container", "request", request, "error", err)
				if !time.Now().Before(until) || !pause(ctx, 250*time.Millisecond) {
					return err
				}
				continue
			}
			for _, c := range found.Items {
				if _, err := e.cli.ContainerRemove(ctx, c.ID, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true}); err != nil && !isNotFound(err) {
					e.log.WarnContext(ctx, "a container that a failed create left could not be removed", "id", c.ID, "error", err)
				}
			}
			if answered || len(found.Items) > 0 || !time.Now().Before(until) || !pause(ctx, 250*time.Millisecond) {
				break
			}
		}
		if kind != kindSandbox {
			return nil // the volumes are those of the sandbox that it was made for
		}
		e.listing.drop()
		return e.removeVolumes(ctx, request)
	})
}

// removeVolumes removes the volumes of one create call.
func (e *endpoint) removeVolumes(ctx context.Context, request string) error {
	found, err := e.cli.VolumeList(ctx, client.VolumeListOptions{Filters: labelFilter(
		sandboxcore.MarkManaged+"=true", sandboxcore.MarkKind+"="+kindWorkspace, sandboxcore.MarkRequest+"="+request)})
	if err != nil {
		return err
	}
	var all error
	for _, v := range found.Items {
		all = errors.Join(all, e.removeVolume(ctx, v.Name, request))
	}
	return all
}

// giveDirectories hands working directory and writable paths to a user other than root. For root the engine has made
// them right already.
func (e *endpoint) giveDirectories(ctx context.Context, id, imageID, request string, p plan) error {
	if !p.workspace && len(p.volumes) == 0 {
		return nil
	}
	who, err := e.owner(ctx, imageID, p.options.Config.User, func(ctx context.Context, file string) ([]byte, error) {
		return e.readContainerFile(ctx, id, file)
	})
	if err != nil || who.root() {
		return err
	}
	if p.workspace {
		return e.give(ctx, id, who, []given{givenDirectory(workspaceDir[1:], workspaceDir)})
	}
	// The engine unpacks nothing beside the volumes of a read-only root, and ignores an entry for the root of a volume
	// itself. In another container the same volumes are directories like any others.
	var mounts []mount.Mount
	var dirs []given
	for i, dir := range slices.Sorted(maps.Keys(p.volumes)) {
		name := fmt.Sprintf("agentkernel-%d", i)
		mounts = append(mounts, mount.Mount{Type: mount.TypeVolume, Source: p.volumes[dir], Target: "/" + name, VolumeOptions: &mount.VolumeOptions{NoCopy: true}})
		dirs = append(dirs, givenDirectory(name, dir))
	}
	return e.temporary(ctx, imageID, request, mounts, func(ctx context.Context, temporary string) error {
		return e.give(ctx, temporary, who, dirs)
	})
}

// ownerBefore finds the user of an image before its container exists.
func (e *endpoint) ownerBefore(ctx context.Context, imageID, user string) (owner, error) {
	return e.owner(ctx, imageID, user, func(ctx context.Context, file string) (content []byte, err error) {
		err = e.temporary(ctx, imageID, "tmp-"+randomHex(), nil, func(ctx context.Context, id string) error {
			content, err = e.readContainerFile(ctx, id, file)
			return err
		})
		return content, err
	})
}

// startNew starts a new container, and fills the helper's volume when the start shows that it is empty.
func (e *endpoint) startNew(ctx context.Context, id, arch, volume, imageID string) error {
	var err error
	for range startAttempts {
		if err = e.start(ctx, id); !helperMissing(err) {
			break
		}
		if err := e.fillHelper(ctx, arch, volume, imageID); err != nil {
			return err
		}
	}
	return err
}

// start starts a container.
func (e *endpoint) start(ctx context.Context, id string) error {
	ctx, cancel := withDeadline(ctx, e.timings.call)
	defer cancel()
	_, err := e.cli.ContainerStart(ctx, id, client.ContainerStartOptions{})
	if isNotFound(err) {
		// Also what a start with a network that does not exist says.
		if _, inspected := e.cli.ContainerInspect(ctx, id, client.ContainerInspectOptions{}); isNotFound(inspected) {
			return e.gone("the sandbox could not be started", id)
		}
	}
	return e.failure(ctx, err, sandboxcore.CodeProvision, "the sandbox could not be started", objectID(id), "Correct what the engine complains about.")
}

// details are the facts of a container worth showing.
func details(ref, id, digest string) map[string]string {
	d := map[string]string{"image": ref, "image_id": id}
	if digest != "" {
		d["image_digest"] = digest
	}
	return d
}

// plainRequest reports whether a request id can be part of the names of volumes and containers.
func plainRequest(r string) bool {
	return r != "" && !notInNames.MatchString(r)
}

// pause waits, and reports false when the context ended first.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// stateOf gives the status of a container as users see it; gone is true for one that is on its way out.
func stateOf(s container.ContainerState) (status sandboxcore.Status, gone bool) {
	switch s {
	case container.StateRunning, container.StateRestarting:
		return sandboxcore.StatusRunning, false
	case container.StatePaused:
		return sandboxcore.StatusPaused, false
	case container.StateRemoving, container.StateDead:
		return "", true
	}
	return sandboxcore.StatusStopped, false
}
