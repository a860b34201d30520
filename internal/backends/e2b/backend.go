package e2b

import (
	"context"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

const userAgent = "terraform-provider-agentkernel"

// Factory describes the backend to the registry.
func Factory() sandboxcore.Factory {
	return sandboxcore.Factory{
		Type:             sandboxcore.BackendE2B,
		ProviderSettings: providerSettings(),
		Settings:         profileSettings(),
		Describe: "Micro-VMs of E2B: its cloud, a self-hosted one, or a server that speaks its API. Egress deny and allow-lists of " +
			"addresses and domains, changed while the sandbox runs; paused and woken with memory and files. A domain is judged by the name " +
			"that code claims (Host on port 80, TLS server name on 443) and by nothing on other ports. The sandbox's own environment, secrets " +
			"included, is kept by the server.",
		New: func(provider sandboxcore.Settings, getenv func(string) string) (sandboxcore.Backend, error) {
			place, err := readPlace(provider, getenv)
			if err != nil {
				return nil, err
			}
			return newBackend(place), nil
		},
	}
}

// backend is the backend of one provider configuration.
type backend struct {
	place *Place

	mu       sync.Mutex
	endpoint *endpoint

	// What tests replace.
	now       func() time.Time
	log       *slog.Logger
	times     timings
	transport http.RoundTripper
	// options reads the settings of a profile, and of the spec on an object.
	options func(sandboxcore.Settings, float64) options
}

// timings bound every wait of the backend.
type timings struct {
	call      time.Duration // one call of the control plane
	upload    time.Duration // one file
	start     time.Duration // from the request to the start event of a process
	kill      time.Duration // ending what is left of a run
	drain     time.Duration // reading the rest of a stream whose process is dead
	backoff   time.Duration // the first wait before a safe call is sent again
	rateLimit time.Duration // all waits that one call may be asked for
	listCache time.Duration // how long one listing serves a refresh
	gone      time.Duration // how long a removal may take to become true
	lost      time.Duration // how long a sandbox whose creation was not answered is looked for
	poll      time.Duration // between two looks at a state that is to change
	keepAlive time.Duration // between two signs of life of a silent stream
	// wait sleeps; tests with a clock of their own replace it.
	wait func(context.Context, time.Duration) error
}

func defaultTimings() timings {
	return timings{
		call: 2 * time.Minute, upload: 5 * time.Minute, start: time.Minute, kill: 30 * time.Second, drain: 3 * time.Second,
		backoff: 500 * time.Millisecond, rateLimit: 5 * time.Minute, listCache: 3 * time.Second, gone: 30 * time.Second,
		lost: 5 * time.Second, poll: 250 * time.Millisecond, keepAlive: 50 * time.Second, wait: wait,
	}
}

func wait(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func newBackend(place *Place) *backend {
	return &backend{place: place, now: time.Now, log: slog.Default(), times: defaultTimings(), options: optionsFrom}
}

// LiveFields are the spec paths that a running sandbox takes over.
func (b *backend) LiveFields() []string {
	return []string{"policy.network_egress", "policy.network_allow"}
}

// Capabilities are what a sandbox enforces. KillsTree stays false: what is left of a run is found by a mark in its
// environment and by its ancestors, and a process that sheds both escapes until the sandbox ends. KeepBackground stays
// false: envd reports no end before every holder of the output is gone. MaxLifetime stays false: each run renews the time.
func (b *backend) Capabilities(p *sandboxcore.Profile) sandboxcore.Capabilities {
	c := sandboxcore.Capabilities{
		Isolation:        sandboxcore.IsolationMicroVM,
		Shell:            true,
		Languages:        []string{"python", "bash"},
		Files:            true,
		PackageInstall:   true,
		Attach:           true,
		Provisions:       true,
		PolicyNetwork:    true,
		NetworkModes:     []sandboxcore.NetworkMode{sandboxcore.NetworkAllow, sandboxcore.NetworkDeny, sandboxcore.NetworkAllowlist},
		AllowlistEntries: []sandboxcore.AllowEntryKind{sandboxcore.AllowEntryCIDR, sandboxcore.AllowEntryDomain},
		Stdin:            true,
		Streaming:        true,
		SplitOutput:      true,
		Pause:            true,
		LiveUpdate:       []string{"network"},
	}
	if p != nil && optionsOf(p).interpreter {
		c.Stateful, c.Languages = true, slices.Clone(interpreterLanguages)
	}
	return c
}

// Connect gives the endpoint. It speaks to nobody: that happens with the first call that needs an answer.
func (b *backend) Connect(context.Context) (sandboxcore.Endpoint, error) {
	return b.connect(), nil
}

func (b *backend) connect() *endpoint {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.endpoint == nil {
		transport := b.transport
		if transport == nil {
			transport = newTransport(b.place)
		}
		b.endpoint = newEndpoint(b, transport)
	}
	return b.endpoint
}
