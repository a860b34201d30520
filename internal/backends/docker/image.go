package docker

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/distribution/reference"
	"github.com/moby/moby/api/pkg/authconfig"
	"github.com/moby/moby/api/types/registry"
	"github.com/moby/moby/client"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// imageFacts are what a sandbox needs to know about its image.
type imageFacts struct {
	ref    string // as the profile says
	id     string // what the container is created from, so that a tag that moves meanwhile changes nothing
	digest string // repository digest, empty for an image that was never pulled
	user   string
	// volumes are the paths that the image declares as volumes.
	volumes []string
}

// imageCache shares one look at an image (and one pull) between the sandboxes of one apply.
type imageCache struct {
	mu   sync.Mutex
	held map[string]*imageEntry
}

type imageEntry struct {
	lock  chan struct{} // capacity 1: a mutex that a context can give up on
	facts imageFacts
	until time.Time
}

const imageCacheTime = 10 * time.Second

func (c *imageCache) entry(key string) *imageEntry {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.held == nil {
		c.held = map[string]*imageEntry{}
	}
	if c.held[key] == nil {
		c.held[key] = &imageEntry{lock: make(chan struct{}, 1)}
	}
	return c.held[key]
}

func (c *imageCache) drop() {
	c.mu.Lock()
	c.held = nil
	c.mu.Unlock()
}

// image finds the image of a profile in the engine, pulls it where the policy says so, and refuses a platform that the
// helper does not exist for. Nothing of the sandbox exists yet.
func (e *endpoint) image(ctx context.Context, o options) (imageFacts, error) {
	entry := e.images.entry(o.pullPolicy + " " + o.image)
	select {
	case entry.lock <- struct{}{}:
		defer func() { <-entry.lock }()
	case <-ctx.Done():
		return imageFacts{}, e.failure(ctx, ctx.Err(), sandboxcore.CodeProvision, "the image could not be looked up", o.image, "")
	}
	if e.now().Before(entry.until) {
		return entry.facts, nil
	}
	facts, err := e.findImage(ctx, o)
	if err != nil {
		return imageFacts{}, err
	}
	entry.facts, entry.until = facts, e.now().Add(imageCacheTime)
	return facts, nil
}

func (e *endpoint) findImage(ctx context.Context, o options) (imageFacts, error) {
	if o.pullPolicy == pullAlways && !isImageID(o.image) {
		if err := e.pull(ctx, o.image); err != nil {
			return imageFacts{}, err
		}
	}
	inspect := func() (client.ImageInspectResult, error) {
		ctx, cancel := withDeadline(ctx, e.timings.call)
		defer cancel()
		r, err := e.cli.ImageInspect(ctx, o.image)
		if err != nil && !isNotFound(err) {
			err = e.failure(ctx, err, sandboxcore.CodeProvision, "the image could not be looked up", o.image, "Check the image reference.")
		}
		return r, err
	}
	found, err := inspect()
	if isNotFound(err) && !isSandboxError(err) {
		if o.pullPolicy == pullNever || isImageID(o.image) {
			return imageFacts{}, &sandboxcore.Error{
				Code: sandboxcore.CodeProvision, Attempted: "the sandbox could not be created", Object: o.image,
				Said: "The engine does not have the image, and pull_policy keeps it from being pulled.",
				Next: "Load or build the image there, or set pull_policy = \"missing\".", Attribute: []string{"docker", keyImage},
			}
		}
		if err := e.pull(ctx, o.image); err != nil {
			return imageFacts{}, err
		}
		found, err = inspect()
	}
	if err != nil {
		return imageFacts{}, e.failure(ctx, err, sandboxcore.CodeProvision, "the image could not be looked up", o.image, "Check the image reference.")
	}
	if arch := goArch(found.Architecture); found.Os != "linux" || !supportedArch(arch) {
		return imageFacts{}, &sandboxcore.Error{
			Code: sandboxcore.CodeProvision, Attempted: "the sandbox was refused before anything was created", Object: o.image,
			Said: fmt.Sprintf("The image is for %s/%s.", found.Os, arch),
			Next: "Use an image for linux/amd64 or linux/arm64: the run helper exists for these.", Attribute: []string{"docker", keyImage},
		}
	}
	facts := imageFacts{ref: o.image, id: found.ID, digest: repoDigest(o.image, found.RepoDigests)}
	if found.Config != nil {
		facts.user = found.Config.User
		for v := range found.Config.Volumes {
			facts.volumes = append(facts.volumes, v)
		}
	}
	return facts, nil
}

// repoDigest picks the digest of the repository that the reference names.
func repoDigest(ref string, digests []string) string {
	named, err := reference.ParseNormalizedNamed(ref)
	if err != nil {
		return ""
	}
	for _, d := range digests {
		at, err := reference.ParseNormalizedNamed(d)
		if err != nil || at.Name() != named.Name() {
			continue
		}
		if digested, ok := at.(reference.Digested); ok {
			return digested.Digest().String()
		}
	}
	return ""
}

// pull lets the engine fetch an image. Progress goes to the log; a pull without any progress ends.
func (e *endpoint) pull(ctx context.Context, image string) error {
	auth, err := e.registryAuth(image)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	idle := time.AfterFunc(e.timings.pullIdle, func() { cancel(errNoAnswer) })
	defer idle.Stop()
	e.log.InfoContext(ctx, "pulling the image", "image", image)
	stream, err := e.cli.ImagePull(ctx, image, client.ImagePullOptions{RegistryAuth: auth})
	if err != nil {
		return e.pullFailure(ctx, err, image)
	}
	defer stream.Close()
	var last time.Time
	for m, err := range stream.JSONMessages(ctx) {
		if err == nil && m.Error != nil {
			err = m.Error
		}
		if err != nil {
			return e.pullFailure(ctx, err, image)
		}
		idle.Reset(e.timings.pullIdle)
		// An engine sends hundreds of these a second.
		if now := e.now(); now.Sub(last) >= 2*time.Second && m.Status != "" {
			last = now
			args := []any{"image", image, "status", m.Status, "layer", m.ID}
			if m.Progress != nil {
				args = append(args, "bytes", m.Progress.Current, "of", m.Progress.Total)
			}
			e.log.InfoContext(ctx, "pulling the image", args...)
		}
	}
	if err := context.Cause(ctx); err != nil {
		return e.pullFailure(ctx, err, image)
	}
	return nil
}

func (e *endpoint) pullFailure(ctx context.Context, err error, image string) error {
	next := "Check that the engine reaches the registry, or load the image there by hand and set pull_policy = \"never\"."
	said := strings.ToLower(err.Error())
	switch {
	case strings.Contains(said, "unauthorized"), strings.Contains(said, "access denied"), strings.Contains(said, "authentication required"), strings.Contains(said, "no basic auth"):
		next = "Check the name; for a private image log in with docker login, with the Docker configuration that the provider reads (config_dir)."
	case strings.Contains(said, "manifest unknown"), strings.Contains(said, "not found"), strings.Contains(said, "no matching manifest"):
		next = "Check name, tag and platform of the image."
	case strings.Contains(said, "toomanyrequests"):
		next = "The registry limits pulls: log in, wait, or use a mirror."
	}
	out := e.failure(ctx, err, sandboxcore.CodeProvision, "the image could not be pulled", image, next)
	if known := (*sandboxcore.Error)(nil); asError(out, &known) && known.Code == sandboxcore.CodeProvision {
		known.Attribute = []string{"docker", keyImage}
	}
	return out
}

// registryAuth gives the credential for the registry of an image as the engine takes it, empty if there is none. It is
// read for each pull and kept nowhere.
func (e *endpoint) registryAuth(image string) (string, error) {
	if e.target.registryAuth == nil {
		return "", nil
	}
	named, err := reference.ParseNormalizedNamed(image)
	if err != nil {
		return "", nil //nolint:nilerr // the engine refuses the reference with its own words
	}
	refuse := func(err error) error {
		return &sandboxcore.Error{
			Code: sandboxcore.CodeProvision, Attempted: "the registry credential could not be read", Object: reference.Domain(named),
			Next: "Repair the Docker configuration (docker login), or its credential helper.", Err: err,
		}
	}
	file, err := e.target.registryAuth()
	if err != nil {
		return "", refuse(err)
	}
	host := reference.Domain(named)
	if host == "docker.io" {
		host = "https://index.docker.io/v1/"
	}
	a, err := file.GetAuthConfig(host)
	if err != nil {
		return "", refuse(err)
	}
	if a.Username == "" && a.IdentityToken == "" && a.RegistryToken == "" && a.Auth == "" {
		return "", nil
	}
	encoded, err := authconfig.Encode(registry.AuthConfig{
		Username: a.Username, Password: a.Password, Auth: a.Auth, ServerAddress: a.ServerAddress,
		IdentityToken: a.IdentityToken, RegistryToken: a.RegistryToken,
	})
	if err != nil {
		return "", refuse(err)
	}
	return encoded, nil
}
