#!/usr/bin/env bash
# Runs E2B's official JavaScript SDK, in the version that package.json pins, against the test peer of internal/e2bpeer.
# The SDK goes to the cache directory of this repository's tools, once per version.
#
#   tools/e2bpeercheck/run.sh
set -euo pipefail
cd "$(dirname "$0")/../.."

for name in node npm; do
	command -v "$name" >/dev/null || {
		echo "e2bpeercheck: no $name on the PATH (Debian: apt-get install nodejs npm; the SDK wants Node 20 or later)" >&2
		exit 1
	}
done

here=tools/e2bpeercheck
cache=${AGENTKERNEL_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/terraform-provider-agentkernel}
dir=$cache/e2bpeercheck/$(sha256sum "$here/package.json" | cut -c1-16)
if [ ! -e "$dir/complete" ]; then
	rm -rf "$dir"
	mkdir -p "$dir"
	cp "$here/package.json" "$dir/"
	npm --prefix "$dir" install --ignore-scripts --no-audit --no-fund --no-package-lock --loglevel=error >&2
	: >"$dir/complete"
fi
# The script is found beside the modules that it imports.
cp "$here/check.mjs" "$dir/"

# Settings of the caller's own E2B account have no part in this.
unset E2B_API_KEY E2B_DOMAIN E2B_API_URL E2B_SANDBOX_URL E2B_DEBUG E2B_ACCESS_TOKEN
go build -o "$dir/e2bpeer" ./internal/e2bpeer/cmd/e2bpeer
timeout --kill-after=10 240 "$dir/e2bpeer" node "$dir/check.mjs"
