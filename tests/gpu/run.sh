#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# run.sh BUILD [PART...] - what only a GPU can show, on this machine's. Needs nvcc and a
# shared libcudart; BUILD holds libstayput.so. Parts, all by default: digest main soak
# overhead bench past graph ipc ipc_torch torch frameworks idle. bench.json goes to $OUT.
set -u
build=$(cd "$1" && pwd) || exit
shift
root=$(cd "$(dirname "$0")/../.." && pwd)
cuda=${CUDA_HOME:-/usr/local/cuda}
out=${OUT:-$(mktemp -d)}
work=$(mktemp -d)
preload=$build/libstayput.so
export LD_LIBRARY_PATH="$build:$cuda/lib64:$cuda/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"

compile_cu() { # NAME
	"$cuda/bin/nvcc" -arch=native -cudart shared -I"$root/include" -o "$work/$1" \
		"$root/tests/gpu/$1.cu" -L"$build" -lstayput
}
compile_c() { # NAME
	cc -O2 -pthread -I"$root/include" -isystem "$cuda/include" -o "$work/$1" \
		"$root/tests/bench/$1.c" -L"$build" -lstayput -L"$cuda/lib64" -L"$cuda/lib" \
		-lcudart -L"$cuda/lib64/stubs" -L"$cuda/lib/stubs" -lcuda
}

digest() {
	cc -c -O2 -std=gnu11 -I"$root/src" -isystem "$cuda/include" -o "$work/reference.o" \
		"$root/tests/digest_reference.c" &&
		"$cuda/bin/nvcc" -arch=native -I"$root/src" -I"$root/tests" \
			-o "$work/digest" "$root/tests/gpu/digest.cu" "$work/reference.o" \
			-L"$cuda/lib64/stubs" -L"$cuda/lib/stubs" -lcuda && "$work/digest"
}
main() {
	compile_cu main_job && LD_PRELOAD=$preload "$work/main_job"
}
soak() {
	compile_cu soak && LD_PRELOAD=$preload "$work/soak" 200 8
}
# Pairs, since the machine's speed drifts.
overhead() {
	cc -O2 -isystem "$cuda/include" -o "$work/overhead" "$root/tests/bench/overhead.c" \
		-L"$cuda/lib64" -L"$cuda/lib" -lcudart || return
	for pair in 1 2 3 4 5; do
		echo "pair $pair without: $("$work/overhead" | tr '\n' ' ')"
		echo "pair $pair with:    $(LD_PRELOAD=$preload "$work/overhead" | tr '\n' ' ')"
	done
}
bench() {
	compile_c bench && "$work/bench" --json "$out/bench.json"
}
# Needs PyTorch for all but the first.
past() {
	compile_cu past && LD_PRELOAD=$preload "$work/past" || return
	says() { # WORDS, JOB, ENVIRONMENT...
		words=$1 job=$2
		shift 2
		env "$@" LD_PRELOAD="$preload" python3 "$root/tests/gpu/past.py" "$job" \
			2>"$work/said" || { cat "$work/said"; return 1; }
		cat "$work/said"
		grep -q "$words" "$work/said"
	}
	says "no allocation has come by" handle STAYPUT_LOG=warn &&
		says "PyTorch's expandable segments" segments STAYPUT_DEFAULT=engine \
			PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True &&
		says "" rules STAYPUT_RULES="pt:module=libc10_cuda"
}
graph() {
	LD_PRELOAD=$preload python3 "$root/examples/cuda_graph.py" --gib 72 --cycles 20
}
torch() {
	python3 "$root/tests/gpu/python_torch.py"
}

ipc() {
	compile_cu ipc && LD_PRELOAD=$preload "$work/ipc"
}
ipc_torch() {
	LD_PRELOAD=$preload python3 "$root/tests/gpu/ipc_torch.py"
}

# CuPy, Numba and JAX; what is not installed is skipped.
frameworks() {
	python3 "$root/tests/gpu/frameworks.py" "$build"
}
idle() {
	compile_cu idle && LD_PRELOAD=$preload "$work/idle"
}

[ $# -gt 0 ] || set -- digest main soak overhead bench past graph ipc ipc_torch torch \
	frameworks idle
failed=
for part; do
	echo "== $part"
	"$part" || failed="$failed $part"
done
echo "failed:${failed:- none}"
[ -z "$failed" ]
