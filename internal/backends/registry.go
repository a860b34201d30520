// Package backends names every backend of the provider. It is the only place that does.
package backends

import (
	"github.com/agentkernel/terraform-provider-agentkernel/internal/backends/bubblewrap"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/backends/docker"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/backends/e2b"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/backends/ec2ssm"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/backends/kubernetes"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/backends/local"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/backends/plugin"
	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// Registry gives the registry of all backends.
func Registry() *sandboxcore.Registry {
	return sandboxcore.NewRegistry(
		bubblewrap.Factory(),
		docker.Factory(),
		e2b.Factory(),
		ec2ssm.Factory(),
		kubernetes.Factory(),
		local.Factory(),
		plugin.Factory(),
	)
}
