#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# scaling.sh BUILD [MIB] - pause and resume on 1, 2, 4, 8 … GPUs, as many as there are: one
# process with all of them, and a process for each; MIB (16384) on each GPU. Prints a table;
# the same as JSON goes to $OUT/scaling.json. Without a GPU: on the fake driver with eight
# devices, small, where all is checked but speed.
set -eu
build=$(cd "$1" && pwd)
mib=${2:-16384}
root=$(cd "$(dirname "$0")/../.." && pwd)
out=${OUT:-$(mktemp -d)}
include=$(sh "$root/src/find_cuda.sh")
runtime=$(sh "$root/src/find_runtime.sh" "$include")
devices=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU ' || true)

if [ -z "$runtime" ] || [ "$devices" -eq 0 ]; then
	echo "no GPU to use: on the fake driver, small, figures mean nothing"
	runtime=$build/fake/libcudart.so.13
	devices=8
	mib=${2:-60}
	FAKECUDA_SHARE=$(mktemp -u)
	export FAKECUDA_SHARE FAKECUDA_DEVICES=8 FAKECUDA_MEMORY=1GiB STAYPUT_THREADS=2
	export LD_LIBRARY_PATH="$build/fake${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
	trap 'rm -f "$FAKECUDA_SHARE"' EXIT
fi
driver=$build/fake/libcuda.so.1
[ -e "$driver" ] || driver=$(ldconfig -p | sed -n 's/.*libcuda\.so\.1 .*=> //p' | head -n 1)
${CC:-cc} -std=gnu11 -O2 -pthread -I"$root/include" -isystem "$include" \
	-o "$build/scaling" "$root/tests/gpu/scaling.c" "$build/libstayput.so" "$runtime" \
	"$driver" -ldl -Wl,-rpath,"$build:$(dirname "$runtime")"

: >"$out/scaling.json"
failed=
n=1
while [ "$n" -le "$devices" ]; do
	for how in together apart; do
		[ "$n" -gt 1 ] || [ "$how" = together ] || continue
		setsid "$build/scaling" "$n" "$how" "$mib" >>"$out/scaling.json" ||
			failed="$failed $n-$how"
	done
	n=$((n * 2))
done
python3 - "$out/scaling.json" <<'P'
import json
import sys

rows = [json.loads(line) for line in open(sys.argv[1])]
PHASES = ("first_pause", "warm_pause", "warm_resume", "unchanged_pause")
print("\nGB/s of all GPUs together (times one GPU; part of the bare copy)")
print("| GPUs | processes | bare out | bare in | "
      + " | ".join(p.replace("_", " ") for p in PHASES)
      + " | host MiB by node | pairs | links |")
print("|" + "---|" * (7 + len(PHASES)))
one = rows[0] if rows else {}
for row in rows:
    cells = []
    for phase in PHASES:
        bare = row["bare_to_device_GBps" if "resume" in phase else "bare_to_host_GBps"]
        rate = row[phase + "_GBps"]
        cells.append(f"{rate:.1f} (x{rate / one[phase + '_GBps']:.2f}; {rate / bare:.2f})")
    print(f"| {row['devices']} | {row['processes']} | {row['bare_to_host_GBps']:.1f} | "
          f"{row['bare_to_device_GBps']:.1f} | {' | '.join(cells)} | "
          f"{'+'.join(map(str, row['host_mib_by_node']))} | {row['peer_pairs']} | "
          f"{row['ipc_links']} |")
P
echo "failed:${failed:- none}"
[ -z "$failed" ]
