# terraform query -generate-config-out=found.tf
list "agentkernel_sandbox" "team" {
  provider = agentkernel
  limit    = 50

  config {
    backend = "docker"
    labels = {
      team = "a"
    }
  }
}
