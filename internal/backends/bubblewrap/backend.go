package bubblewrap

import (
	"context"
	"fmt"
	"sync"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/backends/workspace"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

const (
	settingPath      = "path"
	settingDataDir   = "data_dir"
	settingPIDsLimit = "pids_limit"

	defaultPIDsLimit = 256
	// minMemoryMB is what bwrap, the helper and a small program need to start at all.
	minMemoryMB = 16
	// minCPU is the smallest quota of the kernel, 1 ms in each period of 100 ms.
	minCPU = 0.01
)

// Factory describes the backend to the registry.
func Factory() sandboxcore.Factory {
	minimum, maximum := 8.0, 4096.0
	return sandboxcore.Factory{
		Type: sandboxcore.BackendBubblewrap,
		Describe: "Linux namespaces on this machine through the bwrap program: no privileges, a minimal view of the file system, " +
			"no network under egress deny, memory and cpu limits where control groups can be made (elsewhere refused). Egress allow is the network of this machine, " +
			"loopback included. Unix sockets are forbidden under egress allow and with fs_allow paths. Disk space is not limited.",
		ProviderSettings: []sandboxcore.Setting{
			{
				Name: settingPath, Kind: sandboxcore.KindString, Pattern: "^/", PatternHint: "an absolute path",
				Description: "Absolute path of the `bwrap` program (0.8.0 or newer). Default: `/usr/bin/bwrap`, then `/usr/local/bin/bwrap`. " +
					"`PATH` is not searched.",
			},
			workspace.DataDirSetting(sandboxcore.BackendBubblewrap),
		},
		Settings: []sandboxcore.Setting{
			{
				Name: settingPIDsLimit, Kind: sandboxcore.KindInt, Default: float64(defaultPIDsLimit), Min: &minimum, Max: &maximum,
				Description: "Most processes and threads that all runs of a sandbox may have at the same time, the supervisors included. " +
					"Default 256. Enforced by a control group, and where none can be made by a limit for each run.",
			},
		},
		New: func(provider sandboxcore.Settings, getenv func(string) string) (sandboxcore.Backend, error) {
			return &backend{settings: provider, getenv: getenv}, nil
		},
	}
}

type backend struct {
	settings sandboxcore.Settings
	getenv   func(string) string

	mu       sync.Mutex
	endpoint sandboxcore.Endpoint
}

// Capabilities are the same for every profile: what this machine really has may refuse a sandbox, never change them.
func (*backend) Capabilities(*sandboxcore.Profile) sandboxcore.Capabilities {
	return sandboxcore.Capabilities{
		Isolation:        sandboxcore.IsolationOSPolicy,
		Shell:            true,
		Languages:        []string{"python", "bash"},
		Files:            true,
		Attach:           true,
		Provisions:       true,
		PolicyNetwork:    true,
		PolicyFilesystem: true,
		PolicyResources:  true,
		NetworkModes:     []sandboxcore.NetworkMode{sandboxcore.NetworkAllow, sandboxcore.NetworkDeny},
		FSRead:           true,
		FSWrite:          true,
		Stdin:            true,
		Streaming:        true,
		SplitOutput:      true,
		LiveUpdate:       []string{"labels"},
		KillsTree:        true,
	}
}

// Validate refuses what no machine could give.
func (*backend) Validate(p *sandboxcore.Profile) []*sandboxcore.Error {
	var refused []*sandboxcore.Error
	for _, w := range wishes(p.Policy.FSAllowRead, p.Policy.FSAllowWrite) {
		if err := forbiddenPath(w, w.path); err != nil {
			refused = append(refused, err)
		}
	}
	tooLittle := func(dimension, said, next string) {
		refused = append(refused, &sandboxcore.Error{
			Code: sandboxcore.CodeValue, Attempted: "the profile was refused", Object: fmt.Sprintf("profile %q, backend bubblewrap", p.Name),
			Said: said, Next: next, Attribute: []string{"policy", dimension},
		})
	}
	if m := p.Policy.MemoryMB; m != nil && *m < minMemoryMB {
		tooLittle(sandboxcore.DimensionMemory, fmt.Sprintf("memory_mb = %d is less than a sandbox needs to start.", *m), fmt.Sprintf("Use %d or more.", minMemoryMB))
	}
	if c := p.Policy.CPU; c != nil && *c < minCPU {
		tooLittle(sandboxcore.DimensionCPU, fmt.Sprintf("cpu = %s is less than the kernel can hold a sandbox to.", sandboxcore.FormatNumber(*c)), fmt.Sprintf("Use %v or more.", minCPU))
	}
	return refused
}

// LiveFields: limits and mounts are given to each run as the sandbox was made with, so none changes in place.
func (*backend) LiveFields() []string { return nil }

// Connect finds the data directory. Whether bwrap works here is asked when it is needed: sandboxes can be listed and
// destroyed without it.
func (b *backend) Connect(ctx context.Context) (sandboxcore.Endpoint, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.endpoint == nil {
		endpoint, err := connect(ctx, b.settings, b.getenv)
		if err != nil {
			return nil, err
		}
		b.endpoint = endpoint
	}
	return b.endpoint, nil
}
