# <backend>/<native id>, as the attribute id shows it.
terraform import agentkernel_sandbox.workspace bubblewrap/0123456789abcdef
