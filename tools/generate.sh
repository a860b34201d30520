#!/usr/bin/env bash
# Writes docs/ and the capability tables in it and in README.md from what the provider declares: its schemas, examples/
# and templates/, and the capabilities of its backends. With --check it only says what would change.
#
# The schemas come from the provider itself and not from a Terraform program: older ones do not print actions and list
# resources.
set -euo pipefail
cd "$(dirname "$0")/.."

check=
case ${1:-} in
'') ;;
--check) check=1 ;;
*)
	echo "usage: $0 [--check]" >&2
	exit 2
	;;
esac

temp=$(mktemp -d)
trap 'rm -rf "$temp"' EXIT
tfplugindocs=$(tools/build-tool.sh tfplugindocs)

# A copy of what the documentation is made from, so that a check changes nothing here and nothing that is no input,
# such as a state file under examples/, gets in.
mkdir "$temp/tree"
inputs=(examples templates README.md)
[ -d docs ] && inputs+=(docs)
git ls-files -z --cached --others --exclude-standard -- "${inputs[@]}" |
	while IFS= read -r -d '' file; do
		# A file that is deleted here and not yet in git is still listed.
		if [ -e "$file" ]; then printf '%s\0' "$file"; fi
	done | tar --null -T - -c | tar -x -C "$temp/tree"
# tfplugindocs takes the directory's Go module as proof that it is a provider.
cp go.mod "$temp/tree/"

go run ./internal/cmd/providerschema >"$temp/schema.json"
"$tfplugindocs" generate --provider-dir "$temp/tree" --provider-name agentkernel \
	--rendered-provider-name 'Agent Kernel' --providers-schema "$temp/schema.json" >"$temp/log" 2>&1 || {
	cat "$temp/log" >&2
	exit 1
}
go run ./internal/cmd/capabilitytable "$temp/tree/README.md" "$temp/tree/docs"
# What the registry would say of the pages. It knows no docs/adr, which is not for it.
mkdir "$temp/pages"
cp -r "$temp/tree/docs" "$temp/tree/go.mod" "$temp/pages/"
rm -rf "$temp/pages/docs/adr"
"$tfplugindocs" validate --provider-dir "$temp/pages" --provider-name agentkernel --providers-schema "$temp/schema.json" >"$temp/log" 2>&1 || {
	cat "$temp/log" >&2
	exit 1
}

status=0
for name in docs README.md; do
	[ -e "$temp/tree/$name" ] || continue
	if [ -n "$check" ]; then
		diff -ruN --exclude=adr "$name" "$temp/tree/$name" || {
			echo "generate.sh: $name is stale; run make generate and commit the result" >&2
			status=1
		}
	else
		if [ "$name" = docs ]; then
			# docs/adr is written by hand; the rest is made here and may have to go.
			mkdir -p docs
			find docs -mindepth 1 -maxdepth 1 ! -name adr -exec rm -rf {} +
			find "$temp/tree/docs" -mindepth 1 -maxdepth 1 ! -name adr -exec cp -r {} docs/ \;
		else
			cp "$temp/tree/$name" "$name"
		fi
	fi
done
exit "$status"
