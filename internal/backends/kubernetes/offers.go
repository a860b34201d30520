package kubernetes

import (
	"context"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// Offers says what the cluster has.
func (e *endpoint) Offers(ctx context.Context) (sandboxcore.Offer, error) {
	id, err := e.Identity(ctx)
	if err != nil {
		return sandboxcore.Offer{}, err
	}
	o := sandboxcore.Offer{Endpoint: id, Reachable: true, Facts: map[string]string{"server": e.target.config.Host}, Languages: []string{"python"}, CPU: true, Memory: true}
	call, cancel := withDeadline(ctx, e.timings.call)
	defer cancel()
	if v, err := e.own.kube.Discovery().ServerVersion(); err == nil {
		o.Facts["server version"] = v.GitVersion
	}
	_ = call
	return o, nil
}
