# What a backend can enforce, and which of these wishes it could not: asked before a profile is written.
data "agentkernel_capabilities" "local" {
  backend = "local_subprocess"

  policy = {
    network_egress = "deny"
    timeout        = 30
  }
}

output "isolation" {
  value = data.agentkernel_capabilities.local.isolation
}

output "not_enforced" {
  value = data.agentkernel_capabilities.local.unenforced
}
