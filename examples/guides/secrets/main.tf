terraform {
  required_providers {
    agentkernel = {
      source = "agentkernel/agentkernel"
    }
  }
}

# Ephemeral: in no plan and no state.
variable "api_token" {
  type      = string
  sensitive = true
  ephemeral = true
  default   = "an example, not a token"
}

variable "token_version" {
  description = "Counted up when there is a new token."
  type        = number
  default     = 1
}

provider "agentkernel" {
  secrets = {
    api_token = var.api_token
  }
}

data "agentkernel_profile" "job" {
  name       = "job"
  type       = "bubblewrap"
  bubblewrap = {}

  policy = {
    network_egress = "deny" # what may not be sent away cannot leak
  }
}

# Runs at plan and at apply; what it prints is ephemeral.
ephemeral "agentkernel_exec" "session" {
  profile = data.agentkernel_profile.job.spec
  code    = "import secrets; print(secrets.token_hex(16), end='')"
}

resource "agentkernel_sandbox" "job" {
  profile = data.agentkernel_profile.job.spec

  # For every run in the sandbox. A change of the number replaces the sandbox.
  env_wo         = { SESSION = ephemeral.agentkernel_exec.session.stdout }
  env_wo_version = 1
}

# A file whose content Terraform does not keep.
resource "agentkernel_file" "credentials" {
  binding            = agentkernel_sandbox.job.binding
  path               = "credentials.ini"
  content_wo         = "[default]\ntoken = ${var.api_token}\n"
  content_wo_version = var.token_version
  mode               = "0600"
}

resource "agentkernel_exec" "job" {
  binding = agentkernel_sandbox.job.binding

  # For this run only: the variable, and the name in the provider's secrets.
  secret_env = { API_TOKEN = "api_token" }
  triggers   = { token = var.token_version }

  code = <<-PYTHON
    import base64, os
    print("a token of", len(os.environ["API_TOKEN"]), "and a session of", len(os.environ["SESSION"]), "characters")
    print("shown by accident:", os.environ["API_TOKEN"])
    print("shown as base64:", base64.b64encode(os.environ["API_TOKEN"].encode()).decode())
    print("the file has", os.path.getsize("credentials.ini"), "bytes")
  PYTHON

  depends_on = [agentkernel_file.credentials]
}

output "seen" {
  value = agentkernel_exec.job.stdout
}
