# shellcheck shell=bash
# What several scripts need. Source it; it runs nothing by itself.

# clean_terraform_environment DIR makes a run independent of how this machine's user set up Terraform: an own, empty
# CLI configuration in DIR, and none of the variables that change what a command does.
clean_terraform_environment() {
	local name
	for name in $(compgen -e); do
		case $name in
		TF_ACC_TERRAFORM_PATH) ;;
		TF_*) unset "$name" ;;
		esac
	done
	: >"$1/empty.tfrc"
	export TF_CLI_CONFIG_FILE=$1/empty.tfrc
	# No question and no call home.
	export TF_INPUT=0 TF_IN_AUTOMATION=1 CHECKPOINT_DISABLE=1
	# A principal, an engine or a log that the user set for real work is not for tests.
	unset AGENTKERNEL_AUDIT_LOG
}

# find_terraform prints the Terraform or OpenTofu program to use, or nothing.
find_terraform() {
	if [ -n "${TF_ACC_TERRAFORM_PATH:-}" ]; then
		command -v "$TF_ACC_TERRAFORM_PATH" || true
	else
		command -v terraform || command -v tofu || true
	fi
}

# engine_answers tells whether a Docker engine can be used, without waiting long for one that hangs.
engine_answers() {
	command -v docker >/dev/null && timeout 15 docker version --format '{{.Server.Version}}' >/dev/null 2>&1
}
