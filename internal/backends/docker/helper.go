package docker

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/runhelper"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// The run helper reaches containers through one read-only volume per engine and helper version. Its name carries the
// content's digest, so that providers of different versions do not get into each other's way. It is filled only when a
// start shows that it is empty: the usual create costs nothing more than a mount.

const (
	helperPath         = helperDir + "/akrun"
	helperVolumePrefix = "agentkernel-helper-"
	// staleHelper is the age from which a container that fills the volume was left by a provider that was killed.
	staleHelper = 10 * time.Minute
)

func helperVolumeName(arch string) (string, error) {
	digest, err := runhelper.Digest(arch)
	if err != nil {
		return "", &sandboxcore.Error{
			Code: sandboxcore.CodeProvision, Attempted: "the sandbox was refused before anything was created", Said: sentence(err.Error()),
			Next: "Use an engine for linux/amd64 or linux/arm64.",
		}
	}
	return helperVolumePrefix + digest[:12], nil
}

func helperMount(volume string, readOnly bool) mount.Mount {
	return mount.Mount{
		Type: mount.TypeVolume, Source: volume, Target: helperDir, ReadOnly: readOnly,
		VolumeOptions: &mount.VolumeOptions{NoCopy: true, Labels: map[string]string{
			sandboxcore.MarkManaged: "true", sandboxcore.MarkKind: kindHelper,
		}},
	}
}

// helperMissing recognises a start that failed because the volume is empty or being replaced.
func helperMissing(err error) bool {
	return err != nil && strings.Contains(err.Error(), helperPath) &&
		(strings.Contains(err.Error(), "no such file or directory") || strings.Contains(err.Error(), "permission denied"))
}

// fillHelper puts the helper into the volume, through a container that is made for it and never runs. Several
// providers may do so at once.
func (e *endpoint) fillHelper(ctx context.Context, arch, volume, imageID string) error {
	fail := func(ctx context.Context, err error) error {
		return e.failure(ctx, err, sandboxcore.CodeProvision, "the run helper could not be brought to the engine", volume,
			"Check the engine's log and the free space of its data directory.")
	}
	archive, err := helperArchive(arch)
	if err != nil {
		return fail(ctx, err)
	}
	e.sweepHelpers(ctx)
	return e.temporary(ctx, imageID, "tmp-"+randomHex(), []mount.Mount{helperMount(volume, false)}, func(ctx context.Context, id string) error {
		_, err := e.cli.CopyToContainer(ctx, id, client.CopyToContainerOptions{DestinationPath: helperDir, Content: bytes.NewReader(archive)})
		return fail(ctx, err)
	})
}

// temporary makes a container that is never started, hands it to use, and removes it. request is what it is found by.
func (e *endpoint) temporary(ctx context.Context, imageID, request string, mounts []mount.Mount, use func(context.Context, string) error) (err error) {
	attempted := "a temporary container could not be made"
	call, cancel := withDeadline(ctx, e.timings.call)
	defer cancel()
	c, err := e.cli.ContainerCreate(call, client.ContainerCreateOptions{
		Name: "agentkernel-temporary-" + request + "-" + randomHex(),
		Config: &container.Config{
			Image: imageID, Entrypoint: []string{helperPath},
			Labels: map[string]string{sandboxcore.MarkManaged: "true", sandboxcore.MarkKind: kindHelper, sandboxcore.MarkRequest: request},
		},
		HostConfig: &container.HostConfig{NetworkMode: "none", CapDrop: []string{"ALL"}, Mounts: mounts},
	})
	if err != nil {
		out := e.failure(call, err, sandboxcore.CodeProvision, attempted, imageID, "Check the engine's log.")
		e.removeLost(ctx, err, kindHelper, request)
		return out
	}
	defer func() {
		removed := sandboxcore.WithCleanup(ctx, func(ctx context.Context) error {
			_, err := e.cli.ContainerRemove(ctx, c.ID, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
			if isNotFound(err) {
				return nil
			}
			return e.failure(ctx, err, sandboxcore.CodeProvision, "a temporary container could not be removed", c.ID, "Remove it with docker rm.")
		})
		err = errors.Join(err, removed)
	}()
	return use(call, c.ID)
}

// helperArchive holds the helper under a name of its own and then a hard link with the name that is run: the archive is
// unpacked in order, so that the link appears only when the content is complete. A writer that is beaten by another, or
// dies half-way, never shows a partial program, and a program that runs is never written to.
func helperArchive(arch string) ([]byte, error) {
	content, err := runhelper.Binary(arch)
	if err != nil {
		return nil, err
	}
	name := "akrun." + randomHex()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o755, Size: int64(len(content))}); err != nil {
		return nil, err
	}
	if _, err := w.Write(content); err != nil {
		return nil, err
	}
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeLink, Name: "akrun", Linkname: name, Mode: 0o755}); err != nil {
		return nil, err
	}
	return b.Bytes(), w.Close()
}

// removeTemporaries removes the temporary containers of one create call, which a provider that was killed left behind.
func (e *endpoint) removeTemporaries(ctx context.Context, request string) {
	ctx, cancel := withDeadline(ctx, e.timings.call)
	defer cancel()
	found, err := e.cli.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: labelFilter(
		sandboxcore.MarkManaged+"=true", sandboxcore.MarkKind+"="+kindHelper, sandboxcore.MarkRequest+"="+request)})
	if err != nil {
		return // the removal that asked for it says what is wrong
	}
	for _, c := range found.Items {
		_, err := e.cli.ContainerRemove(ctx, c.ID, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
		e.log.DebugContext(ctx, "removed a temporary container that was left behind", "id", c.ID, "error", err)
	}
}

// sweepHelpers removes containers that a killed provider left while it filled the volume. They would keep the volume.
func (e *endpoint) sweepHelpers(ctx context.Context) {
	ctx, cancel := withDeadline(ctx, e.timings.call)
	defer cancel()
	found, err := e.cli.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: labelFilter(sandboxcore.MarkKind+"="+kindHelper, sandboxcore.MarkManaged+"=true")})
	if err != nil {
		return // the fill itself meets the same engine and says what is wrong
	}
	for _, c := range found.Items {
		if c.State == container.StateCreated && e.now().Sub(time.Unix(c.Created, 0)) > staleHelper {
			_, err := e.cli.ContainerRemove(ctx, c.ID, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
			e.log.DebugContext(ctx, "removed a helper container that was left behind", "id", c.ID, "error", err)
		}
	}
}

// dropHelper removes a helper volume if nobody uses it any more. The engine itself knows whether somebody does.
func (e *endpoint) dropHelper(ctx context.Context, volume string) {
	ctx, cancel := withDeadline(ctx, e.timings.call)
	defer cancel()
	_, err := e.cli.VolumeRemove(ctx, volume, client.VolumeRemoveOptions{})
	if err != nil && !isNotFound(err) && !isConflict(err) {
		e.log.WarnContext(ctx, "the volume of the run helper could not be removed", "volume", volume, "error", err)
	}
}

func labelFilter(labels ...string) client.Filters {
	return make(client.Filters).Add("label", labels...)
}

func randomHex() string {
	b := make([]byte, 6)
	if _, err := rand.Read(b); err != nil {
		// Go's rand.Read never fails; if it did, nothing that is made with it may go on.
		panic(fmt.Sprintf("no random numbers: %v", err))
	}
	return hex.EncodeToString(b)
}
