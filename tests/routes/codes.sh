#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# codes.sh BUILD [CUDA] - codes.c without the library and with each of the two: prints where
# the answers differ. On the GPU with the CUDA toolkit in the folder CUDA, else on the fake.
set -eu
build=$(cd "$1" && pwd)
root=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
lib=$build/fake
[ $# -lt 2 ] || lib=$2/lib64
export LD_LIBRARY_PATH="$lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"

${CC:-cc} -std=gnu11 -O2 -pthread -isystem "$(sh "$root/src/find_cuda.sh")" -o "$work/codes" \
	"$root/tests/routes/codes.c" -L"$lib" -L"$lib/stubs" -lcudart -lcuda
"$work/codes" >"$work/native"
for library in libstayput.so libstayput-deep.so; do
	LD_PRELOAD=$build/$library STAYPUT_DEFAULT=everything STAYPUT_LOG=error \
		"$work/codes" >"$work/$library"
	diff -U 0 "$work/native" "$work/$library" | sed "s/^/$library: /" >>"$work/differences"
done
cat "$work/differences"
echo "$(wc -l <"$work/native") answers, native and under both libraries"
[ ! -s "$work/differences" ]
