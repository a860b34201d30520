module github.com/agentkernel/terraform-provider-agentkernel

go 1.26
