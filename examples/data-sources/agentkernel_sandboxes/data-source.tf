# Every sandbox of team a on this machine, whatever configuration made it.
data "agentkernel_sandboxes" "team" {
  backend = "bubblewrap"
  labels = {
    team = "a"
  }
}

output "sandboxes" {
  value = { for s in data.agentkernel_sandboxes.team.sandboxes : s.id => s.name }
}
