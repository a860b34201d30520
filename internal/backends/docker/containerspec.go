package docker

import (
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

const (
	workspaceDir = "/workspace"
	labelPrefix  = "agentkernel.io/"
	// Labels of ours beside the marks.
	labelImage       = labelPrefix + "image"
	labelImageDigest = labelPrefix + "image-digest"
	// Kinds of objects (sandboxcore.MarkKind) beside "sandbox".
	kindSandbox   = "sandbox"
	kindHelper    = "helper"
	kindWorkspace = "workspace"
)

// plan is one container before it exists.
type plan struct {
	options client.ContainerCreateOptions
	// volumes are the named volumes of the writable paths, by path.
	volumes map[string]string
	// covered are the named volumes that keep volumes of the image from being writable.
	covered []string
	// workspace says that the working directory is one of the container's own file system.
	workspace bool
	// tmpfs are the in-memory directories: their owner is a mount option and therefore must be known before the create.
	tmpfs []string
}

// planContainer says what container a request asks for. It is pure.
func planContainer(req sandboxcore.CreateRequest, image imageFacts, helperVolume string) (plan, error) {
	o := optionsOf(req.Profile)
	labels, err := labelsOf(req.Marks, image)
	if err != nil {
		return plan{}, err
	}
	user := image.user
	if o.user != "" {
		user = o.user
	}
	no, pids := false, o.pidsLimit
	host := &container.HostConfig{
		// What PID 1 would print is nothing, and sandboxed code must not fill the host's disk through it.
		LogConfig:   container.LogConfig{Type: "none"},
		NetworkMode: networkMode(req.Profile, o),
		CapDrop:     []string{"ALL"},
		CapAdd:      slices.Clone(o.capAdd),
		// The helper must be PID 1 itself, whatever the engine's default is.
		Init:      &no,
		Runtime:   o.runtime,
		Resources: resourcesOf(req.Profile),
		Mounts:    []mount.Mount{helperMount(helperVolume, true)},
	}
	host.PidsLimit = &pids
	if o.noNewPrivileges {
		host.SecurityOpt = append(host.SecurityOpt, "no-new-privileges")
	}
	if o.seccomp == seccompUnconfined {
		host.SecurityOpt = append(host.SecurityOpt, "seccomp=unconfined")
	}
	p := plan{volumes: map[string]string{}}
	p.addPaths(host, req, image, o)
	env := make([]string, 0, len(req.Env))
	for _, k := range slices.Sorted(maps.Keys(req.Env)) {
		// The engine's own refusal would repeat the value, which may be a secret.
		if k == "" || strings.ContainsAny(k, "=\x00") || strings.Contains(req.Env[k], "\x00") {
			return plan{}, &sandboxcore.Error{
				Code: sandboxcore.CodeValue, Attempted: "the sandbox was refused before anything was created", Object: req.Marks.Name,
				Said: fmt.Sprintf("%q cannot be a variable of the environment: its name is empty or holds =, or it holds a NUL byte.", k),
				Next: "Rename it, or clean its value.", Attribute: []string{"env"},
			}
		}
		env = append(env, k+"="+req.Env[k])
	}
	p.options = client.ContainerCreateOptions{
		Name: containerName(req.Marks),
		Config: &container.Config{
			Image:      image.id,
			User:       user,
			Env:        env,
			Entrypoint: []string{helperPath, "init"},
			// An empty list would be the image's own.
			Cmd:        []string{},
			WorkingDir: workspaceDir,
			Labels:     labels,
			// The image's health check would run beside our runs and count against their limits.
			Healthcheck: &container.HealthConfig{Test: []string{"NONE"}},
		},
		HostConfig: host,
	}
	return p, nil
}

// addPaths says which paths can be written. Without fs_allow_write the root is writable; with it the root is read-only
// and exactly those paths are mounts of their own (beside the container's own small /dev and /dev/shm, in memory).
func (p *plan) addPaths(host *container.HostConfig, req sandboxcore.CreateRequest, image imageFacts, o options) {
	writable := outermost(req.Profile.Policy.FSAllowWrite)
	memory := o.workspace == workspaceMemory
	if len(writable) == 0 {
		if memory {
			p.tmpfs = []string{workspaceDir}
		} else {
			p.workspace = true
		}
		return
	}
	host.ReadonlyRootfs = true
	if memory {
		p.tmpfs = writable
	} else {
		for i, w := range writable {
			name := fmt.Sprintf("%s%d", volumePrefix(req.Marks.Request), i)
			p.volumes[w] = name
			host.Mounts = append(host.Mounts, volumeMount(name, w, req.Marks.Request, false))
		}
	}
	// A volume that the image declares would be one more writable path. Mounted by us, it is read-only.
	for _, v := range slices.Sorted(slices.Values(image.volumes)) {
		v = path.Clean(v)
		if !slices.ContainsFunc(writable, func(w string) bool { return within(v, w) }) {
			name := fmt.Sprintf("%simage-%d", volumePrefix(req.Marks.Request), len(p.covered))
			p.covered = append(p.covered, name)
			host.Mounts = append(host.Mounts, volumeMount(name, v, req.Marks.Request, true))
		}
	}
}

// volumePrefix begins the names of the volumes that belong to the sandbox of a request.
func volumePrefix(request string) string { return "agentkernel-" + request + "-" }

// volumeMount mounts a named volume that belongs to the sandbox. What the image has at the path is copied into it.
func volumeMount(name, path, request string, readOnly bool) mount.Mount {
	return mount.Mount{Type: mount.TypeVolume, Source: name, Target: path, ReadOnly: readOnly, VolumeOptions: &mount.VolumeOptions{
		Labels: map[string]string{sandboxcore.MarkManaged: "true", sandboxcore.MarkKind: kindWorkspace, sandboxcore.MarkRequest: request},
	}}
}

// setOwner fixes the mount options of in-memory directories, which carry their owner.
func (p *plan) setOwner(o owner, sizeMB int64) {
	if len(p.tmpfs) == 0 {
		return
	}
	p.options.HostConfig.Tmpfs = map[string]string{}
	for _, dir := range p.tmpfs {
		mode := "0755"
		if dir == "/tmp" || dir == "/var/tmp" {
			mode = "1777"
		}
		p.options.HostConfig.Tmpfs[dir] = fmt.Sprintf("rw,exec,nosuid,nodev,size=%dm,mode=%s,uid=%d,gid=%d", sizeMB, mode, o.uid, o.gid)
	}
}

// outermost cleans the paths and leaves out what lies below another one.
func outermost(paths []string) []string {
	var out []string
	clean := make([]string, len(paths))
	for i, p := range paths {
		clean[i] = path.Clean(p)
	}
	slices.Sort(clean)
	for _, p := range slices.Compact(clean) {
		if !slices.ContainsFunc(out, func(o string) bool { return within(p, o) }) {
			out = append(out, p)
		}
	}
	return out
}

func networkMode(p *sandboxcore.Profile, o options) container.NetworkMode {
	switch {
	case p.Policy.NetworkEgress == sandboxcore.NetworkDeny:
		return "none"
	case o.network != "":
		return container.NetworkMode(o.network)
	}
	// The engine's own default bridge.
	return "default"
}

// resourcesOf are the limits that can also change while the container runs.
func resourcesOf(p *sandboxcore.Profile) container.Resources {
	var r container.Resources
	if p.Policy.CPU != nil {
		r.NanoCPUs = nanoCPUs(*p.Policy.CPU)
	}
	if p.Policy.MemoryMB != nil {
		r.Memory = *p.Policy.MemoryMB << 20
		// Without this a container may use as much swap again.
		r.MemorySwap = r.Memory
	}
	return r
}

func nanoCPUs(cores float64) int64 { return int64(cores*1e9 + 0.5) }

// labelsOf are the marks and the user's own labels.
func labelsOf(m sandboxcore.Marks, image imageFacts) (map[string]string, error) {
	labels, err := m.Encode()
	if err != nil {
		return nil, err
	}
	labels[labelImage] = image.ref
	if image.digest != "" {
		labels[labelImageDigest] = image.digest
	}
	for k, v := range m.Args.Labels {
		if k == "" || strings.HasPrefix(k, labelPrefix) {
			return nil, &sandboxcore.Error{
				Code: sandboxcore.CodeValue, Attempted: "the sandbox was refused before anything was created", Object: m.Name,
				Said: fmt.Sprintf("The label %q belongs to this provider.", k),
				Next: "Use a label that is not empty and does not begin with " + labelPrefix + ".", Attribute: []string{"labels"},
			}
		}
		labels[k] = v
	}
	return labels, nil
}

var notInNames = regexp.MustCompile(`[^a-zA-Z0-9_.-]+`)

// containerName is for people who look at docker ps. The request id makes it unique: names of sandboxes need not be.
func containerName(m sandboxcore.Marks) string {
	name := notInNames.ReplaceAllString(m.Name, "-")
	if len(name) > 40 {
		name = name[:40]
	}
	if name == "" {
		name = "sandbox"
	}
	return "agentkernel-" + name + "-" + m.Request
}
