package docker

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/moby/moby/api/types/system"
	"github.com/moby/moby/client"
	"golang.org/x/sync/singleflight"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// endpoint is one Docker engine.
type endpoint struct {
	target  target
	cli     *client.Client
	now     func() time.Time
	log     *slog.Logger
	timings timings

	mu     sync.Mutex
	spoken bool         // the engine answered and the API version is negotiated
	info   *system.Info // asked once per process
	first  singleflight.Group

	listing listing
	images  imageCache
	users   userCache
}

func newEndpoint(t target, cli *client.Client, b *backend) *endpoint {
	return &endpoint{target: t, cli: cli, now: b.now, log: b.log, timings: b.timings}
}

// ready makes the first contact: one ping that negotiates the API version. Without it the client would speak its newest
// version and every error of the way would read as a version problem.
func (e *endpoint) ready(ctx context.Context) error {
	e.mu.Lock()
	spoken := e.spoken
	e.mu.Unlock()
	if spoken {
		return nil
	}
	return e.once(ctx, "ping", func(ctx context.Context) error {
		_, err := e.cli.Ping(ctx, client.PingOptions{NegotiateAPIVersion: true})
		if err != nil {
			return e.failure(ctx, err, sandboxcore.CodeUnreachable, "the Docker engine could not be used", "Docker engine at "+e.target.host,
				"Check that the address is that of a Docker engine; it comes from "+e.target.origin+".")
		}
		e.mu.Lock()
		e.spoken = true
		e.mu.Unlock()
		return nil
	})
}

// once shares one call between all who ask at the same time. The call does not end with the first of them, but each
// stops waiting when its own time is over.
func (e *endpoint) once(ctx context.Context, key string, call func(context.Context) error) error {
	result := e.first.DoChan(key, func() (any, error) {
		return nil, sandboxcore.WithCleanup(ctx, func(ctx context.Context) error {
			shared, cancel := withDeadline(ctx, e.timings.connect)
			defer cancel()
			return call(shared)
		})
	})
	select {
	case r := <-result:
		return r.Err
	case <-ctx.Done():
		return e.failure(ctx, ctx.Err(), sandboxcore.CodeUnreachable, "the Docker engine could not be used", "", "")
	}
}

// engineInfo is the engine's description of itself, asked once.
func (e *endpoint) engineInfo(ctx context.Context) (*system.Info, error) {
	known := func() *system.Info {
		e.mu.Lock()
		defer e.mu.Unlock()
		return e.info
	}
	if info := known(); info != nil {
		return info, nil
	}
	if err := e.ready(ctx); err != nil {
		return nil, err
	}
	err := e.once(ctx, "info", func(ctx context.Context) error {
		r, err := e.cli.Info(ctx, client.InfoOptions{})
		if err == nil && r.Info.ID == "" {
			return &sandboxcore.Error{
				Code: sandboxcore.CodeUnreachable, Attempted: "the Docker engine could not be identified", Object: "Docker engine at " + e.target.host,
				Said: "Its description names no engine ID.", Next: "Check that the address is that of a Docker engine; it comes from " + e.target.origin + ".",
			}
		}
		if err != nil {
			return e.failure(ctx, err, sandboxcore.CodeUnreachable, "the Docker engine could not be identified", "Docker engine at "+e.target.host,
				"Check that the address is that of a Docker engine; it comes from "+e.target.origin+".")
		}
		e.mu.Lock()
		e.info = &r.Info
		e.mu.Unlock()
		return nil
	})
	if err != nil {
		return nil, err
	}
	return known(), nil
}

// Identity is the engine ID.
func (e *endpoint) Identity(ctx context.Context) (string, error) {
	info, err := e.engineInfo(ctx)
	if err != nil {
		return "", err
	}
	return info.ID, nil
}

// Offers is what the engine says about itself.
func (e *endpoint) Offers(ctx context.Context) (sandboxcore.Offer, error) {
	info, err := e.engineInfo(ctx)
	if err != nil {
		if sandboxcore.IsCode(err, sandboxcore.CodeUnreachable) {
			return sandboxcore.Offer{Reason: err.Error(), Facts: map[string]string{"address": e.target.host}}, nil
		}
		return sandboxcore.Offer{}, err
	}
	runtimes := make([]string, 0, len(info.Runtimes))
	for name := range info.Runtimes {
		runtimes = append(runtimes, name)
	}
	slices.Sort(runtimes)
	offer := sandboxcore.Offer{
		Endpoint: info.ID, Reachable: true,
		Facts: map[string]string{
			"address":         e.target.host,
			"engine version":  info.ServerVersion,
			"API version":     e.cli.ClientVersion(),
			"platform":        info.OSType + "/" + goArch(info.Architecture),
			"cgroup version":  info.CgroupVersion,
			"runtimes":        strings.Join(runtimes, ", "),
			"default runtime": info.DefaultRuntime,
			"rootless":        strconv.FormatBool(hasSecurityOption(info, "rootless")),
			"seccomp":         strconv.FormatBool(hasSecurityOption(info, "seccomp")),
			"processors":      strconv.Itoa(info.NCPU),
			"memory MB":       strconv.FormatInt(info.MemTotal>>20, 10),
			"pids limit":      strconv.FormatBool(info.PidsLimit),
		},
		// Whether Python is there depends on the image, which only a run can tell.
		Languages: []string{"python"},
		CPU:       info.CPUCfsQuota, Memory: info.MemoryLimit, Network: true, Pause: true,
	}
	if err := platformRefusal(info); err != nil {
		offer.Reason = err.Error()
	}
	return offer, nil
}

// Admit refuses what this engine cannot give.
func (e *endpoint) Admit(ctx context.Context, p *sandboxcore.Profile, _ sandboxcore.Operation) error {
	info, err := e.engineInfo(ctx)
	if err != nil {
		return err
	}
	var v sandboxcore.Violations
	if err := platformRefusal(info); err != nil {
		v = append(v, err)
	}
	if p.Environment == sandboxcore.EnvironmentAttached {
		// Nothing of the engine's limits is applied to a container that exists.
		if len(v) > 0 {
			return v
		}
		return nil
	}
	refuse := func(code sandboxcore.Code, said, next string, attribute ...string) {
		v = append(v, &sandboxcore.Error{
			Code: code, Attempted: "the profile was refused by this Docker engine", Object: p.Name, Said: said, Next: next, Attribute: attribute,
		})
	}
	o := optionsOf(p)
	if p.Policy.Strict {
		const how = "Use an engine whose cgroups can limit it (a rootless engine needs cgroup v2 with delegation), or remove the limit."
		if p.Policy.MemoryMB != nil && !info.MemoryLimit {
			refuse(sandboxcore.CodeResources, "The engine cannot limit memory.", how, "policy", "memory_mb")
		}
		if p.Policy.CPU != nil && !info.CPUCfsQuota {
			refuse(sandboxcore.CodeResources, "The engine cannot limit processor time.", how, "policy", "cpu")
		}
	}
	if p.Policy.CPU != nil && info.NCPU > 0 && *p.Policy.CPU > float64(info.NCPU) {
		refuse(sandboxcore.CodeResources, fmt.Sprintf("The profile asks for %g processors and the engine has %d.", *p.Policy.CPU, info.NCPU),
			"Ask for less.", "policy", "cpu")
	}
	// These two are not limits that a profile asks for but parts of the isolation tier, so strict = false does not relax them.
	if !info.PidsLimit {
		refuse(sandboxcore.CodeIsolation, "The engine cannot limit the number of processes.",
			"Use an engine with the pids controller (a rootless engine needs cgroup v2 with delegation).", "docker", keyPidsLimit)
	}
	if o.seccomp == seccompDefault && !hasSecurityOption(info, "seccomp") {
		refuse(sandboxcore.CodeIsolation, "The engine has no system call filter.",
			"Use an engine with seccomp, or set seccomp_profile = \"unconfined\" to do without.", "docker", keySeccompProfile)
	}
	if o.runtime != "" {
		if _, known := info.Runtimes[o.runtime]; !known && len(info.Runtimes) > 0 {
			names := make([]string, 0, len(info.Runtimes))
			for name := range info.Runtimes {
				names = append(names, name)
			}
			slices.Sort(names)
			refuse(sandboxcore.CodeValue, fmt.Sprintf("The engine has no runtime %q; it has %s.", o.runtime, strings.Join(names, ", ")),
				"Name one of these, or register the runtime with the engine.", "docker", keyRuntime)
		}
	}
	if len(v) > 0 {
		return v
	}
	return nil
}

func platformRefusal(info *system.Info) *sandboxcore.Error {
	arch := goArch(info.Architecture)
	if info.OSType == "linux" && supportedArch(arch) {
		return nil
	}
	return &sandboxcore.Error{
		Code: sandboxcore.CodeProvision, Attempted: "this Docker engine was refused",
		Said: fmt.Sprintf("It runs containers for %s/%s.", info.OSType, arch),
		Next: "Use an engine that runs Linux containers on amd64 or arm64: the run helper exists for these.",
	}
}

func hasSecurityOption(info *system.Info, name string) bool {
	return slices.ContainsFunc(info.SecurityOptions, func(o string) bool {
		return o == name || o == "name="+name || strings.HasPrefix(o, "name="+name+",")
	})
}

// goArch gives Go's name of an architecture that the engine names after the kernel.
func goArch(engine string) string {
	switch engine {
	case "x86_64", "amd64":
		return "amd64"
	case "aarch64", "arm64":
		return "arm64"
	}
	return engine
}

func supportedArch(arch string) bool { return arch == "amd64" || arch == "arm64" }
