package runtimeconfig

import (
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// workspaceDir is the one directory that stays writable in Agent Kernel's containers under a file-system policy.
const workspaceDir = "/workspace"

// flavorQueue is the flavour of the broker that hands runs to workers of their own.
const flavorQueue = "queue"

// judge warns of what Agent Kernel would not do for a profile that this provider holds to its word. What it refuses
// itself is worth a warning too: the configuration is written and no run succeeds.
func (r *renderer) judge(p *sandboxcore.Profile, b backend) {
	pol := p.Policy
	limited := map[string]bool{
		"policy.network_egress": pol.NetworkEgress != sandboxcore.NetworkAllow,
		"policy.fs_allow_read":  len(pol.FSAllowRead) > 0, "policy.fs_allow_write": len(pol.FSAllowWrite) > 0,
		"policy.cpu": pol.CPU != nil, "policy.memory_mb": pol.MemoryMB != nil,
	}
	network := b.network
	if p.Type == sandboxcore.BackendKubernetes {
		network = p.Settings.Bool(networkPolicyKey, false)
	}
	declared := map[string]bool{
		"policy.network_egress": network, "policy.fs_allow_read": b.filesystem, "policy.fs_allow_write": b.filesystem,
		"policy.cpu": b.resources, "policy.memory_mb": b.resources,
	}
	for _, dimension := range slices.Sorted(maps.Keys(limited)) {
		switch {
		case !limited[dimension]:
		case !declared[dimension] && pol.Strict:
			r.warn(p, dimension, fmt.Sprintf("Agent Kernel does not enforce it on %s and refuses every run of a strict profile that asks for it.", p.Type))
		case declared[dimension] && p.Environment == sandboxcore.EnvironmentAttached:
			r.warn(p, dimension, "Agent Kernel accepts it for an attached environment and applies none of it.")
		}
	}
	switch {
	case p.Identity != sandboxcore.IdentityUser:
	case !b.user:
		r.warn(p, "identity.mode", fmt.Sprintf("Agent Kernel runs no code under a user's identity on %s and refuses every run.", p.Type))
	case r.options.PrincipalResolver == nil:
		r.warn(p, "identity.mode", "Without principal_resolver Agent Kernel knows no user and refuses every run.")
	}
	// Only the client of a queue looks at the ceiling.
	if ceiling := r.options.Broker.WorkerTimeoutCeiling; ceiling != nil && p.Policy.Timeout > *ceiling && r.options.Broker.Flavor != nil && *r.options.Broker.Flavor == flavorQueue {
		r.warn(p, "policy.timeout", fmt.Sprintf("It is longer than worker_timeout_ceiling, %s seconds, and Agent Kernel refuses every run.", sandboxcore.FormatNumber(*ceiling)))
	}
	if p.IdleTimeout != math.Trunc(p.IdleTimeout) && p.Type != sandboxcore.BackendDaytona {
		r.warn(p, "idle_timeout", "Agent Kernel counts whole seconds here: give it without a fraction.")
	}
	r.judgeIsolation(p, b)
	switch p.Type {
	case sandboxcore.BackendDocker, sandboxcore.BackendKubernetes:
		r.judgeContainer(p)
	case sandboxcore.BackendE2B:
		r.judgeE2B(p)
	case sandboxcore.BackendDaytona:
		r.judgeDaytona(p)
	}
}

// judgeIsolation: Agent Kernel has no minimum, so that the tier it would really have is held against ours. A runtime that
// Docker is told to use is passed on, with the operator's assertion about it; the runtime class of a pod is not.
func (r *renderer) judgeIsolation(p *sandboxcore.Profile, b backend) {
	tier := b.isolation
	if asserted := p.Settings.String("isolation", ""); p.Type == sandboxcore.BackendDocker && asserted != "" {
		tier = sandboxcore.Isolation(asserted)
	}
	if minimum := p.Policy.MinIsolation; minimum != "" && !tier.AtLeast(minimum) {
		r.warn(p, "policy.min_isolation", fmt.Sprintf("Agent Kernel knows no minimum, and its %s has the tier %q.", p.Type, tier))
	}
}

func (r *renderer) judgeContainer(p *sandboxcore.Profile) {
	if p.Environment == sandboxcore.EnvironmentAttached {
		return // warned of already
	}
	pol := p.Policy
	if len(pol.FSAllowRead) > 0 {
		r.warn(p, "policy.fs_allow_read", "Agent Kernel takes any entry as the wish for a read-only root: everything in the image can still be read.")
	}
	if len(pol.FSAllowWrite) > 0 && !slices.Equal(pol.FSAllowWrite, []string{workspaceDir}) {
		r.warn(p, "policy.fs_allow_write", "Agent Kernel ignores the paths: "+workspaceDir+" is writable and nothing else is.")
	}
	if pol.NetworkEgress != sandboxcore.NetworkAllowlist {
		return
	}
	if p.Type == sandboxcore.BackendDocker {
		said := "Agent Kernel has no allow-list on docker and refuses every run."
		if !pol.Strict {
			said = "Agent Kernel has no allow-list on docker: because strict is false, nothing is kept from the code."
		}
		r.warn(p, "policy.network_egress", said)
		return
	}
	if slices.ContainsFunc(pol.NetworkAllow, domain) {
		said := "Agent Kernel allows no domains on kubernetes and refuses every run."
		if !pol.Strict {
			said = "Agent Kernel allows no domains on kubernetes: because strict is false, they are left out of the list."
		}
		r.warn(p, "policy.network_allow", said)
	}
}

// judgeE2B: Agent Kernel sends the allow list without denying the rest, which E2B takes as a list of exceptions to nothing.
func (r *renderer) judgeE2B(p *sandboxcore.Profile) {
	if p.Policy.NetworkEgress != sandboxcore.NetworkAllowlist {
		return
	}
	if slices.ContainsFunc(p.Policy.NetworkAllow, domain) {
		r.warn(p, "policy.network_allow", "Agent Kernel sends E2B the list without denying the rest; with a domain in it E2B refuses to create the sandbox.")
		return
	}
	r.warn(p, "policy.network_egress", "Agent Kernel sends E2B the list without denying the rest: NOTHING IS KEPT FROM THE CODE, strict or not. Use network_egress = \"deny\" until it does.")
}

func (r *renderer) judgeDaytona(p *sandboxcore.Profile) {
	pol := p.Policy
	if pol.NetworkEgress == sandboxcore.NetworkAllowlist && slices.ContainsFunc(pol.NetworkAllow, domain) {
		r.warn(p, "policy.network_allow", "Agent Kernel gives Daytona all entries as addresses; domains are none.")
	}
	if p.Settings.String("snapshot", "") != "" && (pol.CPU != nil || pol.MemoryMB != nil) {
		r.warn(p, "daytona.snapshot", "Agent Kernel sets cpu and memory only where a sandbox is made from an image, and refuses every run.")
	}
	if pol.CPU != nil && *pol.CPU != math.Ceil(*pol.CPU) {
		r.warn(p, "policy.cpu", fmt.Sprintf("Agent Kernel rounds it up to %s.", sandboxcore.FormatNumber(math.Ceil(*pol.CPU))))
	}
	if pol.MemoryMB != nil && *pol.MemoryMB%1024 != 0 {
		r.warn(p, "policy.memory_mb", fmt.Sprintf("Agent Kernel rounds it up to %d.", (*pol.MemoryMB/1024+1)*1024))
	}
	if whole := math.Max(1, math.Ceil(p.IdleTimeout/60)) * 60; whole != p.IdleTimeout {
		r.warn(p, "idle_timeout", fmt.Sprintf("Agent Kernel rounds it up to whole minutes, %s seconds.", sandboxcore.FormatNumber(whole)))
	}
}

func domain(entry string) bool {
	return sandboxcore.AllowEntryKindOf(entry) == sandboxcore.AllowEntryDomain
}
