#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# run.sh BUILD [TEST] - runs the test programs BUILD/test_* on the fake driver, and
# check_elf.sh on the libraries, as many at once as there are cores. Prints each test's name
# with ok, FAIL or skip, what a failed one said, and in the last line how many there were.
# With TEST, that test alone, from whichever program has it. Logs stay in BUILD/log.
set -u
here=$(cd "$(dirname "$0")" && pwd)

# A program prints "ok NAME", "FAIL NAME ..." or "skip NAME" after what the test itself
# had to say: shown for failures, and of skips the reason.
digest() { # PROGRAM STATUS LOG
	awk '
		/^(ok|FAIL|skip) / {
			if ($1 == "FAIL") {
				printf "%s", said
				$0 = $0 " in " program
			}
			if ($1 == "skip" && reason)
				$0 = $0 ": " reason
			print
			said = reason = ""
			next
		}
		{ said = said "    " $0 "\n" }
		sub(/^skipped: /, "") { reason = $0 }
		END { if (status) printf "%s", said }
	' program="$1" status="$2" "$3"
}

# What comes to an end without naming a failed test is a failure by itself.
account() { # PROGRAM STATUS LOG
	if [ "$2" -ne 0 ] && ! grep -q '^FAIL ' "$3"; then
		echo "FAIL the rest (status $2)" >>"$3"
	elif [ "$2" -eq 0 ] && ! grep -Eq '^(ok|FAIL|skip) ' "$3"; then
		echo "FAIL everything (no test was run)" >>"$3"
	fi
}

run_elf() { # PROGRAM
	if [ "$1" != check_elf ]; then
		sh "$here/check_elf.sh" "$build/libstayput-${1#check_elf_}.so" \
			"$build/stayput-${1#check_elf_}.map" "$build"/*.o
	else
		sh "$here/check_elf.sh" "$build/libstayput.so" \
			"$here/../src/stayput.map" "$build"/*.o
	fi
}

# One program, or a check_elf; called by name from below.
run_one() { # PROGRAM [TEST]
	log=$build/log/$1
	if [ "${1#check_elf}" != "$1" ]; then
		run_elf "$1" >"$log" 2>&1
		rc=$?
		if [ $# -eq 2 ]; then
			# It has no argument for a single check.
			sed -i "/^\(ok\|FAIL\) /{/ $2\$/!d}" "$log"
			rc=0
		fi
	else
		# Tests that catch their own standard error would hide what a sanitizer
		# has to say.
		ASAN_OPTIONS="log_path=$log.sanitizer:${ASAN_OPTIONS-}" \
			TSAN_OPTIONS="log_path=$log.sanitizer:${TSAN_OPTIONS-}" \
			timeout 900 "$build/$1" ${2:+"$2"} >"$log" 2>&1
		rc=$?
	fi
	if [ $# -eq 2 ] && ! grep -Eq "^(ok|FAIL|skip) $2( |\$)" "$log"; then
		rm "$log"
		return
	fi
	account "$1" "$rc" "$log"
	digest "$1" "$rc" "$log" >"$log.digest"
	[ "$rc" -eq 0 ] ||
		cat "$log".sanitizer.* 2>/dev/null | sed 's/^/    /' >>"$log.digest"
	cat "$log.digest"
}

if [ "$1" = --one ]; then
	shift
	run_one "$@"
	exit
fi

build=$(cd "$1" && pwd) || exit
export build
LD_LIBRARY_PATH=$build/fake${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export LD_LIBRARY_PATH

rm -rf "$build/log"
mkdir "$build/log"
programs="check_elf check_elf_deep check_elf_tms"
for program in "$build"/test_*; do
	[ -x "$program" ] && [ -f "$program" ] && programs="$programs ${program##*/}"
done
# shellcheck disable=SC2086 # names without spaces
printf '%s\n' $programs | xargs -P "$(nproc)" -I{} "$0" --one {} ${2:+"$2"}

count() {
	cat "$build"/log/*.digest 2>/dev/null | grep -c "^$1 "
}
passed=$(count ok)
failed=$(count FAIL)
skipped=$(count skip)
[ $# -eq 1 ] || [ $((passed + failed + skipped)) -gt 0 ] || echo "no test is named $2"
if [ "$skipped" -gt 0 ]; then
	echo "$passed passed, $failed failed, $skipped skipped"
else
	echo "$passed passed, $failed failed"
fi
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
