#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# test_routes.sh BUILD [TEST] - the table of routes in README.md is what programs get.
name=readme_says_which_routes_are_caught
[ "${2:-$name}" = "$name" ] || exit 1
root=$(cd "$(dirname "$0")/.." && pwd)
case $1 in
*-address | *-thread)
	echo "skipped: a sanitizer cannot be preloaded into programs without it"
	echo "skip $name"
	exit
	;;
esac
table=$(mktemp)
trap 'rm -f "$table"' EXIT
wrong=yes
"$root/tests/routes/run.sh" "$1" >"$table" && [ "$(wc -l <"$table")" -eq 11 ] && wrong=
while IFS= read -r row; do
	grep -qxF "$row" "$root/README.md" && continue
	echo "not in README.md: $row"
	wrong=yes
done <"$table"
if [ "$wrong" ]; then
	echo "FAIL $name"
	exit 1
fi
echo "ok $name"
