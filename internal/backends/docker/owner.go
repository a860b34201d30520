package docker

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"

	"github.com/moby/moby/client"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// owner is the user and group that code in a sandbox runs as, in numbers of the image.
type owner struct{ uid, gid int }

func (o owner) root() bool { return o.uid == 0 && o.gid == 0 }

// userCache remembers who a user of an image is: an image does not change under its id.
type userCache struct {
	mu    sync.Mutex
	known map[string]owner
}

// owner finds out who the user of a sandbox is. Names are looked up in the image's own files, through a container that
// does not run: the engine would look them up in the files of its host.
func (e *endpoint) owner(ctx context.Context, imageID, user string, read func(context.Context, string) ([]byte, error)) (owner, error) {
	if o, ok := plainOwner(user); ok {
		return o, nil
	}
	key := imageID + " " + user
	e.users.mu.Lock()
	o, ok := e.users.known[key]
	e.users.mu.Unlock()
	if ok {
		return o, nil
	}
	passwd, err := read(ctx, "/etc/passwd")
	if err != nil {
		return owner{}, err
	}
	var group []byte
	if strings.Contains(user, ":") {
		if group, err = read(ctx, "/etc/group"); err != nil {
			return owner{}, err
		}
	}
	o, err = lookupOwner(user, passwd, group)
	if err != nil {
		return owner{}, &sandboxcore.Error{
			Code: sandboxcore.CodeProvision, Attempted: "the user of the sandbox could not be found", Object: user, Said: sentence(err.Error()),
			Next: "Name a user of the image, or a number.", Attribute: []string{"docker", keyUser},
		}
	}
	e.users.mu.Lock()
	if e.users.known == nil {
		e.users.known = map[string]owner{}
	}
	e.users.known[key] = o
	e.users.mu.Unlock()
	return o, nil
}

// plainOwner resolves what needs no file of the image.
func plainOwner(user string) (owner, bool) {
	if user == "" || user == "root" || user == "0" {
		return owner{}, true
	}
	u, g, both := strings.Cut(user, ":")
	uid, err := strconv.Atoi(u)
	if err != nil || !both {
		return owner{}, false
	}
	gid, err := strconv.Atoi(g)
	return owner{uid, gid}, err == nil
}

// lookupOwner reads user and group the way the runtime does: an entry by name or number, and a number without an entry
// stands for itself with group 0.
func lookupOwner(user string, passwd, group []byte) (owner, error) {
	u, g, both := strings.Cut(user, ":")
	var o owner
	found := false
	for line := range strings.Lines(string(passwd)) {
		f := strings.Split(strings.TrimSpace(line), ":")
		if len(f) < 4 || (f[0] != u && f[2] != u) {
			continue
		}
		uid, err1 := strconv.Atoi(f[2])
		gid, err2 := strconv.Atoi(f[3])
		if err1 == nil && err2 == nil {
			o, found = owner{uid, gid}, true
			break
		}
	}
	if !found {
		uid, err := strconv.Atoi(u)
		if err != nil {
			return owner{}, fmt.Errorf("the image has no user %q in /etc/passwd", u)
		}
		o = owner{uid: uid}
	}
	if !both {
		return o, nil
	}
	for line := range strings.Lines(string(group)) {
		f := strings.Split(strings.TrimSpace(line), ":")
		if len(f) < 3 || (f[0] != g && f[2] != g) {
			continue
		}
		if gid, err := strconv.Atoi(f[2]); err == nil {
			o.gid = gid
			return o, nil
		}
	}
	gid, err := strconv.Atoi(g)
	if err != nil {
		return owner{}, fmt.Errorf("the image has no group %q in /etc/group", g)
	}
	o.gid = gid
	return o, nil
}

// readContainerFile reads a small file out of a container; an absent one is empty.
func (e *endpoint) readContainerFile(ctx context.Context, containerID, file string) ([]byte, error) {
	ctx, cancel := withDeadline(ctx, e.timings.call)
	defer cancel()
	fail := func(err error) error {
		return e.failure(ctx, err, sandboxcore.CodeProvision, "a file of the image could not be read", file, "Check the image.")
	}
	r, err := e.cli.CopyFromContainer(ctx, containerID, client.CopyFromContainerOptions{SourcePath: file})
	if isNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fail(err)
	}
	defer r.Content.Close()
	archive := tar.NewReader(r.Content)
	if _, err := archive.Next(); err != nil {
		if errors.Is(err, io.EOF) {
			return nil, nil
		}
		return nil, fail(err)
	}
	content, err := io.ReadAll(io.LimitReader(archive, 1<<20))
	if err != nil {
		return nil, fail(err)
	}
	return content, nil
}

// given is one directory that goes to the sandbox's user, with its name below the root of a container.
type given struct {
	name string
	mode int64
}

func givenDirectory(name, dir string) given {
	if dir == "/tmp" || dir == "/var/tmp" {
		return given{name, 0o1777}
	}
	return given{name, 0o755}
}

// give makes directories below the root of a container that does not run, or takes those that exist, and hands them to
// the sandbox's user.
func (e *endpoint) give(ctx context.Context, containerID string, o owner, dirs []given) error {
	var b bytes.Buffer
	archive := tar.NewWriter(&b)
	for _, d := range dirs {
		if err := archive.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: d.name + "/", Mode: d.mode, Uid: o.uid, Gid: o.gid, ModTime: e.now()}); err != nil {
			return fmt.Errorf("make the archive of %s: %w", d.name, err)
		}
	}
	if err := archive.Close(); err != nil {
		return fmt.Errorf("make the archive of directories: %w", err)
	}
	ctx, cancel := withDeadline(ctx, e.timings.call)
	defer cancel()
	_, err := e.cli.CopyToContainer(ctx, containerID, client.CopyToContainerOptions{DestinationPath: "/", Content: &b})
	return e.failure(ctx, err, sandboxcore.CodeProvision, "a directory of the sandbox could not be handed to its user", objectID(containerID), "Check that none of the writable paths is a file of the image.")
}
