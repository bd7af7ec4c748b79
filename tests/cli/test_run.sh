#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# stayput run: what it sets, how it quotes, what it refuses, what it runs.
. "$(dirname "$(readlink -f "$0")")/lib.sh"

the_library_beside_the_program_is_preloaded() {
	needs_plain_build
	exits 0 "$stayput" run -- sh -c 'echo "$LD_PRELOAD"'
	equal "$output" "$build/libstayput.so"
	exits 0 "$stayput" run --deep -- sh -c 'echo "$LD_PRELOAD"'
	equal "$output" "$build/libstayput-deep.so"
}

other_preloads_keep_their_place_before_it() {
	LD_PRELOAD="/none/a.so /none/b.so" exits 0 "$stayput" run --dry-run
	has "$output" "LD_PRELOAD=/none/a.so:/none/b.so:$build/libstayput.so
"
}

a_library_of_ours_is_replaced_and_never_there_twice() {
	needs_plain_build
	LD_PRELOAD="/x/libstayput.so:/y.so:/z/libstayput-deep.so" \
		exits 0 "$stayput" run --dry-run --deep
	has "$output" "LD_PRELOAD=$build/libstayput-deep.so:/y.so
"
	exits 0 "$stayput" run -- "$stayput" run --deep -- "$stayput" run --deep -- \
		sh -c 'echo "$LD_PRELOAD"'
	equal "$output" "$build/libstayput-deep.so"
}

the_library_for_torch_memory_saver_stays_and_is_enough() {
	LD_PRELOAD="/x/libstayput.so:/y.so:/z/libstayput-tms.so" \
		exits 0 "$stayput" run --dry-run
	has "$output" "LD_PRELOAD=/y.so:/z/libstayput-tms.so
"
	LD_PRELOAD=/z/libstayput-tms.so exits 2 "$stayput" run --deep --dry-run
	has "$errors" "LD_PRELOAD has libstayput-tms.so"
}

a_name_that_only_looks_like_ours_stays() {
	LD_PRELOAD="/x/mylibstayput.so:libstayput.so.old:libmyother.so" exits 0 "$stayput" run --dry-run
	has "$output" "LD_PRELOAD=/x/mylibstayput.so:libstayput.so.old:libmyother.so:$build/"
}

options_set_their_variables() {
	needs_plain_build
	exits 0 "$stayput" run --regions 'kv=discard,*=host' --default engine \
		--host-limit 50% --host-keep 1GiB --wait 2.5 --log info -- \
		sh -c 'env | grep ^STAYPUT_ | sort'
	equal "$output" "STAYPUT_CONTROL=1
STAYPUT_DEFAULT=engine
STAYPUT_HOST_KEEP=1GiB
STAYPUT_HOST_LIMIT=50%
STAYPUT_LOG=info
STAYPUT_REGIONS=kv=discard,*=host
STAYPUT_RESUME_WAIT=2.5
STAYPUT_SOCKETS=$STAYPUT_SOCKETS"
}

rules_and_exclusions_are_passed_on() {
	needs_plain_build
	exits 0 "$stayput" run --rules 'kv:size>=1GiB;w:size<1GiB' --exclude +libfoo -- \
		sh -c 'echo "$STAYPUT_RULES|$STAYPUT_EXCLUDE"'
	equal "$output" "kv:size>=1GiB;w:size<1GiB|+libfoo"
}

control_is_on_unless_told_otherwise() {
	needs_plain_build
	exits 0 "$stayput" run -- sh -c 'echo "$STAYPUT_CONTROL"'
	equal "$output" 1
	exits 0 "$stayput" run --no-control -- sh -c 'echo "$STAYPUT_CONTROL"'
	equal "$output" 0
	exits 0 "$stayput" run --control /run/x.sock -- sh -c 'echo "$STAYPUT_CONTROL"'
	equal "$output" /run/x.sock
	STAYPUT_CONTROL=0 exits 0 "$stayput" run -- sh -c 'echo "$STAYPUT_CONTROL"'
	equal "$output" 0
}

dry_run_is_shell_text_that_means_the_same() {
	needs_plain_build
	exits 0 "$stayput" run --dry-run --regions 'a=host' --default "x" -- \
		printf '[%s]' "it's" '$HOME' '' 'a b' '*' $'two\nlines'
	equal "$(sh -c "$output")" "[it's][\$HOME][][a b][*][two
lines]"
	exits 0 "$stayput" run --dry-run --default engine
	equal "$(eval "$output"; sh -c 'echo "$STAYPUT_DEFAULT $LD_PRELOAD"')" \
		"engine $build/libstayput.so"
}

dry_run_runs_nothing() {
	exits 0 "$stayput" run --dry-run -- touch ran
	[ ! -e ran ]
}

# refused OPTION VALUE TEXT
refused() {
	exits 2 "$stayput" run "$1" "$2" -- touch ran
	has "$errors" "$3"
	[ "$(wc -l <stderr.txt)" -eq 1 ] || fail "more than a sentence: $errors"
	[ ! -e ran ]
}

values_that_cannot_be_read_are_refused_in_the_library_s_words() {
	refused --regions kv=foo 'stayput: --regions: "kv=foo" cannot be read; allowed are'
	lacks "$errors" using
	refused --default 'a b' '--default: "a b" is not a tag'
	refused --wait soon '--wait: "soon" is not a number of seconds from 0 to 86400'
	refused --host-limit 120% '--host-limit: "120%" is not a size'
	refused --host-keep many '--host-keep: "many" is not a size'
	refused --log loud '--log: "loud" is not error, warn, info or debug'
	refused --rules kv:foo=3 '--rules: "kv:foo=3" cannot be read'
	refused --control here '--control: "here" is not 0, 1 or the absolute path'
	refused --control "/$(printf 'x%.0s' {1..107})" \
		'--control: the path has 108 bytes and may have 107'
	refused --regions '' '--regions wants a value'
}

without_a_command_it_is_misused() {
	exits 2 "$stayput" run
	has "$errors" "run wants a command"
	exits 2 "$stayput" run --nonsense -- true
	has "$errors" "--nonsense"
}

options_of_the_command_are_its_own() {
	needs_plain_build
	exits 0 "$stayput" run echo --deep --help
	equal "$output" "--deep --help"
}

exit_codes_are_the_command_s() {
	needs_plain_build
	exits 3 "$stayput" run -- sh -c 'exit 3'
	exits 127 "$stayput" run -- no-such-command
	has "$errors" "no-such-command cannot be run: No such file"
	exits 126 "$stayput" run -- /etc/passwd
	has "$errors" "Permission denied"
}

a_folder_with_a_space_is_refused() {
	mkdir "a folder"
	cp "$stayput" "$build/libstayput.so" "a folder"
	exits 1 "a folder/stayput" run -- true
	has "$errors" "LD_PRELOAD cannot hold"
}

without_its_library_it_says_where_it_looked() {
	mkdir bin
	cp "$stayput" bin
	exits 1 bin/stayput run -- true
	has "$errors" "libstayput.so is neither in $PWD/bin nor in $PWD/bin/../lib"
}

every_command_has_help_with_examples() {
	for command in run ps show pause resume top record metrics doctor; do
		exits 0 "$stayput" "$command" --help
		has "$output" "usage: stayput $command"
		has "$output" "
  stayput $command"
		exits 0 "$stayput" help "$command"
		exits 2 "$stayput" "$command" --no-such-option
	done
	exits 0 "$stayput" --help
	exits 0 "$stayput" --version
	has "$output" "$(sed -n 's/^#define STAYPUT_VERSION "\(.*\)"/\1/p' \
		"$root/include/stayput.h")"
	exits 2 "$stayput"
	exits 2 "$stayput" nonsense
	has "$errors" 'there is no command "nonsense"'
}

tests=(
	the_library_beside_the_program_is_preloaded
	other_preloads_keep_their_place_before_it
	a_library_of_ours_is_replaced_and_never_there_twice
	the_library_for_torch_memory_saver_stays_and_is_enough
	a_name_that_only_looks_like_ours_stays
	options_set_their_variables
	rules_and_exclusions_are_passed_on
	control_is_on_unless_told_otherwise
	dry_run_is_shell_text_that_means_the_same
	dry_run_runs_nothing
	values_that_cannot_be_read_are_refused_in_the_library_s_words
	without_a_command_it_is_misused
	options_of_the_command_are_its_own
	exit_codes_are_the_command_s
	a_folder_with_a_space_is_refused
	without_its_library_it_says_where_it_looked
	every_command_has_help_with_examples
)
run_tests "$@"
