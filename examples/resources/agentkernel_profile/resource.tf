# The resource keeps a profile in the state, so that its history is visible. For a check in the very first plan prefer the
# data source of the same name.
resource "agentkernel_profile" "build" {
  name = "build"
  type = "docker"

  docker = {
    image       = "python:3-slim"
    pull_policy = "missing"
  }

  policy = {
    network_egress = "deny"
    cpu            = 1
    memory_mb      = 512
    timeout        = 300
  }
}

output "fingerprint" {
  value = agentkernel_profile.build.fingerprint
}
