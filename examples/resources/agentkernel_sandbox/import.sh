# <backend>/<native id>, as the attribute id shows it: 24 hexadecimal digits on bubblewrap and local_subprocess, the
# 64 of the container id on docker.
terraform import agentkernel_sandbox.workspace bubblewrap/0123456789abcdef01234567
