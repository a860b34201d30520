#!/usr/bin/env bash
# Brings the test cluster up or down: see main.go.
#
#   tools/testcluster/cluster.sh up|down|status|env
set -euo pipefail
cd "$(dirname "$0")"
program=$(mktemp -d)
trap 'rm -rf "$program"' EXIT
env -u GOOS -u GOARCH -u GOFLAGS go build -buildvcs=false -o "$program/testcluster" .
"$program/testcluster" "$@"
