#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# top, record and doctor on the fake driver.
. "$(dirname "$(readlink -f "$0")")/lib.sh"

# terminal COLUMNS ROWS STEPS COMMAND...
terminal() {
	python3 "$root/tests/cli/terminal.py" "$@"
}

# What is on the second screen after the last frame began.
last_frame() {
	python3 -c 'import re, sys
frame = sys.argv[1].split("\x1b[H")[-1].split("\x1b[?25h")[0]
print(re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\r", "", frame))' "$output"
}

top_shows_processes_and_regions_until_q() {
	export FAKECUDA_SHARE=$PWD/share
	start_steady a shared --default kv_cache
	exits 0 "$stayput" pause "$a_pid"
	exits 0 terminal 120 30 "see=kv_cache,see=kv_cache,key=q" \
		"$stayput" top --interval-ms 100
	has "$output" $'\e[?1049h\e[?25l'
	has "$output" $'\e[?25h\e[?1049l'
	has "$(last_frame)" "GPU 0  [........................]"
	has "$(last_frame)" "paused     0 B  9.00 MiB"
	has "$(last_frame)" "  kv_cache  "
}

top_gives_the_terminal_back_after_signals() {
	for signal in 2 15; do
		exits 0 terminal 80 24 "see=COMMAND,signal=$signal" "$stayput" top
		has "$output" $'\e[?25h\e[?1049l'
	done
}

top_follows_the_window() {
	start_steady a shared --default kv_cache
	exits 0 terminal 100 30 "see=kv_cache,size=44x4,see=stayput top,see=[J,key=q" \
		"$stayput" top --interval-ms 60000
	last_frame >frame.txt
	[ "$(wc -l <frame.txt)" -le 4 ] || fail "$(cat frame.txt)"
	[ "$(wc -L <frame.txt)" -le 44 ] || fail "$(cat frame.txt)"
}

top_counts_frames_and_is_plain_without_a_terminal() {
	start_steady a shared --default kv_cache
	exits 0 "$stayput" top --count 2 --interval-ms 100
	equal "$(grep -c '^stayput top' stdout.txt)" 2
	equal "$(grep -c kv_cache stdout.txt)" 2
	lacks "$output" $'\e'
	exits 2 "$stayput" top --interval-ms 5
	exits 2 "$stayput" top 4711
}

# Checks the file's form and prints what an expression over its rows is.
csv() { # FILE EXPRESSION
	python3 -c 'import csv, sys
with open(sys.argv[1], newline="") as file:
    rows = list(csv.DictReader(file))
assert list(rows[0]) == ["seconds", "pid", "source", "name", "state", "bytes_active",
    "bytes_paused", "bytes_kept", "bytes_device", "bytes_backup"], rows[0]
times = [float(r["seconds"]) for r in rows]
assert times == sorted(times)
assert {r["source"] for r in rows} <= {"region", "host", "process", "gpu"}
assert all(None not in r and None not in r.values() for r in rows)
print(eval(sys.argv[2]))' "$@"
}

# Waits for a line of the recording, which is being written, that has both texts.
wait_for_row() { # FILE TEXT TEXT
	python3 -c 'import sys, time
for _ in range(5000):
    with open(sys.argv[1]) as file:
        if any(sys.argv[2] in line and sys.argv[3] in line for line in file):
            break
    time.sleep(0.01)
else:
    sys.exit("never recorded: " + sys.argv[2])' "$@"
}

record_follows_a_process_to_its_end() {
	export FAKECUDA_SHARE=$PWD/share
	start_steady a shared --default engine
	"$stayput" record --out rows.csv --interval-ms 10 "$a_pid" &
	local recorder=$!
	started+=("$recorder")
	wait_for_row rows.csv region,engine,active ,
	exits 0 "$stayput" pause "$a_pid"
	wait_for_row rows.csv region,engine,paused ,
	exits 0 "$stayput" resume "$a_pid"
	tell a quit
	wait "$a_pid"
	wait "$recorder"
	equal "$(csv rows.csv '[s for i, s in enumerate([r["state"] for r in rows
		if r["source"] == "region"]) if s == "paused"][0]')" paused
	equal "$(csv rows.csv 'max(int(r["bytes_active"]) for r in rows
		if r["source"] == "region")')" $((9 << 20))
	equal "$(csv rows.csv 'any(int(r["bytes_backup"]) for r in rows
		if r["source"] == "host")')" True
	# By NVML: less while it is paused.
	equal "$(csv rows.csv 'len({r["bytes_device"] for r in rows
		if r["source"] == "process"}) > 1')" True
	equal "$(csv rows.csv 'any(r["source"] == "gpu" for r in rows)')" True
}

# Its parent never asks how it ended.
record_ends_with_a_process_that_is_not_reaped() {
	mkfifo to
	LD_PRELOAD='' python3 -c 'import subprocess, sys
child = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
open("to").read()
child.kill()
open("to").read()' env LD_PRELOAD="$sanitizer" "$stayput" run --default engine -- \
		"$programs/steady_shared" >pid.txt &
	started+=($!)
	until [ -s pid.txt ]; do :; done
	timeout 50 "$stayput" record --out rows.csv --interval-ms 10 "$(<pid.txt)" &
	local recorder=$!
	started+=("$recorder")
	wait_for_row rows.csv region,engine,active ,
	: >to
	wait "$recorder"
}

record_takes_up_what_a_command_starts() {
	exits 3 "$stayput" record --out rows.csv -- sh -c "
		mkfifo to from
		LD_PRELOAD=$sanitizer $stayput run --default engine -- $programs/steady_shared <to >from &
		exec 3>to 4<from
		read -r line <&4
		until grep -q region,engine,active rows.csv; do
			echo verify >&3
			read -r line <&4
		done
		echo quit >&3
		wait
		exit 3"
	equal "$(csv rows.csv 'rows[-1]["source"] and len({r["pid"] for r in rows
		if r["source"] == "region"})')" 1
}

record_ends_with_its_signals() {
	start_steady a shared --default engine
	"$stayput" record --out rows.csv --interval-ms 10 "$a_pid" &
	local recorder=$!
	started+=("$recorder")
	wait_for_row rows.csv region,engine,active ,
	kill -TERM "$recorder"
	wait "$recorder"
	verify a
}

# The stand-in never answers: what NVML says goes on.
record_is_not_held_up_by_silence() {
	export FAKECUDA_SHARE=$PWD/share
	start_steady a shared --default engine
	start_standin b '{"show":["hang"]}'
	"$stayput" record --out rows.csv --interval-ms 10 "$b_pid" &
	local recorder=$!
	started+=("$recorder")
	wait_for_row rows.csv gpu,0 ,
	kill -TERM "$recorder"
	wait "$recorder"
}

record_refuses_misuse() {
	exits 2 "$stayput" record -- true
	has "$errors" "record wants --out FILE"
	exits 2 "$stayput" record --out x.csv
	exits 2 "$stayput" record --out x.csv --interval-ms 5 -- true
	has "$errors" '"5" is not a number from 10 to 1000'
	exits 2 "$stayput" record --out x.csv kv_cache
	exits 3 "$stayput" record --out x.csv 999999999
	[ ! -e x.csv ]
	exits 1 "$stayput" record --out /none/x.csv -- true
	has "$errors" "/none/x.csv cannot be written: No such file or directory"
	exits 127 "$stayput" record --out x.csv -- no-such-command
}

# doctor EXIT [OPTION] - what its children are told to preload, it passes on.
doctor() {
	LD_PRELOAD=$sanitizer exits "$1" "$stayput" doctor "${@:2}"
}

doctor_without_a_driver_says_so() {
	LD_LIBRARY_PATH=$build/loading/nodriver doctor 1
	has "$output" "bad      driver: no GPU can be used here: libcuda.so.1 cannot be opened"
	has "$output" "good     preload: a child has $build/libstayput.so"
	has "$output" "good     preload, deep: a child has $build/libstayput-deep.so"
	has "$output" "host memory: "
	has "$output" "MEMLOCK limit: "
	has "$output" "huge pages: "
	has "$output" "cgroup: "
	has "$output" "NUMA nodes: "
	LD_LIBRARY_PATH=$build/loading/nodriver doctor 1 --json
	equal "$(json '[f["what"] for f in data if f["level"] == "bad"]')" "['driver']"
	equal "$(json 'all("advice" in f for f in data if f["level"] != "good")')" True
}

doctor_on_a_good_device_finds_nothing_bad() {
	export FAKECUDA_MEMORY=64MiB
	doctor 0
	has "$output" "good     driver: CUDA 13.0, devices: 1"
	has "$output" "good     NVML: GPUs: 1, driver 580.00.00"
	has "$output" "good     device 0: virtual memory management"
	has "$output" "device 0: copies "
	has "$output" "GB/s back (16 MiB); PCIe 1 x1 promises 0.2 GB/s"
	doctor 0 --json
	equal "$(json '{f["level"] for f in data} <= {"good", "warning"}')" True
}

doctor_warns_of_a_slow_link() {
	FAKECUDA_MEMORY=64MiB FAKECUDA_PCIE=6x10000 doctor 0
	has "$output" "warning  device 0: copies "
	has "$output" "PCIe 6 x10000 promises 75625.0 GB/s
           slower than 80%: "
}

doctor_finds_devices_and_drivers_that_will_not_do() {
	export FAKECUDA_MEMORY=64MiB
	FAKECUDA_VMM=0 doctor 1 --no-link
	has "$output" "bad      device 0: no virtual memory management"
	FAKECUDA_DEVICES=0 doctor 1
	has "$output" "bad      driver: no GPU can be used here: "
	FAKECUDA_VERSION=11040 doctor 1 --no-link
	has "$output" "bad      driver: CUDA 11.4, devices: 1"
}

doctor_looks_at_each_device() {
	FAKECUDA_MEMORY=64MiB FAKECUDA_DEVICES=3 doctor 0
	has "$output" "device 2: copies "
	FAKECUDA_MEMORY=64MiB doctor 0 --no-link
	lacks "$output" "copies"
}

doctor_goes_on_where_nothing_can_be_copied() {
	FAKECUDA_FAIL='cuMemHostAlloc:*:OUT_OF_MEMORY' doctor 0
	has "$output" "warning  device 0: no copies were made"
	FAKECUDA_FAIL='cuDevicePrimaryCtxRetain:*:OUT_OF_MEMORY' doctor 0
	has "$output" "warning  device 0: no context can be made: CUDA_ERROR_OUT_OF_MEMORY"
}

# The library is replaced by a file that is none.
doctor_finds_a_preload_without_effect() {
	cp "$stayput" .
	echo "no library" >libstayput.so
	exits 1 ./stayput doctor --no-link
	has "$output" "bad      preload: a child does not have $PWD/libstayput.so"
	has "$output" "bad      preload, deep: the library was not found beside this program"
}

tests=(
	top_shows_processes_and_regions_until_q
	top_gives_the_terminal_back_after_signals
	top_follows_the_window
	top_counts_frames_and_is_plain_without_a_terminal
	record_follows_a_process_to_its_end
	record_ends_with_a_process_that_is_not_reaped
	record_takes_up_what_a_command_starts
	record_ends_with_its_signals
	record_is_not_held_up_by_silence
	record_refuses_misuse
	doctor_without_a_driver_says_so
	doctor_on_a_good_device_finds_nothing_bad
	doctor_warns_of_a_slow_link
	doctor_finds_devices_and_drivers_that_will_not_do
	doctor_looks_at_each_device
	doctor_goes_on_where_nothing_can_be_copied
	doctor_finds_a_preload_without_effect
)
run_tests "$@"
