# What a job needs, and the backends of this machine that can keep it to that.

terraform {
  required_providers {
    agentkernel = {
      source = "agentkernel/agentkernel"
    }
  }
}

variable "egress" {
  description = "What the job may reach: allow, deny or allowlist."
  type        = string
  default     = "deny"
}

variable "minimum" {
  description = "The weakest isolation tier that is good enough."
  type        = string
  default     = "os_policy"
}

# Asks every backend what it has here; one that cannot be used says why.
data "agentkernel_backends" "here" {
  probe = true
}

locals {
  strong_enough = {
    for type, backend in data.agentkernel_backends.here.backends : type => backend
    if contains(backend.capabilities.network_modes, var.egress)
    && provider::agentkernel::isolation_at_least(backend.capabilities.isolation, var.minimum)
  }
}

output "usable" {
  description = "Backends that enforce it and can be used from here."
  value       = [for type, backend in local.strong_enough : type if backend.offer.reason == ""]
}

output "missing" {
  description = "Backends that would enforce it, and what each lacks."
  value       = { for type, backend in local.strong_enough : type => backend.offer.reason if backend.offer.reason != "" }
}
