#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# run.sh BUILD [CUDA] - the table of routes in README.md, row by row: which of the two
# libraries catches what a program allocates and frees. On the GPU with the CUDA toolkit in
# the folder CUDA; on the fake driver without, where frameworks have no row.
set -eu
build=$(cd "$1" && pwd)
root=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
include=$(sh "$root/src/find_cuda.sh")
lib=$build/fake
[ $# -lt 2 ] || lib=$2/lib64
export LD_LIBRARY_PATH="$lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
export STAYPUT_DEFAULT=everything STAYPUT_LOG=error XLA_PYTHON_CLIENT_PREALLOCATE=false

compile() { # NAME ROUTE OPTION...
	name=$1 route=$2
	shift 2
	${CC:-cc} -std=gnu11 -O2 -DROUTE="$route" -I"$root/include" -isystem "$include" \
		-o "$work/$name" "$root/tests/routes/route.c" "$@" -ldl
}
stubs="-L$lib -L$lib/stubs"
# shellcheck disable=SC2086 # two options
{
	compile shared RUNTIME $stubs -lcudart
	compile static RUNTIME $stubs -l:libcudart_static.a -lpthread -lrt
	compile driver DRIVER $stubs -lcuda
	compile dlsym DLSYM $stubs -lcuda
	compile proc_address PROC_ADDRESS $stubs -lcuda
	compile entry_point ENTRY_POINT $stubs -lcudart -lcuda
	compile plugin.so RUNTIME -DPLUGIN -shared -fPIC $stubs -lcudart
}
${CC:-cc} -O2 -o "$work/host" "$root/tests/routes/host.c" -ldl
runtime=$(find -L "$lib" -maxdepth 1 -name 'libcudart.so.1[0-9]' | sort | tail -n 1)

take() { # LIBRARY COMMAND...
	library=$1
	shift
	answer=$(LD_PRELOAD=$build/$library timeout 300 "$@" 2>"$work/stderr" | tail -n 1)
	[ -n "$answer" ] || answer="FAILED: $(tail -n 1 "$work/stderr")"
	echo "$answer"
}
row() { # TEXT COMMAND...
	text=$1
	shift
	shallow=$(take libstayput.so "$@")
	[ "$shallow" = absent ] || echo "| $text | $shallow | $(take libstayput-deep.so "$@") |"
}

echo '| route | `libstayput.so` | `libstayput-deep.so` |'
echo '|---|---|---|'
row 'shared CUDA runtime' "$work/shared"
row 'static CUDA runtime (nvcc'\''s default)' "$work/static"
row 'linked to the driver' "$work/driver"
row '`dlsym` in `libcuda.so.1`' "$work/dlsym"
row '`cuGetProcAddress`' "$work/proc_address"
row '`cudaGetDriverEntryPoint`' "$work/entry_point"
row '`ctypes.CDLL("libcudart.so.13").cudaMalloc`' \
	python3 "$root/tests/routes/frameworks.py" ctypes "$runtime"
row 'plugin opened with `RTLD_LOCAL`' "$work/host" "$work/plugin.so"
row 'plugin opened with `RTLD_DEEPBIND`' "$work/host" "$work/plugin.so" deepbind
[ $# -eq 2 ] || exit 0
frameworks=$root/tests/routes/frameworks.py
row PyTorch python3 "$frameworks" torch
row 'PyTorch with `expandable_segments`' \
	env PYTORCH_ALLOC_CONF=expandable_segments:True python3 "$frameworks" torch
row CuPy python3 "$frameworks" cupy
row Numba python3 "$frameworks" numba
row JAX python3 "$frameworks" jax
