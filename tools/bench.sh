#!/usr/bin/env bash
# Runs the benchmarks and closes with a table of what they report besides time: ratios, sizes, counts of calls.
#
#   tools/bench.sh PATTERN [packages]
#
# A benchmark reports a metric with b.ReportMetric(value, "x/y-ratio"), and the most that it may be, if there is such
# a goal, with b.ReportMetric(goal, "goal:x/y-ratio"). A missed goal is told and fails nothing: a machine that others
# use too proves no slowness.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=tools/lib.sh
. tools/lib.sh

pattern=${1:?usage: tools/bench.sh PATTERN [packages]}
shift
temp=$(mktemp -d)
trap 'rm -rf "$temp"' EXIT
clean_terraform_environment "$temp"
if cli=$(find_terraform) && [ -n "$cli" ]; then
	export TF_ACC_TERRAFORM_PATH=$cli
fi

# One package at a time: two benchmarks that share two cores measure each other.
status=0
go test -p 1 -run '^$' -bench "$pattern" -timeout 60m "${@:-./...}" 2>&1 | tee "$temp/out" |
	grep -vE '^(PASS$|ok .*\[no tests to run\]|\?|ok )' || status=${PIPESTATUS[0]}

awk '
	/^Benchmark/ {
		for (i = 3; i < NF; i += 2) {
			unit = $(i + 1)
			if (unit ~ /^(ns\/op|B\/op|allocs\/op|MB\/s)$/) continue
			if (unit ~ /^goal:/) { goal[$1, substr(unit, 6)] = $i; continue }
			n++; name[n] = $1; units[n] = unit; value[n] = $i
		}
	}
	END {
		if (n == 0) { print "\nno benchmark reported a ratio"; exit }
		printf "\n%-52s %12s  %-22s %10s\n", "benchmark", "value", "unit", "goal"
		for (i = 1; i <= n; i++) {
			verdict = "-"
			if ((name[i], units[i]) in goal) {
				most = goal[name[i], units[i]]
				verdict = "<= " most (value[i] + 0 <= most + 0 ? " met" : " MISSED")
			}
			printf "%-52s %12s  %-22s %10s\n", name[i], value[i], units[i], verdict
		}
	}
' "$temp/out"
exit "$status"
