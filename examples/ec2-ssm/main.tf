# Runs code on an EC2 instance that exists, through AWS Systems Manager. `terraform destroy` leaves the instance as it is.
#
# Before: the instance runs the SSM agent and has the policy AmazonSSMManagedInstanceCore (or what that allows); the
# caller has policy.json, for a hybrid machine (mi-…) policy-hybrid.json, with region, account and machine put in.

terraform {
  required_providers {
    agentkernel = {
      source = "agentkernel/agentkernel"
    }
  }
}

variable "region" {
  type    = string
  default = "eu-west-1"
}

variable "instance" {
  description = "Id of the instance (i-…) or of a hybrid managed node (mi-…)."
  type        = string
  default     = "i-0123456789abcdef0"
}

variable "run_as" {
  description = "User of the machine that code runs as."
  type        = string
  default     = "nobody"
}

# The credential comes from where the AWS tools look: environment, shared files, instance role.
provider "agentkernel" {
  aws = { region = var.region }
}

data "agentkernel_profile" "machine" {
  name        = "reporting-machine"
  type        = "ec2_ssm"
  environment = "attached"
  ec2_ssm     = { attach_to = var.instance }

  policy = {
    timeout = 60
  }
}

data "agentkernel_attached_environment" "machine" {
  profile = data.agentkernel_profile.machine.spec
}

resource "agentkernel_exec" "report" {
  binding = data.agentkernel_attached_environment.machine.binding

  principal = {
    subject = "nightly-report"
    ec2_ssm = { run_as = var.run_as }
  }

  code = <<-EOT
    import os, platform
    print(f"{platform.node()} runs this as {os.getuid()}")
  EOT
}

output "report" {
  value = agentkernel_exec.report.stdout
}

output "platform" {
  value = data.agentkernel_attached_environment.machine.platform
}
