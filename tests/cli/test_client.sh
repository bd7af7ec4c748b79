#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# ps, show, pause, resume and metrics against a stand-in that answers as it is told.
. "$(dirname "$(readlink -f "$0")")/lib.sh"

# A snapshot with two regions and a last operation.
snapshot='{"result":{"version":"0.1.0","pid":"PID","regions":[
{"tag":"kv_cache","state":"paused","bytes_active":0,"bytes_paused":3221225472,
"bytes_kept":0,"bytes_device":0,"bytes_backup":0,"count_active":0,"count_paused":2,
"count_kept":0,"mappings":2},
{"tag":"weights","state":"active","bytes_active":1073741824,"bytes_paused":0,
"bytes_kept":4096,"bytes_device":1075838976,"bytes_backup":536870912,"count_active":5,
"count_paused":0,"count_kept":1,"mappings":3}],
"host_bytes":536870912,"host_bytes_idle":1048576,"running":[],
"last":{"do":"pause","tags":["kv_cache"],"by":1,"code":-6,"name":"DRIVER",
"message":"the driver refused","at":1000000000.5,
"report":{"seconds":1.5,"allocations":2,"failed":1,"total":{"bytes_released":3221225472,
"seconds_sync":0.25},"devices":[]}}}}'
snapshot=$(tr -d '\n' <<<"$snapshot")

ps_adds_up_and_says_how_it_stands() {
	start_standin a "{\"show\":[$snapshot]}"
	exits 0 "$stayput" ps
	has "$output" "PID  USER"
	has "$output" "partly  1.00 GiB  3.00 GiB       -  1.00 GiB  512 MiB  "
	exits 0 "$stayput" ps --json
	equal "$(json 'data[0]["pid"]')" "$a_pid"
	equal "$(json 'data[0]["user"]')" "$(id -un)"
	equal "$(json 'data[0]["bytes_paused"], data[0]["bytes_native"]')" \
		"(3221225472, None)"
}

ps_without_processes_is_an_empty_list() {
	exits 0 "$stayput" ps --json
	equal "$output" "[]"
	exits 0 "$stayput" ps
	equal "$(wc -l <<<"$output")" 1
}

ps_says_what_does_not_answer() {
	start_standin a '{"show":["close"]}'
	start_standin b '{"show":["this is no JSON"]}'
	exits 0 "$stayput" ps --json
	equal "$(json 'sorted(p["state"] for p in data)')" "['no answer', 'no answer']"
}

# All together have two seconds, not each of them.
those_that_hang_hold_nobody_up() {
	start_standin a "{\"show\":[$snapshot]}"
	for name in b c d e f g h i; do
		start_standin "$name" '{"show":["hang"]}'
	done
	exits 0 timeout 10 "$stayput" ps --json
	equal "$(json 'sum(p["state"] == "no answer" for p in data), len(data)')" "(8, 9)"
	exits 7 timeout 10 "$stayput" metrics "$a_pid" "$b_pid"
	has "$output" "stayput_host_bytes{pid=\"$a_pid\"}"
	equal "$errors" "stayput: process $b_pid does not answer"
}

sockets_of_dead_processes_are_swept() {
	start_standin a "{\"show\":[$snapshot]}"
	kill -9 "$a_pid"
	wait "$a_pid" 2>/dev/null || true
	[ -S "$STAYPUT_SOCKETS/$a_pid.sock" ]
	exits 0 "$stayput" ps --json
	equal "$output" "[]"
	[ ! -e "$STAYPUT_SOCKETS/$a_pid.sock" ]
}

what_is_no_dead_socket_is_left_alone() {
	mkdir "$STAYPUT_SOCKETS"
	touch "$STAYPUT_SOCKETS/999999999.sock" "$STAYPUT_SOCKETS/notes"
	exits 0 "$stayput" ps --json
	equal "$output" "[]"
	[ -e "$STAYPUT_SOCKETS/999999999.sock" ] && [ -e "$STAYPUT_SOCKETS/notes" ]
}

folders_that_others_can_write_are_passed_over() {
	start_standin a "{\"show\":[$snapshot]}"
	chmod 777 "$STAYPUT_SOCKETS"
	exits 0 "$stayput" ps --json
	equal "$output" "[]"
	chmod 700 "$STAYPUT_SOCKETS"
	exits 0 "$stayput" ps --json
	equal "$(json 'len(data)')" 1
}

a_link_in_place_of_the_folder_is_passed_over() {
	start_standin a "{\"show\":[$snapshot]}"
	ln -s "$STAYPUT_SOCKETS" link
	STAYPUT_SOCKETS=$PWD/link exits 0 "$stayput" ps --json
	equal "$output" "[]"
}

show_tells_regions_and_the_last_operation() {
	start_standin a "{\"show\":[$snapshot]}"
	exits 0 "$stayput" show "$a_pid"
	has "$output" "$a_pid $(id -un), partly, up 0.0 ms, library 0.1.0: "
	has "$output" "kv_cache  paused       0 B  3.00 GiB"
	has "$output" "host memory: 512 MiB, of it 1.00 MiB idle"
	has "$output" "last: pause kv_cache at 2001-09-0"
	has "$output" "1.5 s, failed (DRIVER): the driver refused"
	has "$output" "released 3.00 GiB, sync 0.25 s"
	exits 0 "$stayput" show --json "$a_pid"
	equal "$(json 'data[0]["regions"][1]["tag"]')" weights
}

a_command_line_cannot_steer_the_terminal() {
	echo "{\"show\":[$snapshot]}" >a.json
	start a python3 "$root/tests/cli/standin.py" "$STAYPUT_SOCKETS" a.json a.log \
		$'evil\e[2J\nname\xc2\x9b2J'
	expect a ready
	for command in ps "show $a_pid" "top --count 1"; do
		# shellcheck disable=SC2086 # words
		exits 0 "$stayput" $command
		has "$output" 'evil?[2J?name??2J'
	done
}

# Root asks processes of everybody, and what listens need not be the library.
an_answer_cannot_steer_the_terminal() {
	local region='{"tag":"k\u001b[2J","state":"act\nive","bytes_active":1}'
	local last='{"do":"pause","code":-1,"name":"\u009b2J","message":"\u007f"}'
	local command
	start_standin a "{\"show\":[{\"result\":{\"regions\":[$region],\"last\":$last,
		\"devices\":[{\"bytes_\u001b[2J\":1}]}}],
		\"pause\":[{\"error\":{\"code\":-6,\"message\":\"no\u001b[2J\"}}]}"
	for command in "show $a_pid" "top --count 1" "metrics $a_pid"; do
		# shellcheck disable=SC2086 # words
		exits 0 "$stayput" $command
		has "$output" 'k?[2J'
		[[ $output != *[$'\e\x7f']* ]] || fail "$command"
	done
	exits 0 "$stayput" show "$a_pid"
	has "$output" "act?ive"
	has "$output" "failed (??2J): ?"
	exits 1 "$stayput" pause "$a_pid"
	has "$errors" "failed: no?[2J"
}

long_times_have_minutes_and_hours() {
	local pair
	for pair in "99.4 99 s" "119.7 2 min 0 s" "5999.4 99 min 59 s" \
		"183999.9 51 h 6 min"; do
		start_standin "t${pair%%.*}" \
			"{\"show\":[{\"result\":{\"uptime_seconds\":${pair%% *}}}]}"
		local pid=t${pair%%.*}_pid
		exits 0 "$stayput" show "${!pid}"
		has "$output" "up ${pair#* }, "
	done
}

a_pid_that_is_not_there_is_told_apart() {
	start_standin a "{\"show\":[$snapshot]}"
	exits 3 "$stayput" show 999999999
	has "$errors" "there is no process 999999999"
	exits 3 "$stayput" show $$
	has "$errors" "process $$ is not under stayput"
	exits 7 "$stayput" show "$a_pid" 999999999
	exits 2 "$stayput" show kv_cache
	has "$errors" '"kv_cache" is not a pid'
	exits 2 "$stayput" show
}

another_user_s_process_is_told() {
	local as=()
	if [ "$(id -u)" -eq 0 ]; then
		as=(setpriv --reuid 65534 --regid 65534 --clear-groups)
		"${as[@]}" "$stayput" --version >/dev/null 2>&1 ||
			{ echo "skipped: nobody cannot run the program here"; exit 77; }
	fi
	start_standin a "{\"show\":[$snapshot]}"
	[ ${#as[@]} -gt 0 ] || a_pid=1
	exits 3 "${as[@]}" "$stayput" show "$a_pid"
	has "$errors" "process $a_pid belongs to root: nobody else but root can reach it"
	exits 0 "${as[@]}" "$stayput" ps --json
	lacks "$output" "\"pid\":$a_pid,"
}

report='{"seconds":0.5,"allocations":2,"failed":0,"total":{"bytes_released":1073741824,
"bytes_restored":1073741824,"bytes_copied":536870912,"bytes_unchanged":1048576,
"copied_per_second":50000000000},"devices":[]}'
report=$(tr -d '\n' <<<"$report")
good="{\"pause\":[{\"result\":$report}],\"resume\":[{\"result\":$report}],
\"show\":[$snapshot]}"

pause_and_resume_say_how_it_went() {
	start_standin a "$good"
	exits 0 "$stayput" pause "$a_pid"
	equal "$output" \
		"$a_pid paused: 1.00 GiB given back in 0.50 s, 512 MiB copied at 50.0 GB/s, 1.00 MiB unchanged"
	exits 0 "$stayput" resume "$a_pid"
	has "$output" "$a_pid resumed: 1.00 GiB taken again in 0.50 s"
	exits 0 "$stayput" pause --json "$a_pid"
	equal "$(json 'data[0]["pid"], data[0]["result"]["total"]["bytes_released"]')" \
		"($a_pid, 1073741824)"
	equal "$errors" ""
}

what_a_pause_leaves_on_the_device_is_told() {
	local left='{"seconds":0.5,"bytes_stream_ordered":4096,"total":{"bytes_released":0,"bytes_held":8192}}'
	start_standin a "{\"pause\":[{\"result\":$left}]}"
	exits 0 "$stayput" pause "$a_pid"
	has "$output" ", 8.00 KiB left as it was, since other processes hold it"
	has "$output" ", 4.00 KiB of stream-ordered memory stays"
	left='{"tag":"kv","bytes_stream_ordered":4096,"bytes_foreign_vmm":8192}'
	start_standin b "{\"show\":[{\"result\":{\"regions\":[$left]}}]}"
	exits 0 "$stayput" show "$b_pid"
	has "$output" "kv: 4.00 KiB stay on the device: stream-ordered memory"
	has "$output" "kv: 8.00 KiB stay on the device: by cuMemCreate() of its own"
}

numbers_are_pids_and_words_are_tags() {
	start_standin a "$good"
	exits 0 "$stayput" pause kv_cache "$a_pid" weights --tag 7
	equal "$(cat a.log)" \
		'{"stayput":1,"do":"pause","tags":["7","kv_cache","weights"]}'
}

options_go_into_the_request() {
	start_standin a "$good"
	exits 0 "$stayput" pause "$a_pid" --policy discard --check --no-block --fail-if-held
	exits 0 "$stayput" resume "$a_pid" --wait 2.5
	exits 0 "$stayput" resume "$a_pid" --wait 0
	equal "$(cat a.log)" '{"stayput":1,"do":"pause","policy":"discard","check":true,"block":false,"fail_if_held":true,"tags":[]}
{"stayput":1,"do":"resume","wait_ms":2500,"tags":[]}
{"stayput":1,"do":"resume","wait_ms":0,"tags":[]}'
}

misuse_is_told_before_anything_is_asked() {
	start_standin a "$good"
	exits 2 "$stayput" pause
	exits 2 "$stayput" pause kv_cache
	has "$errors" "pause wants a pid, or --all"
	exits 2 "$stayput" pause --all "$a_pid"
	exits 2 "$stayput" pause "$a_pid" 'no tag'
	has "$errors" '"no tag" is neither a pid nor a tag'
	exits 2 "$stayput" pause "$a_pid" --policy keep
	exits 2 "$stayput" pause "$a_pid" --wait 1
	exits 2 "$stayput" resume "$a_pid" --wait -1
	exits 2 "$stayput" resume "$a_pid" --policy host
	[ ! -e a.log ]
}

all_asks_everybody_for_the_tags_that_they_have() {
	start_standin a "$good"
	start_standin b '{"show":[{"result":{"regions":[]}}]}'
	exits 0 "$stayput" pause --all kv_cache other
	equal "$(grep pause a.log)" '{"stayput":1,"do":"pause","tags":["kv_cache"]}'
	lacks "$(cat b.log)" pause
	exits 8 "$stayput" pause --all other
	has "$errors" "none of 2 processes has a region of that tag"
}

# Whether those that are silent have the tag nobody knows: it is not done.
all_says_who_is_silent() {
	start_standin a "$good"
	for name in b c d e f g h i; do
		start_standin "$name" '{"show":["hang"]}'
	done
	exits 7 timeout 10 "$stayput" pause --all kv_cache
	has "$errors" "pause of $b_pid failed: it has not told its tags within two seconds"
	equal "$(wc -l <stderr.txt)" 8
	has "$output" "$a_pid paused"
}

all_without_processes_finds_none() {
	exits 3 "$stayput" pause --all
	equal "$errors" "stayput: no process is under stayput"
	exits 3 "$stayput" resume --all --json
	equal "$output" "[]"
}

# error CODE NAME EXIT
error() {
	start_standin "$2" "{\"pause\":[{\"error\":{\"code\":$1,\"name\":\"$2\",
		\"message\":\"so $2\",\"report\":{\"failed\":3}}}]}"
	local pid=$2_pid
	exits "$3" "$stayput" pause --json "${!pid}"
	equal "$errors" "stayput: pause of ${!pid} failed: so $2"
	equal "$(json 'data[0]["error"]["name"], data[0]["error"]["report"]["failed"]')" \
		"('$2', 3)"
}

each_error_has_its_exit_code() {
	error -1 INVALID 1
	error -2 NOT_FOUND 8
	error -3 BUSY 4
	error -4 DEVICE_MEMORY 5
	error -5 HOST_MEMORY 6
	error -6 DRIVER 1
	error -7 IO 1
	error -8 UNSUPPORTED 10
	error -9 CORRUPT 9
	error -77 STRANGE 1
}

of_several_some_is_partly_and_equal_errors_are_one() {
	local busy='{"pause":[{"error":{"code":-3,"name":"BUSY","message":"busy"}}]}'
	local full='{"pause":[{"error":{"code":-5,"name":"HOST_MEMORY","message":"full"}}]}'

	start_standin a "$good"
	start_standin b "$busy"
	start_standin c "$busy"
	start_standin d "$full"
	exits 7 "$stayput" pause "$a_pid" "$b_pid"
	exits 4 "$stayput" pause "$b_pid" "$c_pid"
	exits 1 "$stayput" pause "$b_pid" "$d_pid"
	exits 7 "$stayput" pause "$a_pid" 999999999
	exits 7 "$stayput" pause --all
}

a_connection_that_breaks_is_an_error() {
	start_standin a '{"pause":[{"progress":{"bytes":1,"total":2,"seconds":0.1}},"close"]}'
	start_standin b '{"pause":["garbage"]}'
	exits 1 "$stayput" pause "$a_pid"
	has "$errors" "pause of $a_pid failed: the connection broke"
	exits 1 "$stayput" pause "$b_pid"
}

# progress BYTES SECONDS
progress() {
	echo "{\"progress\":{\"bytes\":$1,\"total\":4000000000,\"seconds\":$2}},"
}

slow="{\"pause\":[$(progress 0 0)$(progress 100000000 0.1)$(progress 1000000000 1.0)
$(progress 1500000000 1.5)$(progress 2000000000 2.0){\"result\":$report}]}"

progress_is_a_line_a_second_where_there_is_no_terminal() {
	start_standin a "$slow"
	exits 0 "$stayput" pause "$a_pid"
	equal "$errors" "$a_pid pausing: 0 B of 3.73 GiB
$a_pid pausing: 954 MiB of 3.73 GiB, 1.0 GB/s, 3.0 s left
$a_pid pausing: 1.86 GiB of 3.73 GiB, 1.0 GB/s, 2.0 s left"
}

progress_is_a_bar_on_a_terminal() {
	start_standin a "$slow"
	exits 0 python3 "$root/tests/cli/terminal.py" 80 24 '' "$stayput" pause "$a_pid"
	has "$output" "pausing [############.............] 1.86 GiB of 3.73 GiB, 1.0 GB/s, 2.0 s left"
	lacks "$output" "
$a_pid pausing"
	has "$output" "$a_pid paused: 1.00 GiB given back"
}

a_bar_fits_a_narrow_terminal() {
	start_standin a "$slow"
	exits 0 python3 "$root/tests/cli/terminal.py" 30 24 '' "$stayput" pause "$a_pid"
	local widest
	widest=$(tr '\r' '\n' <<<"$output" | sed 's/\x1b\[K//g' | grep -o '^pausing.*' |
		awk '{ if (length > n) n = length } END { print n }')
	[ "$widest" -le 30 ] || fail "$widest columns"
}

metrics_are_prometheus_text() {
	start_standin a "{\"show\":[$snapshot]}"
	exits 0 "$stayput" metrics "$a_pid"
	has "$output" "# TYPE stayput_region_paused_bytes gauge
stayput_region_paused_bytes{pid=\"$a_pid\",tag=\"kv_cache\"} 3221225472
stayput_region_paused_bytes{pid=\"$a_pid\",tag=\"weights\"} 0"
	has "$output" "stayput_host_bytes{pid=\"$a_pid\"} 536870912"
	has "$output" "stayput_last_operation_seconds{pid=\"$a_pid\",operation=\"pause\"} 1.5"
	has "$output" "stayput_last_operation_code{pid=\"$a_pid\",operation=\"pause\"} -6"
	python3 "$root/tests/cli/check_metrics.py" <stdout.txt
}

metrics_of_all_are_good_without_any() {
	exits 0 "$stayput" metrics --all
	python3 "$root/tests/cli/check_metrics.py" <stdout.txt
	exits 2 "$stayput" metrics
	exits 3 "$stayput" metrics 999999999
}

output_that_cannot_be_written_is_an_error() {
	[ -w /dev/full ] || { echo "skipped: there is no /dev/full"; exit 77; }
	local code=0
	"$stayput" ps >/dev/full 2>stderr.txt || code=$?
	equal "$code" 1
	has "$(cat stderr.txt)" "standard output cannot be written"
}

tests=(
	ps_adds_up_and_says_how_it_stands
	ps_without_processes_is_an_empty_list
	ps_says_what_does_not_answer
	those_that_hang_hold_nobody_up
	sockets_of_dead_processes_are_swept
	what_is_no_dead_socket_is_left_alone
	folders_that_others_can_write_are_passed_over
	a_link_in_place_of_the_folder_is_passed_over
	show_tells_regions_and_the_last_operation
	a_command_line_cannot_steer_the_terminal
	an_answer_cannot_steer_the_terminal
	long_times_have_minutes_and_hours
	a_pid_that_is_not_there_is_told_apart
	another_user_s_process_is_told
	pause_and_resume_say_how_it_went
	what_a_pause_leaves_on_the_device_is_told
	numbers_are_pids_and_words_are_tags
	options_go_into_the_request
	misuse_is_told_before_anything_is_asked
	all_asks_everybody_for_the_tags_that_they_have
	all_says_who_is_silent
	all_without_processes_finds_none
	each_error_has_its_exit_code
	of_several_some_is_partly_and_equal_errors_are_one
	a_connection_that_breaks_is_an_error
	progress_is_a_line_a_second_where_there_is_no_terminal
	progress_is_a_bar_on_a_terminal
	a_bar_fits_a_narrow_terminal
	metrics_are_prometheus_text
	metrics_of_all_are_good_without_any
	output_that_cannot_be_written_is_an_error
)
run_tests "$@"
