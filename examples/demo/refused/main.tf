# A wish that no backend here can keep: an allow-list for the network of a local process. The plan fails, names what
# cannot be enforced and says what the backend offers instead. Nothing is created.

terraform {
  required_providers {
    agentkernel = {
      source = "agentkernel/agentkernel"
    }
  }
}

provider "agentkernel" {}

data "agentkernel_profile" "refused" {
  name = "refused"
  type = "local_subprocess"

  local_subprocess = {}

  policy = {
    network_egress = "allowlist"
    network_allow  = ["api.example.com"]
    memory_mb      = 512
  }
}

resource "agentkernel_sandbox" "refused" {
  profile = data.agentkernel_profile.refused.spec
  name    = "refused"
}
