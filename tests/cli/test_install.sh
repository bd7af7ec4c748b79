#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# make install and uninstall, what was installed, and completion.
. "$(dirname "$(readlink -f "$0")")/lib.sh"

# Installs what has been built already; other variables of make are not for here.
install_to() { # FOLDER PREFIX [TARGET]
	env -u MAKEFLAGS -u MFLAGS -u MAKELEVEL make -s -C "$root" "${3:-install}" B="$build" \
		DESTDIR="$1" PREFIX="$2" SAN= >make.txt 2>&1 || fail "$(cat make.txt)"
}

files_in() { # FOLDER
	(cd "$1" && find . -type f | sort | tr '\n' ' ')
}

installed="./usr/bin/stayput ./usr/include/stayput.h ./usr/lib/libstayput-deep.so \
./usr/lib/libstayput.so ./usr/lib/pkgconfig/stayput.pc \
./usr/lib/stayput/torch_memory_saver/libstayput-tms.so ./usr/share/bash-completion/completions/stayput ./usr/share/man/man1/stayput.1 "

everything_is_installed_and_exactly_that_is_removed() {
	install_to "$PWD/to" /usr
	equal "$(files_in to)" "$installed"
	touch to/usr/lib/libother.so
	install_to "$PWD/to" /usr uninstall
	equal "$(files_in to)" "./usr/lib/libother.so "
}

the_installed_program_finds_the_installed_library() {
	install_to "$PWD/to" /usr
	exits 0 to/usr/bin/stayput run --dry-run
	has "$output" "LD_PRELOAD=$PWD/to/usr/lib/libstayput.so"
	stayput=$PWD/to/usr/bin/stayput
	start_steady a static --deep --default engine
	exits 0 "$stayput" pause "$a_pid"
	exits 0 "$stayput" resume "$a_pid"
	verify a
}

a_link_to_the_program_finds_the_library() {
	install_to "$PWD/to" /usr
	ln -s to/usr/bin/stayput elsewhere
	exits 0 ./elsewhere run --dry-run
	has "$output" "LD_PRELOAD=$PWD/to/usr/lib/libstayput.so"
}

pkg_config_says_where_things_are() {
	command -v pkg-config >/dev/null || { echo "skipped: no pkg-config"; exit 77; }
	install_to "$PWD/to" /opt/stayput
	export PKG_CONFIG_PATH=$PWD/to/opt/stayput/lib/pkgconfig
	equal "$(pkg-config --cflags stayput | tr -d ' ')" "-I/opt/stayput/include"
	equal "$(pkg-config --variable=preload stayput)" /opt/stayput/lib/libstayput.so
	has "$(pkg-config --libs stayput)" "-lstayput"
	equal "$(pkg-config --modversion stayput)" \
		"$("$stayput" --version | cut -d' ' -f2)"
}

the_manual_has_every_option_and_exit_code() {
	local page
	page=$(sed 's/^\.\(It\|Op\) //; s/\\&//g' "$root/docs/stayput.1")
	for command in run ps show pause resume top record metrics doctor; do
		exits 0 "$stayput" "$command" --help
		for option in $(grep -o -- '^  --[a-z-]*' stdout.txt); do
			has "$page" "Fl -${option#--}"
		done
	done
	for code in $(sed -n '/^enum exit_code/,/^}/s/.*= \([0-9]*\).*/\1/p' \
		"$root/cli/cli.h"); do
		has "$page" "
$code
"
	done
}

the_manual_is_good_mdoc() {
	command -v mandoc >/dev/null || { echo "skipped: no mandoc"; exit 77; }
	mandoc -Tlint -Wwarning "$root/docs/stayput.1" 2>/dev/null || fail "mandoc -Tlint"
}

# complete_at WORD... - what bash would offer for the last word.
complete_at() {
	bash -c '. "$1"; shift
		COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
		_stayput
		printf "%s\n" "${COMPREPLY[@]}" | sort | tr "\n" " "' \
		- "$root/cli/stayput.bash" "$stayput" "$@"
}

completion_knows_commands_and_options() {
	equal "$(complete_at r)" "record resume run "
	equal "$(complete_at resume --w)" "--wait "
	equal "$(complete_at run --h)" "--help --host-keep --host-limit "
	equal "$(complete_at pause --policy d)" "discard "
	equal "$(complete_at run --log '')" "debug error info warn "
	has "$(complete_at run --deep -- /bin/l)" "/bin/ls "
}

completion_knows_pids_and_tags() {
	start_steady a shared --default kv_cache
	start_steady b shared --default weights
	exits 0 "$stayput" ps
	equal "$(complete_at show '')" "$(printf '%s\n' "$a_pid" "$b_pid" | sort | tr '\n' ' ')"
	equal "$(complete_at pause "$a_pid" k)" "kv_cache "
	equal "$(complete_at resume "$b_pid" --tag '')" "weights "
	equal "$(complete_at pause w)" " "
}

tests=(
	everything_is_installed_and_exactly_that_is_removed
	the_installed_program_finds_the_installed_library
	a_link_to_the_program_finds_the_library
	pkg_config_says_where_things_are
	the_manual_has_every_option_and_exit_code
	the_manual_is_good_mdoc
	completion_knows_commands_and_options
	completion_knows_pids_and_tags
)
run_tests "$@"
