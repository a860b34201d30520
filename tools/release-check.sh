#!/usr/bin/env bash
# Builds a release out of a copy of this tree, for two targets, and checks it as the registry and its users would: see
# internal/cmd/releasecheck. Needs git, gpg and a terraform or tofu; OpenTofu is compiled if there is none.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=tools/lib.sh
. tools/lib.sh

temp=$(mktemp -d)
trap 'rm -rf "$temp"' EXIT
clean_terraform_environment "$temp"

arguments=()
for name in terraform tofu; do
	if command -v "$name" >/dev/null; then
		arguments+=(-cli "$(command -v "$name")")
	elif [ "$name" = tofu ]; then
		arguments+=(-cli "$(tools/build-tool.sh tofu)")
	fi
done
goreleaser=$(tools/build-tool.sh goreleaser)
cyclonedx=$(tools/build-tool.sh cyclonedx-gomod)
go build -o "$temp/releasecheck" ./internal/cmd/releasecheck
"$temp/releasecheck" -goreleaser "$goreleaser" -cyclonedx "$cyclonedx" "${arguments[@]}"
