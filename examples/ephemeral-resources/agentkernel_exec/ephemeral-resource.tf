data "agentkernel_profile" "mint" {
  name       = "mint"
  type       = "bubblewrap"
  bubblewrap = {}

  policy = {
    network_egress = "deny"
  }
}

# Runs at plan and at apply; its result is kept nowhere.
ephemeral "agentkernel_exec" "token" {
  profile = data.agentkernel_profile.mint.spec
  code    = "import secrets; print(secrets.token_hex(16), end='')"
}

resource "agentkernel_sandbox" "worker" {
  profile = data.agentkernel_profile.mint.spec

  env_wo         = { TOKEN = ephemeral.agentkernel_exec.token.stdout }
  env_wo_version = 1
}
