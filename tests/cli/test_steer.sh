#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Programs that know nothing of stayput, on the fake driver: started, seen and steered.
. "$(dirname "$(readlink -f "$0")")/lib.sh"

# Device memory of all processes that share the fake's, by NVML.
used() {
	LD_PRELOAD=$sanitizer python3 - <<'PYTHON'
import ctypes
nvml = ctypes.CDLL("libnvidia-ml.so.1")
device = ctypes.c_void_p()
memory = (ctypes.c_ulonglong * 3)()
assert nvml.nvmlInit_v2() == 0
assert nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device)) == 0
assert nvml.nvmlDeviceGetMemoryInfo(device, memory) == 0
print(memory[2])
PYTHON
}

# pause_thrice KIND OPTIONS...
pause_thrice() {
	local before cycle
	export FAKECUDA_SHARE=$PWD/share
	start_steady p "$@"
	verify p
	before=$(used)
	for cycle in 1 2 3; do
		exits 0 "$stayput" pause "$p_pid"
		has "$output" "$p_pid paused: "
		[ "$(used)" -le $((before - (9 << 20))) ] ||
			fail "cycle $cycle: $before, then $(used)"
		exits 0 "$stayput" show --json "$p_pid"
		equal "$(json 'data[0]["regions"][0]["state"]')" paused
		exits 0 "$stayput" resume "$p_pid"
		equal "$(used)" "$before"
		verify p
	done
	exits 0 "$stayput" show --json "$p_pid"
	equal "$(json 'data[0]["regions"][0]["tag"], data[0]["regions"][0]["bytes_active"]')" \
		"('engine', $((9 << 20)))"
	equal "$(json 'data[0]["last"]["do"], data[0]["last"]["by"] > 0')" "('resume', True)"
	tell p quit
	wait "$p_pid"
}

a_program_with_a_shared_runtime_is_paused_thrice() {
	pause_thrice shared --default engine
}

a_program_with_a_static_runtime_is_paused_thrice() {
	pause_thrice static --deep --default engine
}

tags_and_all_choose_what_is_paused() {
	start_steady a shared --default kv_cache
	start_steady b shared --default weights
	exits 0 "$stayput" pause --all kv_cache
	equal "$(wc -l <stdout.txt)" 1
	exits 0 "$stayput" ps --json
	equal "$(json '{p["pid"]: p["state"] for p in data}')" \
		"{$a_pid: 'paused', $b_pid: 'active'}"
	exits 8 "$stayput" pause "$b_pid" kv_cache
	has "$errors" "kv_cache"
	exits 0 "$stayput" pause "$a_pid" "$b_pid"
	exits 0 "$stayput" resume --all
	verify a
	verify b
}

two_processes_are_paused_at_once() {
	start_steady a shared --default engine
	start_steady b static --deep --default engine
	exits 0 "$stayput" pause --json "$a_pid" "$b_pid"
	equal "$(json 'sorted(p["pid"] for p in data) == sorted(['"$a_pid, $b_pid"'])')" True
	exits 0 "$stayput" resume "$b_pid" "$a_pid"
	verify a
	verify b
}

a_resume_without_device_memory_says_so_and_can_be_repeated() {
	export FAKECUDA_SHARE=$PWD/share FAKECUDA_MEMORY=24MiB
	start_steady a shared --default engine
	exits 0 "$stayput" pause "$a_pid"
	start_steady b shared --default engine
	tell b grow
	expect b right
	exits 5 "$stayput" resume "$a_pid" --wait 0
	has "$errors" "resume of $a_pid failed: "
	has "$errors" " bytes"
	exits 0 "$stayput" pause "$b_pid"
	exits 0 "$stayput" resume "$a_pid" --wait 10
	verify a
}

a_pause_without_host_memory_says_so() {
	start_steady a shared --default engine --host-limit 1MiB
	exits 6 "$stayput" pause "$a_pid"
	verify a
}

policies_of_one_pause_are_passed_on() {
	start_steady a shared --default engine
	exits 0 "$stayput" pause "$a_pid" --policy discard
	exits 0 "$stayput" show --json "$a_pid"
	equal "$(json 'data[0]["last"]["report"]["total"]["bytes_copied"]')" 0
}

an_idle_program_passes_the_check() {
	start_steady a shared --default engine
	exits 0 "$stayput" pause "$a_pid" --check --no-block
	exits 0 "$stayput" resume "$a_pid" --no-block
	verify a
}

without_control_nobody_listens() {
	start_steady a shared --default engine --no-control
	exits 3 "$stayput" show "$a_pid"
	has "$errors" "process $a_pid has the library but does not listen"
	exits 0 "$stayput" ps --json
	equal "$output" "[]"
}

a_static_runtime_that_goes_past_the_library_is_told_of_deep() {
	start_steady a static --default engine
	exits 3 "$stayput" pause "$a_pid"
	has "$errors" "run --deep"
	start_steady b static --deep --default engine --no-control
	exits 3 "$stayput" pause "$b_pid"
	has "$errors" "allocated nothing in a region so far, or"
}

a_socket_of_its_own_place_is_found_by_pid() {
	start_steady a shared --default engine --control "$PWD/mine.sock"
	[ -S mine.sock ]
	exits 3 "$stayput" show "$a_pid"
	STAYPUT_SOCKETS='' exits 0 "$stayput" show "$a_pid"
	has "$output" "engine  active"
}

# Told only by the environment of the process.
a_socket_in_another_temp_folder_is_found_by_pid() {
	mkdir other
	XDG_RUNTIME_DIR=$PWD/other start_steady a shared --default engine
	exits 3 "$stayput" show "$a_pid"
	STAYPUT_SOCKETS='' exits 0 "$stayput" show "$a_pid"
}

# Its environment leads to the same file by another path.
a_socket_with_two_paths_is_one_process() {
	start_steady a shared --default engine
	STAYPUT_SOCKETS='' XDG_RUNTIME_DIR=$PWD/ exits 0 "$stayput" show --json "$a_pid"
	equal "$(json 'len(data)')" 1
}

nvml_tells_what_is_native() {
	export FAKECUDA_SHARE=$PWD/share
	start_steady a shared --regions 'none' --default engine
	exits 0 "$stayput" ps --json
	[ "$(json 'data[0]["bytes_native"]')" -ge $((9 << 20)) ] || fail "$output"
}

metrics_of_a_program_are_prometheus_text() {
	start_steady a shared --default engine
	exits 0 "$stayput" pause "$a_pid"
	exits 0 "$stayput" metrics --all
	has "$output" "
stayput_region_paused_bytes{pid=\"$a_pid\",tag=\"engine\"} $((9 << 20))
"
	has "$output" "
stayput_device_paused_bytes{pid=\"$a_pid\",device=\"0\",uuid=\"GPU-"
	has "$output" "
stayput_last_operation_code{pid=\"$a_pid\",operation=\"pause\"} 0
"
	python3 "$root/tests/cli/check_metrics.py" <stdout.txt
}

tests=(
	a_program_with_a_shared_runtime_is_paused_thrice
	a_program_with_a_static_runtime_is_paused_thrice
	tags_and_all_choose_what_is_paused
	two_processes_are_paused_at_once
	a_resume_without_device_memory_says_so_and_can_be_repeated
	a_pause_without_host_memory_says_so
	policies_of_one_pause_are_passed_on
	an_idle_program_passes_the_check
	without_control_nobody_listens
	a_static_runtime_that_goes_past_the_library_is_told_of_deep
	a_socket_of_its_own_place_is_found_by_pid
	a_socket_in_another_temp_folder_is_found_by_pid
	a_socket_with_two_paths_is_one_process
	nvml_tells_what_is_native
	metrics_of_a_program_are_prometheus_text
)
run_tests "$@"
