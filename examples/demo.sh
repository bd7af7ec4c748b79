#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# demo.sh BUILD - examples/pause.c: on the GPU when this machine has one that a CUDA runtime
# can use, else on the fake driver of the tests.
set -eu
build=$1
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/.." && pwd)
include=$(sh "$root/src/find_cuda.sh")

# The folder of a real libcudart.so.*, or nothing.
find_runtime() {
	for dir in "$include/../lib64" "$include/../lib" "$include/../targets/x86_64-linux/lib" \
		"$include/../targets/sbsa-linux/lib"; do
		for so in "$dir"/libcudart.so.*; do
			[ -e "$so" ] && echo "$so" && return
		done
	done
	ldconfig -p 2>/dev/null | sed -n 's/.*libcudart\.so\.[0-9.]* .*=> //p' | head -n 1
}

run() { # DESCRIPTION RUNTIME
	echo "stayput demo on $1"
	${CC:-cc} -O2 -I"$root/include" -isystem "$include" -o "$build/pause" "$here/pause.c" \
		"$build/libstayput.so" "$2" -Wl,-rpath,"$(cd "$(dirname "$2")" && pwd)"
	LD_PRELOAD="$(cd "$build" && pwd)/libstayput.so" "$build/pause"
}

gpu=$(nvidia-smi -L 2>/dev/null | head -n 1 | sed 's/ (UUID.*//') || gpu=
runtime=$(find_runtime)
case $gpu in
GPU*)
	if [ -n "$runtime" ]; then
		run "$gpu" "$runtime"
		exit
	fi
	echo "there is a GPU ($gpu) but no libcudart.so beside the headers in $include"
	;;
esac
LD_LIBRARY_PATH="$(cd "$build/fake" && pwd)${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
export LD_LIBRARY_PATH
run "the fake driver, since this machine has no GPU to use" "$build/fake/libcudart.so.13"
