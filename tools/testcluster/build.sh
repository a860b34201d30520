#!/usr/bin/env bash
# Compiles the programs of the test cluster that do not come from Debian, once, and prints the directory they
# are in: `components` (API server, controller manager, scheduler, kubelet, kubectl) and `kube-router`.
#
# The directory's name carries the versions of Kubernetes, kube-router and Go: another pin compiles afresh,
# nothing else does. Cold this takes about 21 CPU minutes; it runs at the lowest priority so that a machine
# stays usable meanwhile. AGENTKERNEL_BUILD_JOBS limits how many compilers run at once.
set -euo pipefail

cd "$(dirname "$0")"
cache=${AGENTKERNEL_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/terraform-provider-agentkernel}
jobs=${AGENTKERNEL_BUILD_JOBS:-$(nproc)}

kubernetes=$(go list -m -f '{{.Version}}' k8s.io/kubernetes)
router=$(go -C kube-router list -m -f '{{.Version}}' github.com/cloudnativelabs/kube-router/v2)
goversion=$(go env GOVERSION)
sources=$(cat components/*.go | sha256sum | cut -c1-8)
dir=$cache/testcluster/$kubernetes-$sources-$router-$goversion-$(go env GOHOSTOS)-$(go env GOHOSTARCH)

# build DIRECTORY PACKAGE NAME [LDFLAGS]: moved into place only when whole.
build() {
	if [ -x "$dir/$3" ]; then return; fi
	echo "build.sh: compiling $3 with $goversion" >&2
	env -u GOOS -u GOARCH -u GOFLAGS CGO_ENABLED=0 nice -n 19 \
		go -C "$1" build -p "$jobs" -trimpath -buildvcs=false -ldflags "-s -w ${4:-}" -o "$dir/$3.new" "$2" >&2
	mv "$dir/$3.new" "$dir/$3"
}

if [ ! -x "$dir/components" ] || [ ! -x "$dir/kube-router" ]; then
	mkdir -p "$dir"
	# Two callers may build at once: the second waits and finds the result.
	exec 9>"$dir/lock"
	flock 9
	# Without a version the API server believes that it is a development build, and says so to every client.
	build . ./components components "-X k8s.io/component-base/version.gitVersion=$kubernetes -X k8s.io/client-go/pkg/version.gitVersion=$kubernetes"
	build kube-router github.com/cloudnativelabs/kube-router/v2/cmd/kube-router kube-router
fi
ln -sfn components "$dir/kubectl"
printf '%s\n' "$dir"
