# What the job may do. Everything computed is known in the plan, and a wish that the backend cannot enforce fails there.
data "agentkernel_profile" "untrusted" {
  name       = "untrusted-code"
  type       = "bubblewrap"
  bubblewrap = {}

  policy = {
    network_egress = "deny"
    timeout        = 30
    min_isolation  = "os_policy"
  }
}

output "spec" {
  value = data.agentkernel_profile.untrusted.spec
}
