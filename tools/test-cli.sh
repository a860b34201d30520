#!/usr/bin/env bash
# Runs the tests of the packages that drive a Terraform or OpenTofu program: with the one of TF_ACC_TERRAFORM_PATH, or with
# what is on the PATH. After `make test` with one of the two, this is what is left to do with the other.
#
#   tools/test-cli.sh [arguments of go test]
set -euo pipefail
cd "$(dirname "$0")/.."

# What happens when the provider is killed is the same under both, and takes minutes. Interrupting the program at the very
# end of an apply shows a fault of its own: it writes its local state once more because of the interrupt, and OpenTofu
# 1.12.6 may end in the middle of that with "Apply complete" and an empty state file.
skip='TestKilledWhileMaking|TestKilledAtEveryRequest'

# A package drives a program if it asks testenv for one.
packages=()
while IFS= read -r dir; do
	packages+=("./$dir")
done < <(git grep -l --untracked -E 'testenv\.(TerraformCLI|ChosenCLI|BothCLIs|PluginTesting)\(' -- '*_test.go' | xargs -n 1 dirname | sort -u)
tools/test.sh "${packages[@]}" -skip "$skip" "$@"
