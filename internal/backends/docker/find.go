package docker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// found is one container as a look at it shows.
type found struct {
	id      string
	state   container.ContainerState
	labels  map[string]string
	imageID string
	created time.Time
	mounts  []container.MountPoint
	// What follows only a look at the one container tells.
	user string
	// workspace: the working directory is one of the container's own file system.
	workspace bool
}

// listing is the answer to one question that serves a whole refresh: all containers with our mark. Each change drops it.
type listing struct {
	mu    sync.Mutex
	byID  map[string]found
	until time.Time
	// changes counts the drops: an answer to a question asked before a change is not kept.
	changes uint64
	asking  *question
}

// question is one listing under way, shared by all who wait for it.
type question struct {
	changes uint64
	done    chan struct{}
	byID    map[string]found
	err     error
}

func (l *listing) drop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.byID = nil
	l.changes++
}

var fullID = regexp.MustCompile(`^[0-9a-f]{64}$`)

// Find reads one sandbox.
func (e *endpoint) Find(ctx context.Context, nativeID string, fresh bool) (sandboxcore.ManagedSandbox, error) {
	if !fullID.MatchString(nativeID) {
		return nil, &sandboxcore.Error{
			Code: sandboxcore.CodeValue, Attempted: "the sandbox could not be looked up", Object: objectID(nativeID),
			Said: "That is no full container ID; names and shortened IDs could mean another container later.",
			Next: "Use docker/<64 hexadecimal digits>, as docker ps --no-trunc shows them.",
		}
	}
	info, err := e.engineInfo(ctx)
	if err != nil {
		return nil, err
	}
	if !fresh {
		all, err := e.list(ctx)
		if err != nil {
			return nil, err
		}
		if f, ok := all[nativeID]; ok {
			if _, gone := stateOf(f.state); !gone {
				return e.managed(f, info.ID)
			}
		}
	}
	f, err := e.inspect(ctx, nativeID)
	if sandboxcore.IsCode(err, sandboxcore.CodeGone) {
		// Whoever removed the container did not remove its volumes.
		e.sweepVolumes(ctx)
	}
	if err != nil {
		return nil, err
	}
	return e.managed(f, info.ID)
}

var errIncomplete = errors.New("malformed HTTP answer: the description of a container is incomplete")

// inspect asks for one container. One that is being removed is gone.
func (e *endpoint) inspect(ctx context.Context, id string) (found, error) {
	const attempted = "the sandbox could not be looked up"
	ctx, cancel := withDeadline(ctx, e.timings.call)
	defer cancel()
	r, err := e.cli.ContainerInspect(ctx, id, client.ContainerInspectOptions{})
	if isNotFound(err) {
		return found{}, e.gone(attempted, id)
	}
	if err != nil {
		return found{}, e.failure(ctx, err, sandboxcore.CodeUnreachable, attempted, objectID(id), "Check the engine's log.")
	}
	c := r.Container
	if c.ID == "" || c.State == nil || c.Config == nil {
		return found{}, e.failure(ctx, errIncomplete, sandboxcore.CodeUnreachable, attempted, objectID(id), "")
	}
	if c.ID != id {
		// The engine also takes names: a container may be called like the id of another one.
		return found{}, e.gone(attempted, id)
	}
	if _, gone := stateOf(c.State.Status); gone {
		return found{}, e.gone(attempted, id)
	}
	f := found{id: c.ID, state: c.State.Status, labels: c.Config.Labels, imageID: c.Image, mounts: c.Mounts, user: c.Config.User}
	if h := c.HostConfig; h != nil {
		_, memory := h.Tmpfs[workspaceDir]
		f.workspace = !h.ReadonlyRootfs && !memory
	}
	if t, err := time.Parse(time.RFC3339Nano, c.Created); err == nil {
		f.created = t
	}
	return f, nil
}

// managed makes the handle of a container that carries our marks, and refuses any other.
func (e *endpoint) managed(f found, engineID string) (*sandbox, error) {
	marks, err := sandboxcore.DecodeMarks(objectID(f.id), f.labels)
	if err != nil {
		return nil, err
	}
	status, _ := stateOf(f.state)
	created := marks.Created
	if created.IsZero() {
		created = f.created
	}
	s := &sandbox{e: e, info: sandboxcore.SandboxInfo{
		NativeID: f.id, Endpoint: engineID, Status: status, Marks: marks, CreatedAt: created,
		Details: details(f.labels[labelImage], f.imageID, f.labels[labelImageDigest]),
	}}
	for _, m := range f.mounts {
		switch {
		case strings.HasPrefix(m.Name, helperVolumePrefix):
			s.helperVolume = m.Name
		case strings.HasPrefix(m.Name, volumePrefix(marks.Request)):
			s.volumes = append(s.volumes, m.Name)
		}
	}
	return s, nil
}

// plan is as much of what the container was made from as giveDirectories needs.
func (f found) plan(request string) plan {
	p := plan{workspace: f.workspace, volumes: map[string]string{}}
	p.options.Config = &container.Config{User: f.user}
	for _, m := range f.mounts {
		if m.RW && strings.HasPrefix(m.Name, volumePrefix(request)) {
			p.volumes[m.Destination] = m.Name
		}
	}
	return p
}

// List gives every sandbox of ours on the engine.
func (e *endpoint) List(ctx context.Context) ([]sandboxcore.SandboxInfo, error) {
	info, err := e.engineInfo(ctx)
	if err != nil {
		return nil, err
	}
	e.listing.drop()
	all, err := e.list(ctx)
	if err != nil {
		return nil, err
	}
	var out []sandboxcore.SandboxInfo
	for _, f := range all {
		if _, gone := stateOf(f.state); gone {
			continue
		}
		s, err := e.managed(f, info.ID)
		if err != nil {
			// Marks that do not fit together: not ours, and nobody asked for it by name.
			e.log.WarnContext(ctx, "a container with our label was left out of the list", "id", f.id, "error", err)
			continue
		}
		out = append(out, s.info)
	}
	slices.SortFunc(out, func(a, b sandboxcore.SandboxInfo) int {
		return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), cmp.Compare(a.NativeID, b.NativeID))
	})
	return out, nil
}

// list gives the containers of one refresh.
func (e *endpoint) list(ctx context.Context) (map[string]found, error) {
	l := &e.listing
	l.mu.Lock()
	if l.byID != nil && e.now().Before(l.until) {
		byID := l.byID
		l.mu.Unlock()
		return byID, nil
	}
	q := l.asking
	if q == nil || q.changes != l.changes {
		q = &question{changes: l.changes, done: make(chan struct{})}
		l.asking = q
		// The first who asks must not end the question for the others when it is cancelled.
		go func() {
			defer close(q.done)
			q.err = sandboxcore.WithCleanup(ctx, func(ctx context.Context) error { return e.ask(ctx, q) })
		}()
	}
	l.mu.Unlock()
	select {
	case <-q.done:
		return q.byID, q.err
	case <-ctx.Done():
		return nil, e.failure(ctx, ctx.Err(), sandboxcore.CodeUnreachable, "the sandboxes of the engine could not be listed", "", "")
	}
}

// ask puts the question to the engine and keeps the answer, unless something changed since.
func (e *endpoint) ask(ctx context.Context, q *question) error {
	ctx, cancel := withDeadline(ctx, e.timings.call)
	defer cancel()
	begun := e.now()
	r, err := e.cli.ContainerList(ctx, client.ContainerListOptions{
		All: true, Filters: labelFilter(sandboxcore.MarkManaged+"=true", sandboxcore.MarkKind+"="+kindSandbox),
	})
	if err != nil {
		err = e.failure(ctx, err, sandboxcore.CodeUnreachable, "the sandboxes of the engine could not be listed", "Docker engine at "+e.target.host, "Check the engine's log.")
	} else {
		q.byID = make(map[string]found, len(r.Items))
		for _, c := range r.Items {
			q.byID[c.ID] = found{id: c.ID, state: c.State, labels: c.Labels, imageID: c.ImageID, created: time.Unix(c.Created, 0), mounts: c.Mounts}
		}
	}
	l := &e.listing
	l.mu.Lock()
	if l.asking == q {
		l.asking = nil
	}
	if err == nil && l.changes == q.changes {
		l.byID, l.until = q.byID, begun.Add(e.timings.listCache)
	}
	l.mu.Unlock()
	return err
}

// sweepVolumes removes volumes of writable paths whose container is gone. The engine makes them together with the
// container that uses them, so that one without a user has lost it.
func (e *endpoint) sweepVolumes(ctx context.Context) {
	ctx, cancel := withDeadline(ctx, e.timings.call)
	defer cancel()
	r, err := e.cli.VolumeList(ctx, client.VolumeListOptions{
		Filters: labelFilter(sandboxcore.MarkManaged+"=true", sandboxcore.MarkKind+"="+kindWorkspace).Add("dangling", "true"),
	})
	if err != nil {
		e.log.WarnContext(ctx, "volumes of removed sandboxes could not be looked for", "error", err)
		return
	}
	for _, v := range r.Items {
		if _, err := e.cli.VolumeRemove(ctx, v.Name, client.VolumeRemoveOptions{}); err != nil && !isNotFound(err) && !isConflict(err) {
			e.log.WarnContext(ctx, "a volume of a removed sandbox could not be removed", "volume", v.Name, "error", err)
		}
	}
	// The helper's volume goes with the last sandbox, also when that was removed by somebody else.
	h, err := e.cli.VolumeList(ctx, client.VolumeListOptions{
		Filters: labelFilter(sandboxcore.MarkManaged+"=true", sandboxcore.MarkKind+"="+kindHelper).Add("dangling", "true"),
	})
	if err != nil {
		return
	}
	for _, v := range h.Items {
		e.dropHelper(ctx, v.Name)
	}
}

// notRunning is the error for a sandbox that would have to run and is paused.
func notRunning(id string) error {
	return &sandboxcore.Error{
		Code: sandboxcore.CodeStopped, Attempted: "the sandbox could not be used", Object: objectID(id), Said: "It is paused.",
		Next: fmt.Sprintf("Set desired_state = %q on the sandbox first.", sandboxcore.StatusRunning), Attribute: []string{"desired_state"},
	}
}
