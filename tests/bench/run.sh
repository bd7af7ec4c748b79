#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# run.sh BUILD - tests/bench/bench.c on this machine's GPU. Without one it runs on the fake
# driver at a fortieth of the size, which shows that it works and nothing else.
set -eu
build=$(cd "$1" && pwd)
root=$(cd "$(dirname "$0")/../.." && pwd)
include=$(sh "$root/src/find_cuda.sh")
runtime=$(sh "$root/src/find_runtime.sh" "$include")
scale=1

if [ -z "$runtime" ]; then
	echo "no GPU to use: on the fake driver, small, figures mean nothing"
	runtime=$build/fake/libcudart.so.13
	scale=40
	export FAKECUDA_DEVICES=2
	export LD_LIBRARY_PATH="$build/fake${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
fi
# The symbols of libcuda are in the fake one, too; which is loaded is decided at the start.
${CC:-cc} -O2 -pthread -I"$root/include" -isystem "$include" -o "$build/bench" \
	"$root/tests/bench/bench.c" "$build/libstayput.so" "$runtime" \
	"$build/fake/libcuda.so.1" -Wl,-rpath,"$build:$(dirname "$runtime")"
"$build/bench" --scale $scale --json "$build/bench.json"
echo "the same figures: $build/bench.json"
