data "agentkernel_profile" "code" {
  name   = "code"
  type   = "docker"
  docker = { image = "python:3.12-slim" }

  policy = {
    network_egress = "deny"
    memory_mb      = 512
    timeout        = 60
  }
}

data "agentkernel_profile" "research" {
  name  = "research"
  type  = "e2b"
  e2b   = {}
  scope = "per_call"
}

# The same limits for the agents of the Agent Kernel runtime.
data "agentkernel_runtime_config" "agents" {
  profiles        = [data.agentkernel_profile.code.spec, data.agentkernel_profile.research.spec]
  default_profile = "code"
  agents          = ["coder", "analyst"]
  broker          = { flavor = "thread", wait_timeout = 30 }

  # The name of the variable that holds the key, never the key.
  api_key_env = { e2b = "TEAM_E2B_API_KEY" }
}

# The whole config.yaml of an agent, or a part of one.
output "config_yaml" {
  value = data.agentkernel_runtime_config.agents.yaml
}

# Or its environment, for a container or a function.
output "environment" {
  value = data.agentkernel_runtime_config.agents.env
}

# What the runtime does without.
output "omitted" {
  value = data.agentkernel_runtime_config.agents.omitted
}
