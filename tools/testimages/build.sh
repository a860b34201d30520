#!/usr/bin/env bash
# Makes the container images of the tests out of Debian packages: no image registry is asked.
#
#   tools/testimages/build.sh          make what is missing in the engine that answers
#   tools/testimages/build.sh --force  make all of them again
#
#   agentkernel-test/python:1  Debian with python3 and pip; no USER, no WORKDIR, no ENTRYPOINT
#   agentkernel-test/user:1    the same files, and an image configuration that gets in the way: USER agent (uid
#                              1000), WORKDIR /srv, ENV, ENTRYPOINT, CMD, EXPOSE, labels
#   agentkernel-test/bare:1    one static program and nothing else: no shell, no Python, no sleep, no ps, no /etc
#
# Needs root (debootstrap), debootstrap, Go and a Docker engine. The Debian tree is made once and kept as a
# tar file in the cache directory; a second call only looks.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
cache=${AGENTKERNEL_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/terraform-provider-agentkernel}/images
suite=bookworm
packages=python3,python3-pip
label=agentkernel-test.key

python=agentkernel-test/python:1
user=agentkernel-test/user:1
bare=agentkernel-test/bare:1

say() { printf 'testimages: %s\n' "$*" >&2; }
die() {
	say "$*"
	exit 1
}

work=
container=
cleanup() {
	if [ -n "$container" ]; then docker rm -f "$container" >/dev/null 2>&1 || true; fi
	if [ -n "$work" ]; then rm -rf "$work"; fi
}
trap cleanup EXIT

force=
case ${1:-} in
'') ;;
--force) force=1 ;;
*)
	echo "usage: $0 [--force]" >&2
	exit 2
	;;
esac

# Whoever changes what goes into an image changes one of these files, and with it the key on the image.
key=$(cat "$here/build.sh" "$here"/bare/* | sha256sum | cut -c1-16)

present() {
	[ -z "$force" ] && [ "$(docker image inspect --format "{{index .Config.Labels \"$label\"}}" "$1" 2>/dev/null)" = "$key" ]
}

timeout 20 docker version --format '{{.Server.Version}}' >/dev/null 2>&1 ||
	die "no Docker engine answers; start one (tools/dockerd.sh up)"

if present "$python" && present "$user" && present "$bare"; then
	say "all images are present"
	exit 0
fi

mkdir -p "$cache"
exec 9>"$cache/lock"
flock 9
work=$(mktemp -d "$cache/work.XXXXXX")

# The architecture is the engine's, as Go names it.
arch=$(docker version --format '{{.Server.Arch}}')

# The Debian tree, without what no test reads: it is imported into the engine on every new machine.
debian_tar() {
	local tar mirror root deb_arch
	deb_arch=$(dpkg --print-architecture)
	[ "$deb_arch" = "$arch" ] || die "the engine runs on $arch and this machine is $deb_arch: debootstrap makes trees for its own machine only"
	tar=$cache/debian-$suite-$deb_arch-$(printf '%s' "$packages" | sha256sum | cut -c1-8)-1.tar
	if [ ! -s "$tar" ]; then
		[ "$(id -u)" = 0 ] || die "debootstrap needs root"
		command -v debootstrap >/dev/null || die "no debootstrap; install it (Debian: apt-get install debootstrap)"
		# The mirror that this machine's own apt uses; debootstrap's default where apt cannot say.
		# shellcheck disable=SC2016 # apt fills in $(SITE)
		mirror=$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' "Codename: $suite" 2>/dev/null | head -n 1 || true)
		root=$work/root
		say "debootstrap $suite with $packages"
		if ! debootstrap --variant=minbase --include="$packages" "$suite" "$root" ${mirror:+"$mirror"} >"$work/debootstrap.log" 2>&1; then
			tail -n 20 "$work/debootstrap.log" >&2
			die "debootstrap failed"
		fi
		rm -rf "$root"/var/cache/apt/* "$root"/var/lib/apt/lists/* "$root"/var/log/* \
			"$root"/usr/share/doc/* "$root"/usr/share/man/* "$root"/usr/share/locale/* "$root"/usr/share/info/*
		# /dev of the tree was for debootstrap; the engine makes its own.
		rm -rf "${root:?}"/dev/* "${root:?}"/proc/* "${root:?}"/sys/*
		rm -f "$root/etc/resolv.conf" "$root/etc/hostname"
		tar --numeric-owner --one-file-system --xattrs -C "$root" -cf "$work/debian.tar" .
		mv "$work/debian.tar" "$tar"
	fi
	printf '%s\n' "$tar"
}

if ! present "$python"; then
	tar=$(debian_tar)
	say "importing $python"
	docker import -c "LABEL $label=$key" -c 'CMD ["bash"]' "$tar" "$python" >/dev/null
fi

if ! present "$user"; then
	say "making $user"
	container=agentkernel-testimage-$$
	# A container and a commit instead of a build: this works on every engine, whatever builders it has.
	docker run --name "$container" --network none "$python" sh -ec '
		useradd --uid 1000 --create-home --shell /bin/sh agent
		mkdir -p /srv && echo "belongs to root" >/srv/README' >/dev/null
	docker commit \
		-c "LABEL $label=$key com.example.team=data" \
		-c 'USER agent' \
		-c 'WORKDIR /srv' \
		-c 'ENV FROM_IMAGE="set by the image" LANG=C.UTF-8 PATH=/opt/tools/bin:/usr/local/bin:/usr/bin:/bin' \
		-c 'ENTRYPOINT ["/usr/bin/env", "WRAPPED=1"]' \
		-c 'CMD ["sleep", "1"]' \
		-c 'EXPOSE 8080/tcp' \
		"$container" "$user" >/dev/null
	docker rm -f "$container" >/dev/null
	container=
fi

if ! present "$bare"; then
	say "importing $bare"
	mkdir -p "$work/bare/bin"
	env -u GOFLAGS GOOS=linux GOARCH="$arch" CGO_ENABLED=0 GO111MODULE=off \
		go build -trimpath -ldflags='-s -w' -o "$work/bare/bin/hello" "$here/bare/main.go"
	for name in exit cat env; do ln "$work/bare/bin/hello" "$work/bare/bin/$name"; done
	tar --numeric-owner --owner=0 --group=0 -C "$work/bare" -c . |
		docker import -c "LABEL $label=$key" -c 'CMD ["/bin/hello"]' - "$bare" >/dev/null
fi

# What an older key left behind without a name.
docker image prune --force --filter "label=$label" >/dev/null

say "ready: $python $user $bare"
