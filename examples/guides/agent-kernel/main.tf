# The configuration of the guide, as profiles. Change a limit here, and the runtime and Terraform both have it.

terraform {
  required_providers {
    agentkernel = {
      source = "agentkernel/agentkernel"
    }
  }
}

data "agentkernel_profile" "code" {
  name   = "code"
  type   = "docker"
  docker = { image = "python:3.12-slim" }

  idle_timeout = 900
  policy = {
    network_egress = "deny"
    memory_mb      = 512
    timeout        = 60
  }
}

# attach_to alone is refused (AK1004): that somebody else owns the machine has to be said.
data "agentkernel_profile" "machine" {
  name        = "machine"
  type        = "ec2_ssm"
  environment = "attached"

  ec2_ssm = {
    region    = "eu-west-1"
    attach_to = "i-0123456789abcdef0"
  }
}

data "agentkernel_runtime_config" "runtime" {
  profiles = [
    data.agentkernel_profile.code.spec,
    data.agentkernel_profile.machine.spec,
  ]
  default_profile = "code"
  agents          = ["coder"]
  broker          = { flavor = "thread", wait_timeout = 30 }
}

# The whole section: write it to a file, into a ConfigMap, or merge it with the rest of config.yaml.
output "config_yaml" {
  value = data.agentkernel_runtime_config.runtime.yaml
}

output "omitted" {
  value = data.agentkernel_runtime_config.runtime.omitted
}
