package local

import (
	"context"
	"runtime"
	"sync"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/backends/workspace"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// Factory describes the backend to the registry.
func Factory() sandboxcore.Factory {
	return sandboxcore.Factory{
		Type: sandboxcore.BackendLocalSubprocess,
		Describe: "Plain processes on this machine, of the user that runs the provider. There is no isolation: the code can do " +
			"whatever that user can, and read the provider's memory, secrets included.",
		ProviderSettings: []sandboxcore.Setting{workspace.DataDirSetting(sandboxcore.BackendLocalSubprocess)},
		Settings: []sandboxcore.Setting{
			{
				Name: "workdir", Kind: sandboxcore.KindString, Update: sandboxcore.UpdateRecorded,
				Pattern: `^/|^[A-Za-z]:[\\/]`, PatternHint: "an absolute path",
				Description: "Parent directory of workspaces in the Agent Kernel runtime. Terraform only records it; the " +
					"sandboxes that it makes lie in the provider's `data_dir`.",
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
	endpoint *endpoint
}

// Capabilities enforce nothing. That every process of a run dies with it is promised only where the helper supervises.
func (*backend) Capabilities(*sandboxcore.Profile) sandboxcore.Capabilities {
	return sandboxcore.Capabilities{
		Isolation:    sandboxcore.IsolationNone,
		Shell:        true,
		Languages:    []string{"python", "bash"},
		Files:        true,
		Attach:       true,
		Provisions:   true,
		NetworkModes: []sandboxcore.NetworkMode{sandboxcore.NetworkAllow},
		Stdin:        true,
		Streaming:    true,
		SplitOutput:  true,
		LiveUpdate:   []string{"labels"},
		KillsTree:    supervises(),
	}
}

// supervises reports whether the run helper exists for this machine.
func supervises() bool {
	return runtime.GOOS == "linux" && (runtime.GOARCH == "amd64" || runtime.GOARCH == "arm64")
}

// Validate: the gate refuses every policy already.
func (*backend) Validate(*sandboxcore.Profile) []*sandboxcore.Error { return nil }

// LiveFields: there is nothing that could change.
func (*backend) LiveFields() []string { return nil }

// Connect finds the data directory.
func (b *backend) Connect(context.Context) (sandboxcore.Endpoint, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.endpoint == nil {
		dir, err := workspace.DataDir(sandboxcore.BackendLocalSubprocess, b.settings.String("data_dir", ""), b.getenv)
		if err != nil {
			return nil, err
		}
		b.endpoint = &endpoint{store: workspace.New(sandboxcore.BackendLocalSubprocess, dir, false), path: b.getenv("PATH")}
	}
	return b.endpoint, nil
}
