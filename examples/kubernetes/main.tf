# A sandbox in a Kubernetes cluster that reaches nothing, with limits, and a run in it. cluster.yaml prepares the
# namespace and the rights of the provider:
#
#   kubectl apply -f cluster.yaml
#   export KUBECONFIG=...   # of the service account terraform in the namespace agents; the guide says how to make one
#   terraform apply

terraform {
  required_providers {
    agentkernel = {
      source = "agentkernel/agentkernel"
    }
  }
}

variable "image" {
  description = "An image with python3 that can run as an ordinary user."
  type        = string
  default     = "python:3.12-slim"
}

variable "token" {
  type      = string
  sensitive = true
  default   = "an example, not a token"
}

provider "agentkernel" {
  # The cluster comes from KUBECONFIG. Or: config_path and context, in_cluster = true, host with token.
  kubernetes = {
    namespaces = ["agents"]
  }

  secrets = {
    token = var.token
  }
}

resource "agentkernel_profile" "job" {
  name = "job"
  type = "kubernetes"

  policy = {
    network_egress = "deny"
    fs_allow_write = ["/workspace", "/tmp"]
    cpu            = 0.5
    memory_mb      = 256
    timeout        = 60
  }

  kubernetes = {
    namespace = "agents"
    image     = var.image
    labels    = { team = "data" }

    # The assertion that this cluster enforces NetworkPolicy. A sandbox is ready only once its policy was seen to hold.
    network_policy = true
  }
}

resource "agentkernel_sandbox" "job" {
  profile    = agentkernel_profile.job.spec
  name       = "job"
  env        = { STAGE = "test" }
  secret_env = { TOKEN = "token" }

  max_lifetime = "8h"
}

resource "agentkernel_exec" "report" {
  binding = agentkernel_sandbox.job.binding

  code = <<-EOT
    import json, os, socket

    def reaches(host, port):
        try:
            socket.create_connection((host, port), timeout=2).close()
            return True
        except OSError:
            return False

    json.dump({
        "stage": os.environ["STAGE"],
        "token": len(os.environ["TOKEN"]),
        "network": reaches("192.0.2.1", 443),
    }, open("report.json", "w"))
    print("written by user", os.getuid())
  EOT

  output_files = ["report.json"]
}

output "report" {
  value = jsondecode(base64decode(agentkernel_exec.report.files["report.json"].content_base64))
}

output "said" {
  value = agentkernel_exec.report.stdout
}

output "id" {
  value = agentkernel_sandbox.job.id
}
