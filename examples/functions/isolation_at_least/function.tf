terraform {
  required_providers {
    agentkernel = {
      source = "agentkernel/agentkernel"
    }
  }
}

variable "minimum" {
  type    = string
  default = "container"
}

data "agentkernel_backends" "all" {}

# The backends whose isolation is strong enough.
output "acceptable" {
  value = [
    for type, backend in data.agentkernel_backends.all.backends : type
    if provider::agentkernel::isolation_at_least(backend.capabilities.isolation, var.minimum)
  ]
}
