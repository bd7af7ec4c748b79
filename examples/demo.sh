#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# demo.sh BUILD - examples/pause.c: on the GPU when this machine has one that a CUDA runtime
# can use, else on the fake driver of the tests.
set -eu
build=$(cd "$1" && pwd)
root=$(cd "$(dirname "$0")/.." && pwd)
include=$(sh "$root/src/find_cuda.sh")
runtime=$(sh "$root/src/find_runtime.sh" "$include")

if [ -n "$runtime" ]; then
	echo "stayput demo on the GPU"
else
	echo "stayput demo on the fake driver, since this machine has no GPU to use"
	runtime=$build/fake/libcudart.so.13
	export LD_LIBRARY_PATH="$build/fake${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
fi
${CC:-cc} -O2 -I"$root/include" -isystem "$include" -o "$build/pause" \
	"$root/examples/pause.c" "$build/libstayput.so" "$runtime" \
	-Wl,-rpath,"$(dirname "$runtime")"
LD_PRELOAD=$build/libstayput.so "$build/pause"
