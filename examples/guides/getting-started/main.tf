terraform {
  required_providers {
    agentkernel = {
      source = "agentkernel/agentkernel"
    }
  }
}

variable "api_token" {
  description = "A secret that the code needs. Ephemeral: it gets into no plan and no state."
  type        = string
  sensitive   = true
  ephemeral   = true
  default     = "an example, not a token"
}

provider "agentkernel" {
  secrets = {
    api_token = var.api_token
  }
}

# What the code may do: no network, one minute. The plan fails where the backend cannot enforce it.
data "agentkernel_profile" "job" {
  name       = "first-job"
  type       = "bubblewrap"
  bubblewrap = {}

  policy = {
    network_egress = "deny"
    timeout        = 60
  }
}

# A sandbox that lives until it is destroyed.
resource "agentkernel_sandbox" "job" {
  profile = data.agentkernel_profile.job.spec
}

# Code in it: standard input, a secret for this run only, and a file that is brought back.
resource "agentkernel_exec" "total" {
  binding    = agentkernel_sandbox.job.binding
  stdin      = jsonencode([3, 1, 2])
  secret_env = { API_TOKEN = "api_token" }

  code = <<-PYTHON
    import json, os, sys
    numbers = json.load(sys.stdin)
    with open("sorted.json", "w") as file:
        json.dump(sorted(numbers), file)
    print(sum(numbers))
    print("the token has", len(os.environ["API_TOKEN"]), "characters:", os.environ["API_TOKEN"], file=sys.stderr)
  PYTHON

  output_files = ["sorted.json"]
}

# One run in a sandbox of its own, which is gone when the apply ends.
resource "agentkernel_exec" "once" {
  profile = data.agentkernel_profile.job.spec
  script  = "uname -s"
}

output "total" {
  value = tonumber(trimspace(agentkernel_exec.total.stdout))
}

output "sorted" {
  value = jsondecode(base64decode(agentkernel_exec.total.files["sorted.json"].content_base64))
}

output "hidden" {
  value = agentkernel_exec.total.stderr
}

output "once" {
  value = agentkernel_exec.once.stdout
}
