package docker

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	"github.com/moby/moby/client"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/backends/supervised"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/runhelper"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// A container that somebody else made is bound and nothing more: it is not started, not stopped, not changed, and none of
// its labels is touched. What a run needs is brought in for its time and taken out again.

// keyAttachTo names the container of an attached profile.
const keyAttachTo = "attach_to"

func attachSetting() sandboxcore.Setting {
	return sandboxcore.Setting{
		Name: keyAttachTo, Kind: sandboxcore.KindString,
		Description: "Container to bind to, by name or id, with `environment = \"attached\"`. It has to run: it is never started. Its user (unless `user` names one), " +
			"its working directory and its limits stay as they are. For each run a small program is put into its root directory and removed as soon as it has started; where the " +
			"root file system is read-only, the container's `sh` does what it can: files cannot be carried, code is limited to 96 KiB, and a timeout ends the processes of the run's process group only.",
		Pattern: `^[a-zA-Z0-9][a-zA-Z0-9_.-]*$`, PatternHint: "a name or id as in `docker ps`",
	}
}

// attachedKeys are the settings that mean something for a container that exists.
var attachedKeys = []string{keyAttachTo, keyUser, keyIsolation}

// attachedCapabilities: attaching applies no limit, and how strong the container's own boundary is, only its owner knows.
func attachedCapabilities(o options) sandboxcore.Capabilities {
	c := sandboxcore.Capabilities{
		Isolation:        sandboxcore.IsolationNone,
		Shell:            true,
		Languages:        []string{"python"},
		Files:            true,
		AttachesExternal: true,
		NetworkModes:     []sandboxcore.NetworkMode{sandboxcore.NetworkAllow},
		Stdin:            true,
		Streaming:        true,
		SplitOutput:      true,
		KeepBackground:   true,
		Assertable:       []string{keyIsolation},
	}
	if o.isolation != "" {
		c.Isolation, c.IsolationAsserted = o.isolation, true
	}
	return c
}

// validateAttached refuses settings that describe a container still to be made.
func validateAttached(p *sandboxcore.Profile) []*sandboxcore.Error {
	var out []*sandboxcore.Error
	for _, s := range profileSettings() {
		if _, set := p.Settings[s.Name]; set && !slices.Contains(attachedKeys, s.Name) {
			out = append(out, &sandboxcore.Error{
				Code: sandboxcore.CodeValue, Attempted: "the docker profile was refused", Object: p.Name, Attribute: []string{"docker", s.Name},
				Said: s.Name + " describes a container that is made, and this profile is attached to one that exists.", Next: "Remove it, or set environment = \"managed\".",
			})
		}
	}
	return out
}

// attached is the handle of a container that somebody else owns.
type attached struct {
	e        *endpoint
	id       string
	name     string
	user     string
	arch     string
	status   sandboxcore.Status
	readOnly bool
	details  map[string]string
}

var _ sandboxcore.AttachedEnvironment = (*attached)(nil)

// Attach looks the container up. Its full id is what a binding names: one that is made anew under the same name is another.
func (e *endpoint) Attach(ctx context.Context, p *sandboxcore.Profile) (sandboxcore.AttachedEnvironment, error) {
	const attempted = "the container could not be bound"
	o := optionsOf(p)
	target := p.Settings.String(keyAttachTo, "")
	info, err := e.engineInfo(ctx)
	if err != nil {
		return nil, err
	}
	call, cancel := withDeadline(ctx, e.timings.call)
	defer cancel()
	r, err := e.cli.ContainerInspect(call, target, client.ContainerInspectOptions{})
	gone := func() error {
		return &sandboxcore.Error{
			Code: sandboxcore.CodeGone, Attempted: attempted, Object: objectID(target), Said: "The engine at " + e.target.host + " has no such container.",
			Next: "Check the name, and that the provider speaks to the engine that is meant; its address comes from " + e.target.origin + ".", Attribute: []string{"docker", keyAttachTo},
		}
	}
	if isNotFound(err) {
		return nil, gone()
	}
	if err != nil {
		return nil, e.failure(call, err, sandboxcore.CodeUnreachable, attempted, objectID(target), "Check the engine's log.")
	}
	c := r.Container
	if c.ID == "" || c.State == nil || c.Config == nil || c.HostConfig == nil {
		return nil, e.failure(call, errIncomplete, sandboxcore.CodeUnreachable, attempted, objectID(target), "")
	}
	status, ended := stateOf(c.State.Status)
	if ended {
		return nil, gone()
	}
	a := &attached{
		e: e, id: c.ID, name: strings.TrimPrefix(c.Name, "/"), user: o.user, arch: goArch(info.Architecture), status: status, readOnly: c.HostConfig.ReadonlyRootfs,
	}
	a.details = map[string]string{
		"name": a.name, "image": c.Config.Image, "image_id": c.Image, "user": c.Config.User, "working_directory": c.Config.WorkingDir,
		"read_only_root": strconv.FormatBool(a.readOnly), "privileged": strconv.FormatBool(c.HostConfig.Privileged),
	}
	return a, nil
}

// NativeID is the container's full id.
func (a *attached) NativeID() string { return a.id }

// Status is what the look showed.
func (a *attached) Status() sandboxcore.Status { return a.status }

// Platform is that of the engine.
func (a *attached) Platform() string { return "linux/" + a.arch }

// Details are facts of the container that its owner decides.
func (a *attached) Details() map[string]string { return a.details }

// ready refuses a container that does not run. Starting it is its owner's business.
func (a *attached) ready() error {
	if a.status == sandboxcore.StatusRunning {
		return nil
	}
	return &sandboxcore.Error{
		Code: sandboxcore.CodeStopped, Attempted: "the run was refused", Object: objectID(a.id), Said: fmt.Sprintf("The container %s is %s, and this provider does not start what it did not make.", a.name, a.status),
		Next: "Start it (docker start, docker unpause), then run the command again.", Attribute: []string{"binding"},
	}
}

// Run runs one request in the container.
func (a *attached) Run(ctx context.Context, req sandboxcore.RunRequest, stdout, stderr io.Writer) (sandboxcore.RunResult, error) {
	if err := a.ready(); err != nil {
		return sandboxcore.RunResult{}, err
	}
	if a.readOnly {
		return a.shell(ctx, req, stdout, stderr)
	}
	var notice string
	res, err := supervised.Run(ctx, a.target(&notice), req, stdout, stderr)
	res.Notice = joinNotices(notice, res.Notice)
	return res, err
}

func (a *attached) target(notice *string) supervised.Target {
	return supervised.Target{
		Object: objectID(a.id), Place: "the container " + a.name,
		Open: func(ctx context.Context) (*runhelper.Conn, error) { return a.open(ctx, notice) },
	}
}

// files refuses what a read-only root leaves no way for.
func (a *attached) files() error {
	if err := a.ready(); err != nil || !a.readOnly {
		return err
	}
	return &sandboxcore.Error{
		Code: sandboxcore.CodeOperation, Attempted: "the file could not be carried", Object: objectID(a.id),
		Said: "The container's root file system is read-only, so that the program that carries files cannot be brought in.", Next: "Write the result to standard output.",
	}
}

// ReadFile reads a file as the container's user sees it.
func (a *attached) ReadFile(ctx context.Context, path string, limit int64) ([]byte, fs.FileMode, error) {
	if err := a.files(); err != nil {
		return nil, 0, err
	}
	return supervised.ReadFile(ctx, a.target(nil), path, limit)
}

// WriteFile writes a file as the container's user.
func (a *attached) WriteFile(ctx context.Context, path string, content []byte, mode fs.FileMode) error {
	if err := a.files(); err != nil {
		return err
	}
	return supervised.WriteFile(ctx, a.target(nil), path, content, mode)
}

// RemoveFile removes a file as the container's user.
func (a *attached) RemoveFile(ctx context.Context, path string) error {
	if err := a.files(); err != nil {
		return err
	}
	return supervised.RemoveFile(ctx, a.target(nil), path)
}

// open brings the helper in, starts it, and takes its file out again as soon as it has answered: a program that runs needs
// its file no more, and so not even a provider that is killed in the middle of a run leaves anything behind.
func (a *attached) open(ctx context.Context, notice *string) (*runhelper.Conn, error) {
	const attempted = "the run helper could not be brought into the container"
	name := ".agentkernel-" + randomHex()
	archive, err := oneFile(a.arch, name)
	if err != nil {
		return nil, err
	}
	call, cancel := withDeadline(ctx, a.e.timings.call)
	defer cancel()
	if _, err := a.e.cli.CopyToContainer(call, a.id, client.CopyToContainerOptions{DestinationPath: "/", Content: bytes.NewReader(archive)}); err != nil {
		if isNotFound(err) {
			return nil, a.e.gone(attempted, a.id)
		}
		a.remove(ctx, name, notice)
		return nil, a.e.failure(call, err, sandboxcore.CodeProvision, attempted, objectID(a.id), "Check the container's root file system and its free space.")
	}
	conn, err := a.start(ctx, a.user, "/"+name)
	if err != nil {
		a.remove(ctx, name, notice)
		return nil, a.e.failure(ctx, err, sandboxcore.CodeProvision, "the run helper could not be started in the container", objectID(a.id),
			"Check that the container still runs, and that its user may start programs of the root directory.")
	}
	// The helper's first bytes say that it runs. What comes instead is for the one who reads on.
	stop := context.AfterFunc(call, func() { _ = conn.Close() })
	first := bufio.NewReader(conn.Frames)
	_, _ = first.Peek(1)
	stop()
	a.remove(ctx, name, notice)
	conn.Frames = first
	return conn, nil
}

// oneFile is the helper as the only file of an archive.
func oneFile(arch, name string) ([]byte, error) {
	content, err := runhelper.Binary(arch)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o755, Size: int64(len(content))}); err != nil {
		return nil, err
	}
	if _, err := w.Write(content); err != nil {
		return nil, err
	}
	return b.Bytes(), w.Close()
}

// remove lets the helper remove itself, as root: nothing else is sure to be in the container.
func (a *attached) remove(ctx context.Context, name string, notice *string) {
	err := sandboxcore.WithCleanup(ctx, func(ctx context.Context) error {
		conn, err := a.start(ctx, "0", "/"+name)
		if err != nil {
			return err
		}
		err = runhelper.Remove(ctx, conn, "/"+name)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	})
	if err != nil && notice != nil {
		*notice = joinNotices(*notice, fmt.Sprintf("The file /%s of this provider may still be in the container: %s.", name, sandboxcore.Printable(err.Error())))
	}
}

// start starts a helper and gives its streams.
func (a *attached) start(ctx context.Context, user, path string) (*runhelper.Conn, error) {
	ctx, cancel := withDeadline(ctx, a.e.timings.call)
	defer cancel()
	created, err := a.e.cli.ExecCreate(ctx, a.id, client.ExecCreateOptions{User: user, AttachStdin: true, AttachStdout: true, Cmd: []string{path, "run"}})
	if err != nil {
		return nil, err
	}
	hijacked, err := a.e.cli.ExecAttach(ctx, created.ID, client.ExecAttachOptions{})
	if err != nil {
		return nil, err
	}
	conn := &execConn{hijacked: hijacked.HijackedResponse}
	return &runhelper.Conn{Control: conn, Frames: newDemux(hijacked.Reader), Close: conn.Close}, nil
}
