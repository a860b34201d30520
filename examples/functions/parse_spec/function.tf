terraform {
  required_providers {
    agentkernel = {
      source = "agentkernel/agentkernel"
    }
  }
}

# A module that is handed a profile can insist on what it says.
variable "profile" {
  type        = string
  description = "The spec of an agentkernel_profile."
  default     = "{\"bubblewrap\":{\"pids_limit\":64},\"name\":\"job\",\"policy\":{\"network_egress\":\"deny\"},\"type\":\"bubblewrap\",\"v\":1}"

  validation {
    condition     = provider::agentkernel::parse_spec(var.profile).policy.network_egress == "deny"
    error_message = "The profile has to deny network egress."
  }
}

output "profile" {
  value = provider::agentkernel::parse_spec(var.profile).name
}

output "pids_limit" {
  value = provider::agentkernel::parse_spec(var.profile).settings.pids_limit
}
