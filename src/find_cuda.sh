#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Prints the folder that holds cuda.h and cuda_runtime_api.h, or nothing. First match of:
# $CUDA_HOME, /usr/local/cuda, the compiler's own path, python3's nvidia packages.
has() { [ -f "$1/cuda.h" ] && [ -f "$1/cuda_runtime_api.h" ]; }

for dir in ${CUDA_HOME:+"$CUDA_HOME/include"} /usr/local/cuda/include; do
	if has "$dir"; then
		echo "$dir"
		exit
	fi
done
dir=$(printf '#include <cuda_runtime_api.h>\n' | ${CC:-cc} -E -x c - 2>/dev/null |
	sed -n 's/^# [0-9]* "\(.*\)\/cuda_runtime_api\.h".*/\1/p' | head -n 1)
if [ -n "$dir" ] && has "$dir"; then
	echo "$dir"
	exit
fi
for site in $(python3 -c 'import site; print(*site.getsitepackages(), site.getusersitepackages())' 2>/dev/null); do
	for dir in "$site"/nvidia/cu*/include "$site"/nvidia/cuda_runtime/include; do
		if has "$dir"; then
			echo "$dir"
			exit
		fi
	done
done
