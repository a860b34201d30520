# A micro-VM of E2B (or of any server that speaks its API: set E2B_API_URL, or api_url below) that may speak to two
# places and to nothing else, with a script, a file and a secret in it.
#
#   export E2B_API_KEY=...
#   terraform apply

terraform {
  required_providers {
    agentkernel = {
      source = "agentkernel/agentkernel"
    }
  }
}

variable "allow" {
  description = "What the sandbox may reach. A change is made in place, while the sandbox runs."
  type        = list(string)
  default     = ["example.org", "198.51.100.0/24"]
}

variable "token" {
  type      = string
  sensitive = true
  default   = "an example, not a token"
}

provider "agentkernel" {
  # Key and address come from E2B_API_KEY, E2B_DOMAIN and E2B_API_URL. A server that stands here needs its key here, too.
  e2b = {}

  secrets = {
    token = var.token
  }
}

resource "agentkernel_profile" "agent" {
  name = "agent"
  type = "e2b"

  # The sandbox's time on the server: renewed by every run, paused with memory and files when it is over.
  idle_timeout = 1800

  policy = {
    network_egress = "allowlist"
    network_allow  = var.allow
    min_isolation  = "micro_vm"
    timeout        = 60
  }

  e2b = {
    template = "base"
    metadata = { team = "platform" }
  }
}

resource "agentkernel_sandbox" "agent" {
  profile = agentkernel_profile.agent.spec
  env     = { STAGE = "test" }
}

resource "agentkernel_exec" "report" {
  binding    = agentkernel_sandbox.agent.binding
  secret_env = { TOKEN = "token" }

  code = <<-EOT
    import json, os
    json.dump({"stage": os.environ["STAGE"], "token": len(os.environ["TOKEN"])}, open("report.json", "w"))
    print("written by", os.environ["USER"])
  EOT

  output_files = ["report.json"]
}

output "report" {
  value = jsondecode(base64decode(agentkernel_exec.report.files["report.json"].content_base64))
}

output "said" {
  value = agentkernel_exec.report.stdout
}
