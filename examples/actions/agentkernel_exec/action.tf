data "agentkernel_profile" "workspace" {
  name       = "workspace"
  type       = "bubblewrap"
  bubblewrap = {}

  policy = {
    network_egress = "deny"
  }
}

resource "agentkernel_sandbox" "workspace" {
  profile = data.agentkernel_profile.workspace.spec

  lifecycle {
    action_trigger {
      events  = [after_create]
      actions = [action.agentkernel_exec.greet]
    }
  }
}

# Also: terraform apply -invoke=action.agentkernel_exec.greet
action "agentkernel_exec" "greet" {
  config {
    binding = agentkernel_sandbox.workspace.binding
    script  = "echo the workspace is $(pwd)"

    timeouts = {
      invoke = "5m"
    }
  }
}
