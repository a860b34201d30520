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
}

resource "agentkernel_file" "settings" {
  binding = agentkernel_sandbox.workspace.binding
  path    = "config/settings.json"
  content = jsonencode({ retries = 3 })
  mode    = "0640"
}

resource "agentkernel_exec" "check" {
  binding  = agentkernel_sandbox.workspace.binding
  code     = "import json; print(json.load(open('config/settings.json'))['retries'])"
  triggers = { settings = agentkernel_file.settings.sha256 }
}
