package runtimeconfig

import (
	"maps"
	"slices"
	"strconv"

	"github.com/agentkernel/terraform-provider-agentkernel/internal/sandboxcore"
)

// backend is a provider of Agent Kernel as far as its configuration goes: the keys of its block, and what it says it
// enforces, which decides what it refuses under strict.
type backend struct {
	// keys are the keys of its block in the order in which they are written.
	keys []key
	// isolation is the tier it declares.
	isolation sandboxcore.Isolation
	// network, filesystem, resources: it declares that it enforces the dimension.
	network, filesystem, resources bool
	// user: it can run code under a user's identity.
	user bool
}

// key is one key of a block that a profile can have as well.
type key struct {
	name string
	// def is written when a profile does not set the key; nil: nothing is.
	def any
	// apiKeyEnv: the value is the name of the environment variable with the API key, from Options.
	apiKeyEnv bool
	// convert gives the form that Agent Kernel wants, with the parts that it has no key for.
	convert func(v any) (value any, omitted []string)
}

const pythonImage = "python:3.12-slim"

// known are the backends of Agent Kernel. Anything else has no type there.
var known = map[sandboxcore.BackendType]backend{
	sandboxcore.BackendLocalSubprocess: {isolation: sandboxcore.IsolationNone, keys: []key{{name: "workdir"}}},
	sandboxcore.BackendDocker: {
		isolation: sandboxcore.IsolationContainer, network: true, filesystem: true, resources: true,
		keys: []key{{name: "image", def: pythonImage}, {name: "runtime"}, {name: "attach_to"}},
	},
	sandboxcore.BackendKubernetes: {
		isolation: sandboxcore.IsolationContainer, network: true, filesystem: true, resources: true, user: true,
		keys: []key{
			{name: "namespace", def: "default"},
			{name: "image", def: pythonImage},
			{name: "attach_to"},
			{name: "service_account"},
			{name: "image_pull_secrets"},
			{name: "labels"},
			{name: "node_selector"},
			{name: "env"},
			{name: "security_context", convert: podSecurity},
			{name: "container_security_context", convert: containerSecurity},
			{name: networkPolicyKey, def: false},
			{name: "create_timeout", def: 120.0},
		},
	},
	sandboxcore.BackendE2B: {
		isolation: sandboxcore.IsolationMicroVM, network: true,
		keys: []key{{name: "api_key_env", def: "E2B_API_KEY", apiKeyEnv: true}, {name: "template", def: "base"}},
	},
	sandboxcore.BackendDaytona: {
		isolation: sandboxcore.IsolationContainer, network: true, resources: true,
		keys: []key{
			{name: "api_key_env", def: "DAYTONA_API_KEY", apiKeyEnv: true}, {name: "target"}, {name: "image"}, {name: "snapshot"}, {name: "env_vars"},
		},
	},
	sandboxcore.BackendEC2SSM:           {isolation: sandboxcore.IsolationNone, user: true, keys: []key{{name: "region"}, {name: "attach_to"}}},
	sandboxcore.BackendBedrockAgentCore: {isolation: sandboxcore.IsolationMicroVM, network: true, user: true, keys: []key{{name: "region"}, {name: "network_mode", def: "sandbox"}}},
}

// networkPolicyKey is the assertion without which Agent Kernel's kubernetes enforces no egress policy.
const networkPolicyKey = "network_policy"

// APIKeyBackends are the backends whose block names an environment variable with an API key.
func APIKeyBackends() []sandboxcore.BackendType {
	return []sandboxcore.BackendType{sandboxcore.BackendDaytona, sandboxcore.BackendE2B}
}

// Agent Kernel hands security contexts to the cluster as they stand, in the spelling of Kubernetes.
var podSecurityNames = map[string]string{
	"run_as_user": "runAsUser", "run_as_group": "runAsGroup", "fs_group": "fsGroup", "run_as_non_root": "runAsNonRoot",
	"supplemental_groups": "supplementalGroups", "seccomp_profile": "seccompProfile",
}

var containerSecurityNames = map[string]string{
	"allow_privilege_escalation": "allowPrivilegeEscalation", "read_only_root_filesystem": "readOnlyRootFilesystem", "capabilities_add": "capabilities",
}

func podSecurity(v any) (any, []string) { return renamed(v, podSecurityNames) }

func containerSecurity(v any) (any, []string) { return renamed(v, containerSecurityNames) }

func renamed(v any, names map[string]string) (any, []string) {
	m, ok := v.(map[string]any)
	if s, is := v.(sandboxcore.Settings); is {
		m, ok = s, true
	}
	if !ok {
		return nil, []string{""}
	}
	var omitted []string
	out := map[string]any{}
	for _, name := range slices.Sorted(maps.Keys(m)) {
		to, ok := names[name]
		if !ok {
			omitted = append(omitted, name)
			continue
		}
		value := m[name]
		switch to {
		case "seccompProfile":
			value = map[string]any{"type": value}
		case "capabilities":
			// An overlay replaces the whole key, the removal of all capabilities included.
			value = map[string]any{"drop": []any{"ALL"}, "add": value}
		case "supplementalGroups":
			value = numbers(value)
		}
		out[to] = value
	}
	if len(out) == 0 {
		return nil, omitted
	}
	return out, omitted
}

func numbers(v any) any {
	list, ok := v.([]any)
	if !ok {
		return v
	}
	out := make([]any, 0, len(list))
	for _, e := range list {
		if s, ok := e.(string); ok {
			if n, err := strconv.ParseFloat(s, 64); err == nil {
				out = append(out, n)
			}
		}
	}
	return out
}
