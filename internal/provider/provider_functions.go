package provider

import (
	"context"

	"github.com/hashicorp/terraform-plugin-framework/function"
	"github.com/hashicorp/terraform-plugin-framework/provider"
)

var _ provider.ProviderWithFunctions = (*agentKernelProvider)(nil)

// Functions are pure: Terraform calls them without configuring the provider.
func (p *agentKernelProvider) Functions(context.Context) []func() function.Function {
	return []func() function.Function{
		func() function.Function { return newIsolationAtLeastFunction() },
		func() function.Function { return newParseSpecFunction(p.registry) },
	}
}
