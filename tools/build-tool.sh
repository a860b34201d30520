#!/usr/bin/env bash
# Compiles one pinned tool once and prints the path of its program.
#
#   tools/build-tool.sh golangci-lint|tfplugindocs|tofu|goreleaser|cyclonedx-gomod|actionlint
#
# The versions are pinned in the go.mod files under tools/. Each but tfplugindocs has a module of its own: most bring
# hundreds of others along, and their requirements must not choose the versions that other tools get.
# The program goes to a cache directory whose name carries the tool's version and the Go version, so another
# pin or another Go compiles afresh and nothing else does. Compiling takes minutes: CONTRIBUTING.md has a table.
set -euo pipefail

cd "$(dirname "$0")"
cache=${AGENTKERNEL_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/terraform-provider-agentkernel}

flags=()
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
tofu)
	module=opentofu
	package=github.com/opentofu/opentofu/cmd/tofu
	requirement=github.com/opentofu/opentofu
	# As a release calls itself: a version with "-dev" is a pre-release, which no required_version allows.
	flags=(-ldflags '-s -w -X github.com/opentofu/opentofu/version.dev=no')
	;;
goreleaser)
	module=goreleaser
	package=github.com/goreleaser/goreleaser/v2
	requirement=$package
	;;
cyclonedx-gomod)
	module=cyclonedx-gomod
	package=github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod
	requirement=github.com/CycloneDX/cyclonedx-gomod
	;;
actionlint)
	module=actionlint
	package=github.com/rhysd/actionlint/cmd/actionlint
	requirement=github.com/rhysd/actionlint
	;;
*)
	echo "usage: $0 golangci-lint|tfplugindocs|tofu|goreleaser|cyclonedx-gomod|actionlint" >&2
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
			go -C "$module" build -trimpath -buildvcs=false ${flags[@]+"${flags[@]}"} -o "$dir/$name.new" "$package" >&2
		mv "$dir/$name.new" "$dir/$name"
	fi
fi
printf '%s\n' "$dir/$name"
