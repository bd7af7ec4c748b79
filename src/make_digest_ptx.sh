#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# make_digest_ptx.sh - src/digest_ptx.h from src/digest.cu. Needs nvcc; the build does not.
# The text is marked as the oldest PTX that has all its instructions, so that the drivers of
# CUDA 11.8 and later take it.
set -eu
cd "$(dirname "$0")"
ptx=$(mktemp)
trap 'rm -f "$ptx"' EXIT
nvcc -ptx -O3 -arch=compute_75 -I. -o "$ptx" digest.cu
{
	echo '/* SPDX-License-Identifier: Apache-2.0 */'
	echo '/* Made by make_digest_ptx.sh from digest.cu. */'
	echo 'static const char digest_ptx[] ='
	sed -e '/^\/\//d' -e '/^[[:space:]]*$/d' -e 's/^\.version .*/.version 6.4/' \
		-e 's/^\.target .*/.target sm_70/' -e 's/[[:space:]]*\/\/.*//' \
		-e 's/\\/\\\\/g' -e 's/"/\\"/g' -e 's/^\(.*\)$/	"\1\\n"/' "$ptx"
	echo '	"";'
} >digest_ptx.h
