#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# check_elf.sh LIB MAP OBJ... - what the library exports and needs is exactly what we say.
# Prints "ok NAME" or "FAIL NAME" for each check, before a FAIL what is wrong.
set -u
lib=$1
map=$2
shift 2
failed=0

# check NAME FOUND - passes when nothing was found.
check() {
	if [ -z "$2" ]; then
		echo "ok $1"
	else
		printf '%s\nFAIL %s\n' "$2" "$1"
		failed=1
	fi
}

exports=$(nm -D --defined-only "$lib" | awk '{ sub(/@.*/, "", $3); print $3 }' |
	sort -u)
wanted=$(sed -n '/^global:/,/^local:/s/^[[:space:]]*\([A-Za-z_0-9]*\);$/\1/p' "$map" |
	sort)
dynamic=$(readelf -dW "$lib")

# Lines that only one of two texts has.
difference() {
	printf '%s\n%s\n' "$1" "$2" | sort | uniq -u
}

check exports_are_exactly_those_of_the_map "$(difference "$exports" "$wanted")"

# Also a bare pause() or resume(), which would take the C library's place in the program.
# The function of the C library that is to be replaced has to be in the map.
check every_export_has_a_prefix_of_ours_or_cudas \
	"$(echo "$exports" | grep -Ev '^(stayput_[a-z]|tms_[a-z]|cu[A-Z]|cuda[A-Z]|(dlsym|set_memory_margin_bytes)$)')"

# A preload that needs a library which is not there keeps every program from starting.
check nothing_but_the_c_library_is_needed "$(echo "$dynamic" | grep '(NEEDED)' |
	grep -Ev '\[(lib(c|m|dl|pthread|asan|tsan|ubsan|gcc_s)|ld-linux[^]]*)\.so')"

# A caller that was linked to a versioned runtime would not be bound to us.
check no_version_is_defined "$(readelf -VW "$lib" | grep 'Version definition')"

check no_cuda_function_is_undefined \
	"$(nm -D --undefined-only "$lib" | grep -E ' (cu|cuda)[A-Z]')"

# A call by name to a function that we stand in front of links, and then calls ourselves.
check no_object_calls_a_cuda_function_by_name "$(for object; do
	readelf -rW "$object" | grep -E '_(PLT|GOT|REX_GOT|CALL|JUMP|ADR_GOT|LD64_GOT)' |
		grep -E ' (cu|cuda)[A-Z]' | sed "s|^|${object##*/}: |"
done)"

# In the library that overrides dlsym(), it would be answered with our own hooks.
check no_object_calls_dlsym_by_name "$(nm -A --undefined-only "$@" | grep ' U dlsym$')"

check everything_is_bound_at_load "$(echo "$dynamic" |
	grep -Eq 'BIND_NOW|FLAGS_1.*NOW' || echo 'BIND_NOW is missing')"

# Libraries that are opened after the start share about 1600 bytes between them.
thread_bytes=$(readelf -lW "$lib" | awk '$1 == "TLS" { print $6 }')
check threads_have_few_variables "$([ $((thread_bytes)) -le 256 ] ||
	echo "$((thread_bytes)) bytes in each thread")"

# Freed pointers may still come in while the process ends.
check the_library_is_never_unloaded \
	"$(echo "$dynamic" | grep -q 'FLAGS_1.*NODELETE' || echo 'NODELETE is missing')"

exit $failed
