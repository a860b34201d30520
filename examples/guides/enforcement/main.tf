# A job for whatever place is at hand: it asks what can be enforced, and says aloud what is not.

terraform {
  required_providers {
    agentkernel = {
      source = "agentkernel/agentkernel"
    }
  }
}

locals {
  policy = {
    network_egress = "deny"
    memory_mb      = 256
    timeout        = 30
  }
}

# Asked before a profile is written: what of this policy could nobody enforce?
data "agentkernel_capabilities" "local" {
  backend = "local_subprocess"
  policy  = local.policy
}

# With strict = true, the default, this profile would be refused. Here it is accepted, and every plan warns of it.
data "agentkernel_profile" "trusted" {
  name             = "trusted-code"
  type             = "local_subprocess"
  local_subprocess = {}
  policy           = merge(local.policy, { strict = false })
}

resource "agentkernel_exec" "job" {
  profile = data.agentkernel_profile.trusted.spec
  script  = "echo done"

  lifecycle {
    # Whoever relaxes the policy further has to change this line, too.
    precondition {
      condition     = toset(data.agentkernel_profile.trusted.unenforced) == toset(["memory_mb", "network_egress"])
      error_message = "More is unenforced than was agreed."
    }
  }
}

output "could_not_be_enforced" {
  value = data.agentkernel_capabilities.local.unenforced
}
