# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2154
# What the tests of the program share. A test is a function that is named in $tests and
# ends with the first command that fails; each has a folder of its own, where it begins,
# and sees no processes but those that listen there. Run as build/test_cli_NAME [TEST].
set -u
build=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$(dirname "$(readlink -f "$0")")/../.." && pwd)
programs=$build/cli-tests
stayput=$build/stayput
unset LD_PRELOAD "${!STAYPUT_@}" XDG_RUNTIME_DIR
export LD_LIBRARY_PATH=$build/fake${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}

# Under a sanitizer its runtime has to come before what stayput adds. It is for programs of
# the build alone; what they leak at a kill is nobody's concern here.
sanitizer=
if ldd "$stayput" | grep -q libasan; then
	sanitizer=$(${CC:-cc} -print-file-name=libasan.so)
elif ldd "$stayput" | grep -q libtsan; then
	sanitizer=$(${CC:-cc} -print-file-name=libtsan.so)
fi
export ASAN_OPTIONS=detect_leaks=0

# Says why, and ends the test.
fail() {
	echo "$*" >&2
	exit 1
}

# For tests that run programs of the system under the library, which a sanitizer's runtime
# would have to come before.
needs_plain_build() {
	[ -z "$sanitizer" ] || { echo "skipped: a build with a sanitizer"; exit 77; }
}

# equal GOT WANT
equal() {
	[ "$1" = "$2" ] || fail "got \"$1\", want \"$2\""
}

# has TEXT PART
has() {
	[[ $1 == *"$2"* ]] || fail "\"$1\" lacks \"$2\""
}

# lacks TEXT PART
lacks() {
	[[ $1 != *"$2"* ]] || fail "\"$1\" has \"$2\""
}

# Runs a command; its output is $output, what it says on standard error $errors.
# exits CODE COMMAND...
exits() {
	local want=$1 got=0
	shift
	"$@" >stdout.txt 2>stderr.txt || got=$?
	output=$(<stdout.txt)
	errors=$(<stderr.txt)
	[ "$got" -eq "$want" ] ||
		fail "$* exited $got, want $want; said \"$output\" \"$errors\""
}

# The value of a Python expression over `data`, JSON that $output holds.
json() {
	python3 -c 'import json, sys
data = json.loads(sys.argv[1])
print(eval(sys.argv[2]))' "$output" "$1"
}

started=()

# start NAME COMMAND... - runs it with $NAME_to and $NAME_from as file descriptors of its
# standard input and output, and $NAME_pid.
start() {
	local name=$1 in out
	shift
	mkfifo "$name.in" "$name.out"
	LD_PRELOAD=$sanitizer "$@" <"$name.in" >"$name.out" 2>"$name.err" &
	started+=($!)
	declare -g "${name}_pid=$!"
	exec {in}>"$name.in" {out}<"$name.out"
	declare -g "${name}_to=$in" "${name}_from=$out"
}

# Standard input of what start() has started.
tell() { # NAME LINE
	local to=${1}_to
	echo "$2" >&"${!to}"
}

# The next line must be that.
expect() { # NAME LINE
	local from=${1}_from line=
	read -r -t 50 line <&"${!from}" || fail "$1 says nothing more: $(cat "$1.err")"
	equal "$line" "$2"
}

# An unmodified program with a table of 9 MiB: start_steady NAME static|shared OPTIONS...
start_steady() {
	local name=$1 kind=$2
	shift 2
	start "$name" "$stayput" run "$@" -- "$programs/steady_$kind"
	expect "$name" ready
}

# Asks it whether its table is right.
verify() { # NAME
	tell "$1" verify
	expect "$1" right
}

# start_standin NAME ANSWERS - see standin.py; requests go to NAME.log.
start_standin() {
	echo "$2" >"$1.json"
	LD_PRELOAD='' start "$1" python3 "$root/tests/cli/standin.py" "$STAYPUT_SOCKETS" \
		"$1.json" "$1.log"
	expect "$1" ready
}

stop_all() {
	local pid
	for pid in "${started[@]}"; do
		kill -9 "$pid" 2>/dev/null
		wait "$pid" 2>/dev/null
	done
}

run_test() ( # NAME
	set -eE
	folder=$(mktemp -d)
	trap 'code=$?; set +e; trap - ERR; stop_all; rm -rf "$folder"; exit $code' EXIT
	trap 'echo "${BASH_SOURCE[0]##*/}:$LINENO: $BASH_COMMAND" >&2' ERR
	cd "$folder"
	export TMPDIR=$folder XDG_RUNTIME_DIR=$folder STAYPUT_SOCKETS=$folder/stayput
	"$1"
)

run_tests() { # [NAME]
	local test failed=0
	# shellcheck disable=SC2154 # set by whoever sources this
	for test in "${tests[@]}"; do
		[ -z "${1-}" ] || [ "$1" = "$test" ] || continue
		run_test "$test"
		case $? in
		0) echo "ok $test" ;;
		77) echo "skip $test" ;;
		*)
			echo "FAIL $test"
			failed=1
			;;
		esac
	done
	exit $failed
}
