#!/usr/bin/env bash
# Starts a Docker engine for the tests if none answers, and stops only an engine that it started itself.
#
#   tools/dockerd.sh up      start one unless one answers; returns when it answers
#   tools/dockerd.sh down    stop what `up` started; does nothing to any other engine
#   tools/dockerd.sh status  one line, exit 0 when an engine answers
#
# The engine uses its default data root and socket, because that is where every Docker client looks. What
# this script needs to find again (pid file, log) is in AGENTKERNEL_DOCKERD_DIR, by default in the temporary
# directory.
set -euo pipefail

dir=${AGENTKERNEL_DOCKERD_DIR:-${TMPDIR:-/tmp}/agentkernel-dockerd.$(id -u)}
pidfile=$dir/dockerd.pid
log=$dir/dockerd.log
wait_seconds=${AGENTKERNEL_DOCKERD_WAIT:-90}

say() { printf 'dockerd.sh: %s\n' "$*" >&2; }

# A client that hangs on a dead socket must not hang us.
answers() { timeout 10 docker version --format '{{.Server.Version}}' 2>/dev/null; }

# The pid from our own pid file, only while it really is a dockerd: pids are used again.
ours() {
	local pid
	[ -s "$pidfile" ] || return 1
	pid=$(cat "$pidfile")
	[[ $pid =~ ^[0-9]+$ ]] || return 1
	[ "$(cat "/proc/$pid/comm" 2>/dev/null)" = dockerd ] || return 1
	printf '%s\n' "$pid"
}

up() {
	local version pid deadline
	if version=$(answers); then
		say "engine $version answers already; nothing started"
		return 0
	fi
	if [ -n "${DOCKER_HOST:-}" ]; then
		say "DOCKER_HOST=$DOCKER_HOST does not answer, and an engine started here would not be found there; unset it or start that engine"
		return 1
	fi
	if ! command -v dockerd >/dev/null; then
		say "no dockerd on this machine; install one (Debian: apt-get install docker.io)"
		return 1
	fi
	if [ "$(id -u)" != 0 ]; then
		say "dockerd needs root; run this as root, or start the engine your own way"
		return 1
	fi
	mkdir -p "$dir"
	chmod 700 "$dir"
	if pid=$(ours); then
		say "an engine started here before (pid $pid) runs but does not answer; see $log, then: $0 down"
		return 1
	fi
	rm -f "$pidfile"
	# An engine that was killed leaves its own pid file behind, and the next one refuses to start while that
	# number happens to belong to any process.
	if [ -s /var/run/docker.pid ] && [ "$(cat "/proc/$(cat /var/run/docker.pid)/comm" 2>/dev/null)" != dockerd ]; then
		rm -f /var/run/docker.pid
	fi
	# A session of its own: the interrupt that ends the caller must not reach the engine before `down` does.
	setsid dockerd >"$log" 2>&1 </dev/null &
	echo $! >"$pidfile"
	deadline=$((SECONDS + wait_seconds))
	until version=$(answers); do
		# A process that is still between fork and exec is not called dockerd yet.
		if ! ours >/dev/null && sleep 1 && ! ours >/dev/null; then
			say "the engine ended while starting; the end of $log:"
			tail -n 20 "$log" >&2 || true
			rm -f "$pidfile"
			return 1
		fi
		if [ "$SECONDS" -ge "$deadline" ]; then
			say "the engine does not answer after ${wait_seconds} s; the end of $log:"
			tail -n 20 "$log" >&2 || true
			down || true
			return 1
		fi
		sleep 0.3
	done
	say "engine $version started (pid $(ours), log $log)"
}

down() {
	local pid deadline
	if ! pid=$(ours); then
		say "no engine of ours runs; nothing to stop"
		rm -f "$pidfile"
		return 0
	fi
	# TERM lets the engine stop its containers and its containerd; both are gone when it is.
	kill -TERM "$pid"
	deadline=$((SECONDS + 60))
	while [ -d "/proc/$pid" ] && [ "$(ours || true)" = "$pid" ]; do
		if [ "$SECONDS" -ge "$deadline" ]; then
			say "engine $pid still runs 60 s after TERM; see $log"
			return 1
		fi
		sleep 0.3
	done
	rm -f "$pidfile"
	say "engine $pid stopped"
}

status() {
	local version pid
	if version=$(answers); then
		if pid=$(ours); then
			echo "engine $version answers, started here (pid $pid)"
		else
			echo "engine $version answers, not started here"
		fi
	else
		echo "no engine answers"
		return 1
	fi
}

case ${1:-} in
up) up ;;
down) down ;;
status) status ;;
*)
	echo "usage: $0 up|down|status" >&2
	exit 2
	;;
esac
