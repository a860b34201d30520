import {
  to = agentkernel_sandbox.workspace
  identity = {
    backend   = "bubblewrap"
    native_id = "0123456789abcdef01234567"
  }
}
