#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# find_runtime.sh INCLUDE - prints a shared libcudart that belongs to the headers in INCLUDE
# when this machine has a GPU to use it on, else nothing. On standard error, the GPU.
gpu=$(nvidia-smi -L 2>/dev/null | head -n 1 | sed 's/ (UUID.*//')
case $gpu in
GPU*) ;;
*) exit ;;
esac
for dir in "$1/../lib64" "$1/../lib" "$1"/../targets/*/lib; do
	for so in "$dir"/libcudart.so.*; do
		if [ -e "$so" ]; then
			echo "$gpu" >&2
			echo "$so"
			exit
		fi
	done
done
so=$(ldconfig -p 2>/dev/null | sed -n 's/.*libcudart\.so\.[0-9.]* .*=> //p' | head -n 1)
if [ -n "$so" ]; then
	echo "$gpu" >&2
	echo "$so"
else
	echo "$gpu, but no libcudart.so beside the headers in $1" >&2
fi
