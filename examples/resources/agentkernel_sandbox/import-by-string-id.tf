import {
  to = agentkernel_sandbox.workspace
  id = "bubblewrap/0123456789abcdef01234567"
}
