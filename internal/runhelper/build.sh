#!/bin/sh
# Builds bin/akrun-linux-{amd64,arm64} from src/. With --check it builds into a temporary directory and
# compares: exit 1 when a committed binary differs. The build uses no library and no system header, so its
# output depends on the compiler and binutils alone: Debian 12, gcc 12.2.0, binutils 2.40.
set -eu
cd "$(dirname "$0")"

out=bin
check=
case "${1-}" in
'') ;;
--check)
	check=1
	out=$(mktemp -d)
	trap 'rm -rf "$out"' EXIT
	;;
*)
	echo "usage: $0 [--check]" >&2
	exit 2
	;;
esac

sources='src/main.c src/lib.c src/frames.c src/proc.c src/oom.c src/child.c src/run.c src/file.c src/guard.c src/init.c src/dial.c'
flags='-std=gnu11 -Os -nostdlib -static -ffreestanding -fno-pie -no-pie -fno-stack-protector
 -fno-asynchronous-unwind-tables -fno-unwind-tables -fno-tree-loop-distribute-patterns -fno-ident -fno-common
 -ffunction-sections -fdata-sections -Wall -Wextra -Werror -Wshadow -Wno-unused-parameter
 -Wl,--build-id=none -Wl,--gc-sections -Wl,-z,noseparate-code -Wl,-z,noexecstack -Wl,-z,norelro'

build() { # arch compiler strip extra...
	arch=$1 cc=$2 strip=$3
	shift 3
	command -v "$cc" >/dev/null || {
		echo "$0: $cc is needed (apt-get install gcc gcc-aarch64-linux-gnu)" >&2
		exit 2
	}
	# shellcheck disable=SC2086 # the lists are meant to be split
	LC_ALL=C SOURCE_DATE_EPOCH=0 "$cc" $flags "$@" -o "$out/akrun-linux-$arch" $sources
	"$strip" --strip-all --remove-section=.comment --remove-section=.note.gnu.property "$out/akrun-linux-$arch"
	chmod 0755 "$out/akrun-linux-$arch"
}

[ "$(uname -m)" = x86_64 ] && native=gcc nativestrip=strip ||
	native=x86_64-linux-gnu-gcc nativestrip=x86_64-linux-gnu-strip
build amd64 "$native" "$nativestrip" -march=x86-64 -mno-red-zone -fcf-protection=none
build arm64 aarch64-linux-gnu-gcc aarch64-linux-gnu-strip -march=armv8-a -mno-outline-atomics

if [ -n "$check" ]; then
	status=0
	for arch in amd64 arm64; do
		if cmp -s "bin/akrun-linux-$arch" "$out/akrun-linux-$arch"; then
			echo "akrun-linux-$arch: as committed"
		else
			echo "akrun-linux-$arch: differs from what src/ builds ($(gcc --version | head -n 1))" >&2
			status=1
		fi
	done
	exit $status
fi
