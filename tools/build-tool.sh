#!/usr/bin/env bash
# Compiles one pinned tool once and prints the path of its program.
#
#   tools/build-tool.sh golangci-lint|tfplugindocs
#
# The versions are pinned in the go.mod files under tools/. golangci-lint has a module of its own: it brings
# some two hundred linters along, and their requirements must not choose the versions that other tools get.
# The program goes to a cache directory whose name carries the tool's version and the Go version, so another
# pin or another Go compiles afresh and nothing else does. Compiling golangci-lint takes 4 to 6 minutes on two
# cores.
set -euo pipefail

cd "$(dirname "$0")"
cache=${AGENTKERNEL_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/terraform-provider-agentkernel}

case ${1:-} in
golangci-lint)
	module=golangci-lint
	package=github.com/golangci/golangci-lint/v2/cmd/golangci-lint
	requirement=github.com/golangci/golangci-lint/v2
	;;
tfplugindocs)
	module=.
	package=github.com/hashicorp/terraform-plugin-docs/cmd/tfplugindocs
	requirement=github.com/hashicorp/terraform-plugin-docs
	;;
*)
	echo "usage: $0 golangci-lint|tfplugindocs" >&2
	exit 2
	;;
esac

name=$1
version=$(go -C "$module" list -m -f '{{.Version}}' "$requirement")
goversion=$(go env GOVERSION)
dir=$cache/tools/$name-$version-$goversion-$(go env GOHOSTOS)-$(go env GOHOSTARCH)

if [ ! -x "$dir/$name" ]; then
	mkdir -p "$dir"
	# Two callers may build at once (lint beside tests): the second waits and finds the result.
	exec 9>"$dir/lock"
	if command -v flock >/dev/null; then flock 9; fi
	if [ ! -x "$dir/$name" ]; then
		echo "build-tool.sh: compiling $name $version with $goversion" >&2
		# Built for this machine whatever the caller builds for, and moved into place only when whole.
		env -u GOOS -u GOARCH -u GOFLAGS CGO_ENABLED=0 \
			go -C "$module" build -trimpath -buildvcs=false -o "$dir/$name.new" "$package" >&2
		mv "$dir/$name.new" "$dir/$name"
	fi
fi
printf '%s\n' "$dir/$name"
