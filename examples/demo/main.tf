# A small data job: a CSV file in, a JSON summary out, computed by Python in a sandbox that may not reach the network.
# `make demo` applies it; by hand, `terraform apply -var type=local_subprocess -var network_egress=allow` does as well.

terraform {
  required_providers {
    agentkernel = {
      source = "agentkernel/agentkernel"
    }
  }
}

variable "type" {
  description = "Where the job runs: bubblewrap, docker or local_subprocess."
  type        = string
  default     = "bubblewrap"

  validation {
    condition     = contains(["bubblewrap", "docker", "local_subprocess"], var.type)
    error_message = "type is bubblewrap, docker or local_subprocess."
  }
}

variable "network_egress" {
  description = "deny wherever the backend enforces it; a local process cannot be kept from the network."
  type        = string
  default     = "deny"
}

variable "docker_image" {
  description = "An image with python3, for type = \"docker\"."
  type        = string
  default     = "python:3-slim"
}

variable "name" {
  description = "What the sandbox is called."
  type        = string
  default     = "demo"
}

variable "data_dir" {
  description = "Where sandboxes on this machine keep their files; the provider's default if null."
  type        = string
  default     = null
}

provider "agentkernel" {
  bubblewrap       = { data_dir = var.data_dir }
  local_subprocess = { data_dir = var.data_dir }
}

# What the job may do. Whatever the backend cannot enforce is refused here, in the plan.
data "agentkernel_profile" "job" {
  name = "demo"
  type = var.type

  bubblewrap       = var.type == "bubblewrap" ? {} : null
  docker           = var.type == "docker" ? { image = var.docker_image, pull_policy = "missing" } : null
  local_subprocess = var.type == "local_subprocess" ? {} : null

  policy = {
    network_egress = var.network_egress
    timeout        = 30
  }
}

resource "agentkernel_sandbox" "job" {
  profile = data.agentkernel_profile.job.spec
  name    = var.name
}

resource "agentkernel_exec" "summary" {
  binding = agentkernel_sandbox.job.binding
  code    = file("${path.module}/job.py")
  stdin   = file("${path.module}/orders.csv")
}

output "summary" {
  description = "What the job found out."
  value       = jsondecode(agentkernel_exec.summary.stdout)
}

output "isolation" {
  description = "What kept the job from the rest of the machine."
  value       = agentkernel_sandbox.job.isolation
}
