package docker

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// Factory describes the backend to the registry.
func Factory() sandboxcore.Factory {
	return sandboxcore.Factory{
		Type:             sandboxcore.BackendDocker,
		ProviderSettings: providerSettings(),
		Settings:         profileSettings(),
		Describe: "Containers of a Docker engine, hardened by default: no capabilities, no new privileges, the default " +
			"system call filter, a limit of processes.",
		New: newBackend,
	}
}

// backend is the backend of one provider configuration.
type backend struct {
	config engineConfig

	mu       sync.Mutex
	endpoint *endpoint

	// What tests replace.
	now     func() time.Time
	log     *slog.Logger
	timings timings
}

// timings bound every wait of the backend.
type timings struct {
	connect   time.Duration // first contact with the engine
	call      time.Duration // one call that changes or reads something
	pullIdle  time.Duration // a pull without any progress
	listCache time.Duration // how long one listing serves a refresh
	gone      time.Duration // how long a removal may take to become true
	lost      time.Duration // how long an object whose creation was not answered is looked for
	// Output that is under way when a run by an attached container's shell ends is waited for while it comes: drainStall
	// without a byte ends the wait, and so does drainMost, because a process that was left behind may write for ever.
	drainStall, drainMost time.Duration
}

func defaultTimings() timings {
	return timings{
		connect: 20 * time.Second, call: 2 * time.Minute, pullIdle: 5 * time.Minute, listCache: 3 * time.Second,
		gone: 30 * time.Second, lost: 5 * time.Second, drainStall: 2 * time.Second, drainMost: time.Minute,
	}
}

func newBackend(provider sandboxcore.Settings, getenv func(string) string) (sandboxcore.Backend, error) {
	config, err := readEngineConfig(provider, getenv)
	if err != nil {
		return nil, err
	}
	return &backend{config: config, now: time.Now, log: slog.Default(), timings: defaultTimings()}, nil
}

// LiveFields are the spec paths that a running container takes over.
func (b *backend) LiveFields() []string { return []string{"policy.cpu", "policy.memory_mb"} }

// Capabilities are what a container with the settings of p enforces.
func (b *backend) Capabilities(p *sandboxcore.Profile) sandboxcore.Capabilities {
	o := options{noNewPrivileges: true}
	if p != nil {
		o = optionsOf(p)
		if p.Environment == sandboxcore.EnvironmentAttached {
			return attachedCapabilities(o)
		}
	}
	c := sandboxcore.Capabilities{
		Isolation:        sandboxcore.IsolationContainer,
		Shell:            true,
		Languages:        []string{"python"},
		Files:            true,
		PackageInstall:   true,
		Attach:           true,
		Provisions:       true,
		AttachesExternal: true,
		PolicyNetwork:    true,
		PolicyFilesystem: true,
		PolicyResources:  true,
		NetworkModes:     []sandboxcore.NetworkMode{sandboxcore.NetworkAllow, sandboxcore.NetworkDeny},
		FSWrite:          true,
		Stdin:            true,
		Streaming:        true,
		SplitOutput:      true,
		Pause:            true,
		LiveUpdate:       []string{"cpu", "memory_mb"},
		KeepBackground:   true,
		// A process that may become another user could be out of reach of the helper, which runs as the first one.
		KillsTree:  o.noNewPrivileges && (!slices.Contains(o.capAdd, "SETUID") || slices.Contains(o.capAdd, "KILL")),
		Assertable: []string{keyIsolation},
	}
	if o.runtime != "" && o.isolation != "" {
		c.Isolation, c.IsolationAsserted = o.isolation, true
	}
	return c
}

// Connect gives the endpoint. It reads the Docker configuration but does not speak to the engine: that happens with the
// first call that needs an answer.
func (b *backend) Connect(context.Context) (sandboxcore.Endpoint, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.endpoint != nil {
		return b.endpoint, nil
	}
	t, err := b.config.resolve()
	if err != nil {
		return nil, err
	}
	cli, err := newClient(t)
	if err != nil {
		return nil, err
	}
	b.endpoint = newEndpoint(t, cli, b)
	return b.endpoint, nil
}
