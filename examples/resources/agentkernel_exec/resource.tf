data "agentkernel_profile" "job" {
  name       = "job"
  type       = "bubblewrap"
  bubblewrap = {}

  policy = {
    network_egress = "deny"
    timeout        = 60
  }
}

resource "agentkernel_sandbox" "job" {
  profile = data.agentkernel_profile.job.spec
}

# Runs in the sandbox, and again when code, stdin or triggers change. The file is deleted when the run is destroyed.
resource "agentkernel_exec" "summary" {
  binding = agentkernel_sandbox.job.binding
  stdin   = jsonencode([3, 1, 2])
  code    = <<-PYTHON
    import json, sys
    numbers = json.load(sys.stdin)
    with open("sorted.json", "w") as file:
        json.dump(sorted(numbers), file)
    print(sum(numbers))
  PYTHON

  output_files   = ["sorted.json"]
  destroy_script = "rm -f sorted.json"
}

# A sandbox of its own for one run, gone before the apply ends. Exit status 1 is an answer here and not a failure.
resource "agentkernel_exec" "check" {
  profile            = data.agentkernel_profile.job.spec
  command            = ["grep", "-c", "needle"]
  stdin              = "hay\nneedle\n"
  success_exit_codes = [0, 1]

  triggers = {
    revision = "1"
  }
}

output "sum" {
  value = tonumber(trimspace(agentkernel_exec.summary.stdout))
}

output "sorted" {
  value = jsondecode(base64decode(agentkernel_exec.summary.files["sorted.json"].content_base64))
}

output "found" {
  value = agentkernel_exec.check.exit_code == 0
}
