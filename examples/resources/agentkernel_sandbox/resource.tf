data "agentkernel_profile" "workspace" {
  name       = "workspace"
  type       = "bubblewrap"
  bubblewrap = {}

  policy = {
    network_egress = "deny"
    timeout        = 120
  }
}

resource "agentkernel_sandbox" "workspace" {
  profile = data.agentkernel_profile.workspace.spec
  name    = "team-a"

  env = {
    LC_ALL = "C.UTF-8"
  }
  labels = {
    team = "a"
  }
}

output "binding" {
  value = agentkernel_sandbox.workspace.binding
}
