package kubernetes

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// Factory describes the backend to the registry.
func Factory() sandboxcore.Factory {
	return sandboxcore.Factory{
		Type:             sandboxcore.BackendKubernetes,
		ProviderSettings: providerSettings(),
		Settings:         profileSettings(),
		Describe: "Pods of a Kubernetes cluster, under the restricted Pod Security Standard by default and without a service account " +
			"token; network policy where the cluster enforces it and the operator says so.",
		New: newBackend,
	}
}

// backend is the backend of one provider configuration.
type backend struct {
	config connection

	mu       sync.Mutex
	endpoint *endpoint

	// What tests replace.
	now     func() time.Time
	log     *slog.Logger
	timings timings
}

// timings bound every wait of the backend.
type timings struct {
	call      time.Duration // one call that changes or reads something
	poll      time.Duration // between two looks at something that changes
	listCache time.Duration // how long one listing serves a refresh
	gone      time.Duration // how long a removal may take beyond the pod's own grace
	words     time.Duration // how long the reason of an end may take to be told
	lost      time.Duration // how long an object whose creation was not answered is looked for
	ping      time.Duration // between two signs of life asked of a server whose stream is read
	patience  time.Duration // how long such a server may give none
}

func defaultTimings() timings {
	return timings{
		call: time.Minute, poll: 150 * time.Millisecond, listCache: 3 * time.Second, gone: 45 * time.Second, lost: 5 * time.Second, words: 10 * time.Second,
		ping: 15 * time.Second, patience: 90 * time.Second,
	}
}

func newBackend(provider sandboxcore.Settings, getenv func(string) string) (sandboxcore.Backend, error) {
	config, err := readConnection(provider, getenv)
	if err != nil {
		return nil, err
	}
	return &backend{config: config, now: time.Now, log: slog.Default(), timings: defaultTimings()}, nil
}

// LiveFields are the spec paths that a running pod takes over; the labels say so themselves.
func (b *backend) LiveFields() []string { return nil }

// Capabilities are what a pod with the settings of p enforces.
func (b *backend) Capabilities(p *sandboxcore.Profile) sandboxcore.Capabilities {
	o := options{workload: workloadPod}
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
		PrincipalUser:    true,
		PolicyFilesystem: true,
		PolicyResources:  true,
		NetworkModes:     []sandboxcore.NetworkMode{sandboxcore.NetworkAllow},
		FSWrite:          true,
		Stdin:            true,
		Streaming:        true,
		SplitOutput:      true,
		LiveUpdate:       []string{"name", "labels"},
		KeepBackground:   true,
		MaxLifetime:      true,
		Pause:            o.workload == workloadSandbox,
		// A process that may become another user could be out of reach of the helper, which runs as the first one.
		KillsTree:  !o.container.Bool(keyEscalation, false),
		Assertable: []string{keyIsolation, keyNetworkPolicy},
	}
	if o.networkPolicy {
		c.PolicyNetwork = true
		c.NetworkModes = []sandboxcore.NetworkMode{sandboxcore.NetworkAllow, sandboxcore.NetworkDeny, sandboxcore.NetworkAllowlist}
		c.AllowlistEntries = []sandboxcore.AllowEntryKind{sandboxcore.AllowEntryCIDR}
	}
	if o.runtimeClass != "" && o.isolation != "" {
		c.Isolation, c.IsolationAsserted = o.isolation, true
	}
	return c
}

// Connect gives the endpoint. It reads the configuration but does not speak to the cluster: that happens with the first
// call that needs an answer.
func (b *backend) Connect(context.Context) (sandboxcore.Endpoint, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.endpoint != nil {
		return b.endpoint, nil
	}
	to, err := b.config.resolve()
	if err != nil {
		return nil, err
	}
	e, err := newEndpoint(to, b)
	if err != nil {
		return nil, err
	}
	b.endpoint = e
	return e, nil
}
