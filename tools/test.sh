#!/usr/bin/env bash
# Runs the tests with everything that this machine has, and needs nothing: no account, no secret, no registry. What
# is missing is skipped and told at the end (see internal/testenv).
#
#   tools/test.sh [packages] [arguments of go test]
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=tools/lib.sh
. tools/lib.sh

temp=$(mktemp -d)
trap 'rm -rf "$temp"' EXIT
clean_terraform_environment "$temp"

if cli=$(find_terraform) && [ -n "$cli" ]; then
	# TF_ACC is how terraform-plugin-testing knows that acceptance tests are wanted: with a program at hand they are.
	export TF_ACC=1 TF_ACC_TERRAFORM_PATH=$cli
fi

# The images of the Docker tests, where that is possible without asking anything of the caller.
if engine_answers && { [ "$(id -u)" = 0 ] && command -v debootstrap >/dev/null; }; then
	tools/testimages/build.sh || echo "test.sh: the test images could not be made; Docker tests will tell" >&2
fi

# The race detector needs a C compiler, and a machine with Go and Terraform only need not have one.
race=
if [ "$(go env CGO_ENABLED)" = 1 ] && command -v "$(go env CC)" >/dev/null; then
	race=-race
else
	echo "test.sh: no C compiler, so the tests run without the race detector" >&2
fi

# Built and not `go run`, which would add a line of its own behind the counts.
go build -o "$temp/runtests" ./internal/testenv/cmd/runtests
# -count=1: an engine or a kernel is not among the things that Go's test cache looks at.
"$temp/runtests" -- ${race:+"$race"} -count=1 -timeout=25m "${@:-./...}"
