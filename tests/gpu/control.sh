#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# control.sh BUILD - the program stayput on a GPU: a CUDA C++ program with a static runtime
# and a PyTorch script, neither of which knows of stayput, are paused and resumed three times
# each from outside, and looked at meanwhile. Prints a table last and fails where a result is
# wrong or memory does not come back. Wants nvcc, and PyTorch for its part.
#
# BUILD holds stayput, both libraries, and a copy of libcjson.so.1 where the machine has none.
# $GIB (default 8) of each program. To $OUT: memory.csv, top.txt (a frame of top as the
# terminal had it), doctor.txt, show.txt, metrics.prom, ps.txt.
set -u
build=$(cd "$1" && pwd) || exit
root=$(cd "$(dirname "$0")/../.." && pwd)
cuda=${CUDA_HOME:-/usr/local/cuda}
gib=${GIB:-8}
out=${OUT:-$(mktemp -d)}
mkdir -p "$out"
work=$(mktemp -d)
stayput=$build/stayput
export LD_LIBRARY_PATH="$build:$cuda/lib64:$cuda/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
export XDG_RUNTIME_DIR=$work STAYPUT_SOCKETS=$work/stayput
started=()
failed=
trap 'for pid in "${started[@]}"; do kill "$pid" 2>/dev/null; done; rm -rf "$work"' EXIT

wrong() {
	echo "WRONG: $*"
	failed=yes
}

free_mib() {
	nvidia-smi -i 0 --query-gpu=memory.free --format=csv,noheader,nounits
}

# Of all processes that nvidia-smi shows on GPU 0; in a container it may show none.
smi() {
	nvidia-smi -i 0 --query-compute-apps=pid,used_memory --format=csv,noheader |
		tr '\n' ';'
}

# start NAME COMMAND... - with $NAME_to, $NAME_from and $NAME_pid; waits for "ready".
start() {
	local name=$1 to from
	shift
	mkfifo "$work/$name.to" "$work/$name.from"
	"$stayput" run --deep --default engine -- "$@" <"$work/$name.to" >"$work/$name.from" &
	started+=($!)
	declare -g "${name}_pid=$!"
	exec {to}>"$work/$name.to" {from}<"$work/$name.from"
	declare -g "${name}_to=$to" "${name}_from=$from"
	expect "$name" ready
}

expect() { # NAME LINE
	local from=${1}_from line=
	read -r -t 60 line <&"${!from}"
	[ "$line" = "$2" ] || wrong "$1 said \"$line\", not \"$2\""
}

verify() { # NAME
	local to=${1}_to
	echo verify >&"${!to}"
	expect "$1" right
}

# One line of the table a cycle; free memory of the device in MiB.
cycle() { # NAME NUMBER
	local pid=${1}_pid before paused after pause resume
	pid=${!pid}
	before=$(free_mib)
	pause=$("$stayput" pause --check "$pid") || wrong "pause of $1: $?"
	paused=$(free_mib)
	[ "$2" -ne 2 ] || { echo "while paused: $(smi)"; look "$1-paused"; }
	resume=$("$stayput" resume "$pid" --wait 5) || wrong "resume of $1: $?"
	after=$(free_mib)
	verify "$1"
	[ $((paused - before)) -ge $((gib * 1000)) ] || wrong "$1: $before to $paused MiB free"
	[ $((before - after)) -le 64 ] && [ $((after - before)) -le 64 ] ||
		wrong "$1: $before before, $after MiB free after"
	printf '%-6s %5s %9s %9s %9s  %s | %s\n' "$1" "$2" "$before" "$paused" "$after" \
		"${pause#*: }" "${resume#*: }" >>"$work/table"
}

# What the program shows of this moment.
look() { # NAME
	"$stayput" ps | tee -a "$out/ps.txt"
	# shellcheck disable=SC2046 # a word a pid
	"$stayput" show $("$stayput" ps --json | grep -o '"pid":[0-9]*' | cut -d: -f2) \
		>"$out/show-$1.txt" || wrong "show: $?"
}

echo "== doctor"
"$stayput" doctor | tee "$out/doctor.txt"
[ "${PIPESTATUS[0]}" -eq 0 ] || wrong "doctor found something bad"

echo "== start"
"$cuda/bin/nvcc" -arch=native -cudart static -o "$work/steady" "$root/tests/gpu/steady.cu" ||
	exit
start cpp "$work/steady" "$gib"
programs=cpp
if python3 -c 'import torch' 2>/dev/null; then
	start torch python3 "$root/tests/gpu/steady.py" "$gib"
	programs="cpp torch"
else
	echo "no PyTorch here: only the C++ program"
fi
pids=$(for name in $programs; do pid=${name}_pid; echo "${!pid}"; done)
echo "before: $(smi)"
# shellcheck disable=SC2086 # a word a pid
"$stayput" record --out "$out/memory.csv" --interval-ms 20 $pids &
recorder=$!
started+=("$recorder")
look before
# `script` gives top a terminal; its input ends at once, so it is told how long to go on.
if command -v script >/dev/null; then
	TERM=xterm script -qfec "stty cols 120 rows 30; exec $stayput top --interval-ms 200 \
		--count 15" "$out/top.txt" >/dev/null </dev/null &
	top=$!
fi

echo "== cycles"
for n in 1 2 3; do
	for name in $programs; do
		cycle "$name" "$n"
	done
done
# All at once, their copies side by side.
"$stayput" pause --all --json >"$out/pause-all.json" || wrong "pause --all: $?"
look all-paused
"$stayput" metrics --all >"$out/metrics.prom" || wrong "metrics: $?"
"$stayput" resume --all || wrong "resume --all: $?"
for name in $programs; do
	verify "$name"
done
look after
[ -z "${top-}" ] || wait "$top" || wrong "top: $?"
kill -TERM "$recorder"
wait "$recorder" || wrong "record: $?"

echo "== results"
echo "after: $(smi)"
echo "rows recorded: $(wc -l <"$out/memory.csv"), of them paused: $(grep -c ,paused, "$out/memory.csv")"
echo "program cycle free MiB: before, paused, after; pause | resume"
cat "$work/table"
echo "failed: ${failed:-none}"
[ -z "$failed" ]
