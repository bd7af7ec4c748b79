#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# examples.sh [NAME...] - runs the Python examples on this machine's GPU, with the libraries
# of build/ (`make`) and the package of python/. What each printed goes to $OUT/NAME.txt;
# last comes a table. All by default: engine switch rl_colocate torchrun_colocate. Sizes are
# for a card of 80 GiB or more and 100 GiB of host memory; about 150 s on an H200.
set -u
root=$(cd "$(dirname "$0")/../.." && pwd)
out=${OUT:-$(mktemp -d)}
export PYTHONPATH="$root/python${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
export HF_HUB_OFFLINE=1

# A virtual machine may get its memory from the host only as it is touched: what it says is
# available is too little until then, and backups would be refused.
touch_memory() {
	python3 - <<'END'
import time
def total():
    return int(open("/proc/meminfo").readline().split()[1]) >> 20
blocks, start = [], time.time()
while total() < 110 and len(blocks) < 96 and time.time() < start + 60:
    blocks.append(b"\1" * (1 << 30))
print(f"host memory: {total()} GiB, {len(blocks)} touched in {time.time() - start:.0f} s")
END
}

run_one() { # NAME
	case $1 in
	engine) set -- python3 "$root/examples/engine.py" --gib 24 ;;
	switch) set -- python3 "$root/examples/switch.py" --gib 16 ;;
	rl_colocate) set -- python3 "$root/examples/rl_colocate.py" ;;
	torchrun_colocate)
		set -- python3 -m torch.distributed.run --nproc-per-node=1 \
			"$root/examples/torchrun_colocate.py" --gib 40
		;;
	*) set -- false ;;
	esac
	echo "\$ $*" | sed "s|$root/||"
	timeout 150 "$@"
}

[ $# -gt 0 ] || set -- engine switch rl_colocate torchrun_colocate
touch_memory &
toucher=$!
table='' failed=0
for name; do
	[ "$name" = engine ] || wait $toucher
	start=$(date +%s)
	if run_one "$name" >"$out/$name.txt" 2>&1; then
		word=ok
	else
		word=FAILED failed=1
		tail -n 40 "$out/$name.txt"
	fi
	table="$table$word in $(($(date +%s) - start)) s, $(grep "^$name: " "$out/$name.txt")
"
done
printf '%s' "$table"
exit $failed
