data "agentkernel_backends" "all" {}

# The backends that keep code from the network.
output "without_network" {
  value = [
    for type, backend in data.agentkernel_backends.all.backends : type
    if contains(backend.capabilities.network_modes, "deny")
  ]
}
