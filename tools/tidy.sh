#!/usr/bin/env bash
# Runs `go mod tidy` in every module of this repository; with --check only says what it would change.
set -euo pipefail
cd "$(dirname "$0")/.."

arguments=()
case ${1:-} in
'') ;;
--check) arguments=(-diff) ;;
*)
	echo "usage: $0 [--check]" >&2
	exit 2
	;;
esac

status=0
while IFS= read -r file; do
	if ! go -C "$(dirname "$file")" mod tidy "${arguments[@]}"; then
		echo "tidy.sh: $file is not tidy" >&2
		status=1
	fi
done < <(git ls-files -- go.mod '*/go.mod')
exit "$status"
