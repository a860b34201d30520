#!/usr/bin/env bash
# Runs each fuzz target of the packages for a while.
#
#   tools/fuzz.sh TIME [packages]
set -euo pipefail
cd "$(dirname "$0")/.."

fuzztime=${1:?usage: tools/fuzz.sh TIME [packages]}
shift
found=0
# `go test -list` names the targets of a package and then the package.
while read -r package target; do
	found=$((found + 1))
	echo "== $package $target"
	go test -run '^$' -fuzz "^$target\$" -fuzztime "$fuzztime" "$package"
done < <(go test -list '^Fuzz' "${@:-./...}" |
	awk '/^Fuzz/ { targets[++n] = $1 } /^ok/ { for (i = 1; i <= n; i++) print $2, targets[i]; n = 0 }')
echo "fuzz targets run: $found"
