#!/usr/bin/env bash
# Builds the provider and shows it at work: applies examples/demo on what this machine offers, prints the summary that
# the job computed, shows a profile that is refused in the plan, destroys everything and proves from real listings that
# nothing is left. `make demo` runs it. It needs Go and Terraform or OpenTofu; everything it makes is in a temporary
# directory of its own.
#
#   AGENTKERNEL_DEMO_IMAGE  an image with python3 for the run on Docker; without it one that is there is taken
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
# shellcheck source=tools/lib.sh
. "$root/tools/lib.sh"

say() { printf 'demo: %s\n' "$*"; }
die() {
	say "$*" >&2
	exit 1
}

# With root as the user, bubblewrap sandboxes run under a user of their own, who must be able to enter the directory.
work=$(mktemp -d "${TMPDIR:-/tmp}/agentkernel-demo.XXXXXX")
chmod 755 "$work"
data=$work/data
name=demo-$$-$RANDOM
to_destroy=()

finish() {
	local status=$? dir
	trap - EXIT INT TERM
	# What failed half-way is taken down as well as possible.
	for dir in ${to_destroy[@]+"${to_destroy[@]}"}; do
		say "cleaning up after a failure: $(basename "$dir")" >&2
		(cd "$dir" && "$cli" destroy -auto-approve -no-color >>"$work/log" 2>&1) || tail -n 30 "$work/log" >&2
	done
	rm -rf "$work"
	exit "$status"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

clean_terraform_environment "$work"
cli=$(find_terraform)
[ -n "$cli" ] || die "neither terraform nor tofu is on the PATH; put one there, or set TF_ACC_TERRAFORM_PATH"
command -v go >/dev/null || die "no go on the PATH"

# --- What exists before. Only what appears from here on can be ours.

# Processes of the run helper and of bubblewrap, as "pid:start time" because pids are used again.
list_processes() {
	local dir pid exe comm stat
	for dir in /proc/[0-9]*; do
		pid=${dir#/proc/}
		comm=$(cat "$dir/comm" 2>/dev/null) || continue
		exe=$(readlink "$dir/exe" 2>/dev/null) || exe=
		[[ $comm =~ ^(akrun|bwrap) || ${exe##*/} =~ ^(memfd:)?(akrun|bwrap) ]] || continue
		stat=$(cat "$dir/stat" 2>/dev/null) || continue
		# Field 22, counted behind the name in parentheses, is the start time.
		stat=${stat##*) }
		# shellcheck disable=SC2086 # the fields are meant to be split
		set -- $stat
		# A process that has ended and waits for its parent runs nothing.
		[ "$1" = Z ] || printf '%s:%s\n' "$pid" "${20}"
	done | sort
}
engine=
list_containers() {
	[ -z "$engine" ] || docker ps -aq --no-trunc --filter label=agentkernel.io/managed=true | sort
}
list_volumes() {
	[ -z "$engine" ] || docker volume ls -q --filter label=agentkernel.io/managed=true | sort
}
list_workspaces() {
	[ ! -d "$data" ] || find "$data" -mindepth 2 -maxdepth 2 -type d | sort
}
if engine_answers; then engine=1; fi
list_processes >"$work/processes.before"
list_containers >"$work/containers.before"
list_volumes >"$work/volumes.before"

# --- Build, and tell Terraform to take this build. The CLI configuration is this script's own.

say "building the provider"
mkdir "$work/bin"
(cd "$root" && go build -o "$work/bin/terraform-provider-agentkernel" .)
cat >"$work/demo.tfrc" <<TFRC
provider_installation {
  dev_overrides {
    "agentkernel/agentkernel" = "$work/bin"
  }
  direct {}
}
TFRC
export TF_CLI_CONFIG_FILE=$work/demo.tfrc

# run LOG-TITLE COMMAND... keeps the output for the case that it fails.
run() {
	local title=$1
	shift
	if ! "$@" >"$work/log" 2>&1; then
		cat "$work/log" >&2
		die "$title failed"
	fi
}

# job TYPE [NAME=VALUE ...] applies the example in a directory of its own and shows its result.
job() {
	local type=$1 dir=$work/$1
	shift
	local status=0 variable
	mkdir "$dir"
	cp "$here"/main.tf "$here"/job.py "$here"/orders.csv "$dir/"
	# In a file, so that every command takes the same values, the destroy after a failure, too.
	for variable in "type=$type" "name=$name" "data_dir=$data" "$@"; do
		printf '%s = "%s"\n' "${variable%%=*}" "${variable#*=}"
	done >"$dir/terraform.tfvars"
	cd "$dir"
	to_destroy+=("$dir")
	say "$type: apply"
	run "$type: apply" "$cli" apply -auto-approve -no-color
	grep -E '^Apply complete' "$work/log" || true
	say "$type: isolation $("$cli" output -raw isolation), the summary:"
	"$cli" output -json summary | python_json

	"$cli" plan -detailed-exitcode -no-color >"$work/log" 2>&1 || status=$?
	if [ "$status" != 0 ]; then
		cat "$work/log" >&2
		die "$type: the plan after the apply is not empty"
	fi
	say "$type: the plan after the apply is empty"
	cd "$here"
}

# Indents JSON where Python is here, and prints it as it is elsewhere.
python_json() {
	if command -v python3 >/dev/null; then python3 -m json.tool; else cat && echo; fi
}

destroy() {
	local type=$1 dir=$work/$1 kept=() entry
	cd "$dir"
	run "$type: destroy" "$cli" destroy -auto-approve -no-color
	grep -E '^Destroy complete' "$work/log" || true
	for entry in ${to_destroy[@]+"${to_destroy[@]}"}; do [ "$entry" = "$dir" ] || kept+=("$entry"); done
	to_destroy=(${kept[@]+"${kept[@]}"})
	cd "$here"
}

# --- The job, on this machine and on Docker.

types=()
if reason=$(cd "$root" && go run ./internal/testenv/cmd/parts bubblewrap 2>&1); then
	types+=(bubblewrap)
	job bubblewrap
else
	say "bubblewrap does not work here, so a plain local process runs the job: $(printf '%s' "$reason" | head -n 1)"
	types+=(local_subprocess)
	# Nothing keeps a local process from the network, and the provider refuses to pretend.
	job local_subprocess network_egress=allow
fi

if [ -n "$engine" ]; then
	image=${AGENTKERNEL_DEMO_IMAGE:-}
	if [ -z "$image" ]; then
		image=$(docker image ls --format '{{.Repository}}:{{.Tag}}' | grep -E '^(agentkernel-test/python:1|python:3[^ ]*)$' | head -n 1 || true)
	fi
	if [ -n "$image" ]; then
		types+=(docker)
		job docker "docker_image=$image"
	else
		say "docker: an engine answers but has no image with Python; make one with tools/testimages/build.sh, or set AGENTKERNEL_DEMO_IMAGE"
	fi
else
	say "docker: no engine answers; start one (tools/dockerd.sh up) to see the job run there, too"
fi

# --- A profile that asks for more than its backend can enforce.

mkdir "$work/refused"
cp "$here"/refused/main.tf "$work/refused/"
cd "$work/refused"
say "a profile that cannot be enforced, at plan:"
if "$cli" plan -no-color >"$work/log" 2>&1; then
	cat "$work/log" >&2
	die "the plan of examples/demo/refused succeeded; it must be refused"
fi
grep -q 'AK2001' "$work/log" || {
	cat "$work/log" >&2
	die "the refusal does not carry the code AK2001"
}
sed -n '/Error: /,$p' "$work/log"
cd "$here"

# --- Destroy, and count what is left.

for type in "${types[@]}"; do
	say "$type: destroy"
	destroy "$type"
done

# left KIND prints what appeared since the start and is still there. What appears after the destroy is not ours, and
# what is ours may take a moment to end: a list that only shrinks is looked at until it is empty or 10 s are over.
left() {
	local kind=$1 list=$work/$1.left until=$((SECONDS + 10))
	"list_$kind" | comm -13 "$work/$kind.before" - >"$list"
	while [ -s "$list" ] && [ "$SECONDS" -lt "$until" ]; do
		sleep 0.5
		"list_$kind" | comm -12 "$list" - >"$list.now"
		mv "$list.now" "$list"
	done
	if [ "$kind" = containers ] || [ "$kind" = volumes ]; then not_others "$kind"; fi
	wc -l <"$list" | tr -d ' '
}

# not_others KIND drops what carries the name of somebody else's sandbox, or a volume that another container uses.
not_others() {
	local kind=$1 list=$work/$1.left id theirs
	while read -r id; do
		if [ "$kind" = containers ]; then
			theirs=$(docker inspect --format '{{index .Config.Labels "agentkernel.io/name"}}' "$id" 2>/dev/null) || continue
		else
			theirs=$(docker volume inspect --format '{{index .Labels "agentkernel.io/name"}}' "$id" 2>/dev/null) || continue
			[ -z "$(docker ps -aq --filter "volume=$id")" ] || continue
		fi
		if [ -z "$theirs" ] || [ "$theirs" = "$name" ] || [ "$theirs" = '<no value>' ]; then echo "$id"; fi
	done <"$list" >"$list.ours"
	mv "$list.ours" "$list"
}

: >"$work/workspaces.before"
processes=$(left processes)
containers=$(left containers)
workspaces=$(left workspaces)
volumes=$(left volumes)
counts="processes $processes, containers $containers, workspaces $workspaces, volumes $volumes"
if [ "$((processes + containers + workspaces + volumes))" != 0 ]; then
	for kind in processes containers workspaces volumes; do
		sed "s/^/  $kind: /" "$work/$kind.left" >&2
	done
	die "left behind ($counts)"
fi
say "nothing left ($counts)"
