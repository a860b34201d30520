#!/usr/bin/env bash
# Lints Go with the pinned golangci-lint, workflows with the pinned actionlint, and shell scripts with shellcheck where it
# is installed.
set -euo pipefail
cd "$(dirname "$0")/.."

linter=$(tools/build-tool.sh golangci-lint)
"$linter" run ./...
"$linter" fmt --diff ./...
(cd tools && "$linter" run ./...)

"$(tools/build-tool.sh actionlint)"

if command -v shellcheck >/dev/null; then
	# import.sh is a line of documentation and no script.
	git ls-files -z -- '*.sh' .ci/run ':!examples/*/import.sh' | xargs -0 -r shellcheck -x
elif [ -n "${CI:-}" ]; then
	echo "lint.sh: no shellcheck" >&2
	exit 1
else
	echo "lint.sh: no shellcheck on the PATH; shell scripts are not checked (Debian: apt-get install shellcheck)" >&2
fi
