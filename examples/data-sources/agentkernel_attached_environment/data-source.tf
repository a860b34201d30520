# The data source of the profile, not the resource: only then is everything below checked in the very first plan.
data "agentkernel_profile" "machine" {
  name        = "build-machine"
  type        = "ec2_ssm"
  environment = "attached"

  ec2_ssm = {
    region    = "eu-west-1"
    attach_to = "i-0123456789abcdef0"
  }
}

# An error when the machine does not exist. Nothing of it is ever changed, started or ended.
data "agentkernel_attached_environment" "machine" {
  profile = data.agentkernel_profile.machine.spec
}

resource "agentkernel_exec" "uptime" {
  binding = data.agentkernel_attached_environment.machine.binding
  script  = "uptime -p"
}

output "machine" {
  value = {
    status   = data.agentkernel_attached_environment.machine.status
    platform = data.agentkernel_attached_environment.machine.platform
    uptime   = agentkernel_exec.uptime.stdout
  }
}
