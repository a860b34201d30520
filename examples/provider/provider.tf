terraform {
  required_providers {
    agentkernel = {
      source = "agentkernel/agentkernel"
    }
  }
}

variable "api_token" {
  type      = string
  sensitive = true
  ephemeral = true
  default   = "an example, not a token"
}

# No backend has to be set up here: without settings the Docker engine is the one that DOCKER_HOST or the current context
# names, for instance, and a key or an address comes from the backend's usual environment variables.
provider "agentkernel" {
  # Named values that reach code through secret_env, and nothing else.
  secrets = {
    api_token = var.api_token
  }
}

data "agentkernel_profile" "job" {
  name       = "nightly-report"
  type       = "bubblewrap"
  bubblewrap = {}

  policy = {
    network_egress = "deny"
    timeout        = 60
  }
}

resource "agentkernel_sandbox" "job" {
  profile = data.agentkernel_profile.job.spec
}

resource "agentkernel_exec" "report" {
  binding    = agentkernel_sandbox.job.binding
  code       = "import os; print(len(os.environ['API_TOKEN']))"
  secret_env = { API_TOKEN = "api_token" }
}

output "report" {
  value = agentkernel_exec.report.stdout
}
