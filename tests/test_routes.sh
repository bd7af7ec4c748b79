#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# test_routes.sh BUILD [TEST] - the table of routes in README.md is what programs get.
root=$(cd "$(dirname "$0")/.." && pwd)

readme_says_which_routes_are_caught() { # BUILD
	wrong=
	"$root/tests/routes/run.sh" "$1" >"$out" && [ "$(wc -l <"$out")" -eq 11 ] || wrong=yes
	while IFS= read -r row; do
		grep -qxF "$row" "$root/README.md" && continue
		echo "not in README.md: $row"
		wrong=yes
	done <"$out"
	[ -z "$wrong" ]
}

answers_are_those_of_native_memory() { # BUILD
	FAKECUDA_DEVICES=2 "$root/tests/routes/codes.sh" "$1"
}

out=$(mktemp)
trap 'rm -f "$out"' EXIT
status=0
for name in readme_says_which_routes_are_caught answers_are_those_of_native_memory; do
	[ "${2:-$name}" = "$name" ] || continue
	case $1 in
	*-address | *-thread)
		echo "skipped: a sanitizer cannot be preloaded into programs without it"
		echo "skip $name"
		continue
		;;
	esac
	if "$name" "$1"; then
		echo "ok $name"
	else
		echo "FAIL $name"
		status=1
	fi
done
exit $status
