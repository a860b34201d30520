package provider

import (
	"context"
	"fmt"
	"strings"

	"github.com/hashicorp/terraform-plugin-framework/function"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

var _ function.Function = (*isolationAtLeastFunction)(nil)

func newIsolationAtLeastFunction() *isolationAtLeastFunction { return &isolationAtLeastFunction{} }

// isolationAtLeastFunction compares tiers the way the gate does, for conditions and checks of a configuration.
type isolationAtLeastFunction struct{}

func (*isolationAtLeastFunction) Metadata(_ context.Context, _ function.MetadataRequest, resp *function.MetadataResponse) {
	resp.Name = "isolation_at_least"
}

func (*isolationAtLeastFunction) Definition(_ context.Context, _ function.DefinitionRequest, resp *function.DefinitionResponse) {
	resp.Definition = function.Definition{
		Summary: "Whether an isolation tier is as strong as another one",
		MarkdownDescription: "Compares isolation tiers as `policy.min_isolation` does: `none` < `os_policy` < `container` < `syscall_filter` < `micro_vm`. " +
			"`wasm` is at least `none` and itself and cannot be compared with the others: the answer is then `false`.",
		Parameters: []function.Parameter{
			function.StringParameter{Name: "tier", MarkdownDescription: "The tier to judge, such as the `isolation` of a profile: " + codeList(sandboxcore.IsolationTiers()) + "."},
			function.StringParameter{Name: "min", MarkdownDescription: "The weakest tier that is acceptable, one of the same."},
		},
		Return: function.BoolReturn{},
	}
}

func (*isolationAtLeastFunction) Run(ctx context.Context, req function.RunRequest, resp *function.RunResponse) {
	var tier, minimum string
	if resp.Error = req.Arguments.Get(ctx, &tier, &minimum); resp.Error != nil {
		return
	}
	for i, t := range []string{tier, minimum} {
		if !sandboxcore.Isolation(t).Valid() {
			resp.Error = argumentError(int64(i), unknownTier(t))
			return
		}
	}
	resp.Error = resp.Result.Set(ctx, sandboxcore.Isolation(tier).AtLeast(sandboxcore.Isolation(minimum)))
}

func unknownTier(tier string) error {
	var tiers []string
	for _, t := range sandboxcore.IsolationTiers() {
		tiers = append(tiers, fmt.Sprintf("%q", string(t)))
	}
	return &sandboxcore.Error{
		Code: sandboxcore.CodeValue, Attempted: "the tiers were not compared",
		Said: fmt.Sprintf("there is no isolation tier %s.", sandboxcore.Quoted(tier)), Next: "Use " + strings.Join(tiers, ", ") + ".",
	}
}
