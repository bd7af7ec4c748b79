# SPDX-License-Identifier: Apache-2.0
"""A decode step captured as a CUDA graph survives having its memory taken away.

Weights keep their contents (policy host), the KV cache and the graph's own pool do not
(discard): after resume the cache is filled again, as an engine would by prefilling, and
the graph that was captured before is replayed. Meanwhile another process has had the card.

    LD_PRELOAD=build/libstayput.so python3 examples/cuda_graph.py [--gib 72] [--cycles 1]
"""
import argparse
import contextlib
import ctypes
import os
import subprocess
import sys
import time

import torch

DEFAULT, HOST, DISCARD = 0, 1, 2
WIDTH = 8192
GIB = 1 << 30

library = ctypes.CDLL(None)
library.stayput_last_error.restype = ctypes.c_char_p
pools = {}


def stayput(name, *args):
    if getattr(library, name)(*args):
        sys.exit(f"{name}: {library.stayput_last_error().decode()}")


@contextlib.contextmanager
def region(tag, policy):
    """Tensors made here belong to `tag`. The pool of its own keeps PyTorch's caching
    allocator from handing out a block that another region gave back."""
    pool = pools.setdefault(tag, torch.cuda.MemPool())
    stayput("stayput_region_push", tag.encode(), policy)
    try:
        with torch.cuda.use_mem_pool(pool):
            yield
    finally:
        stayput("stayput_region_pop")


class Model:
    """Layers of one projection and one attention head over a long cache."""

    def __init__(self, gib):
        layers = max(1, int(gib * GIB * 2 / 9) // (WIDTH * WIDTH * 2))
        tokens = int(gib * GIB * 7 / 9) // layers // 2 // (WIDTH * 2)
        generator = torch.Generator(device="cuda").manual_seed(1)
        with region("weights", HOST):
            self.weights = [
                torch.empty(WIDTH, WIDTH, device="cuda", dtype=torch.bfloat16)
                for _ in range(layers)
            ]
        for weight in self.weights:
            weight.normal_(std=WIDTH**-0.5, generator=generator)
        with region("kv_cache", DISCARD):
            self.cache = [
                torch.empty(2, tokens, WIDTH, device="cuda", dtype=torch.bfloat16)
                for _ in range(layers)
            ]
        self.x = torch.ones(1, WIDTH, device="cuda", dtype=torch.bfloat16)

    def prefill(self):
        generator = torch.Generator(device="cuda").manual_seed(2)
        for layer in self.cache:
            layer.normal_(generator=generator)

    def decode(self):
        x = self.x
        for weight, (keys, values) in zip(self.weights, self.cache):
            scores = torch.softmax((x @ keys.T).float() * WIDTH**-0.5, -1)
            x = torch.nn.functional.rms_norm(
                x + (x + scores.bfloat16() @ values) @ weight, (WIDTH,))
        return x

    def addresses(self):
        return [t.data_ptr() for t in self.weights + self.cache]


def capture(model):
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        model.decode()  # libraries make their handles now, not inside the capture
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    stayput("stayput_region_push", b"cuda_graph", DISCARD)
    with torch.cuda.graph(graph):
        logits = model.decode()
    stayput("stayput_region_pop")
    return graph, logits


def used_mib():
    """What nvidia-smi says that this process uses."""
    rows = subprocess.run(
        ["nvidia-smi", "--query-compute-apps=pid,used_memory",
         "--format=csv,noheader,nounits"],
        capture_output=True, text=True, check=True,
        env={k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}).stdout
    for row in rows.splitlines():
        pid, used = row.split(",")
        if int(pid) == os.getpid():
            return int(used)
    return -1


FILL = """
import torch
free, total = torch.cuda.mem_get_info()
block = torch.full(((free - (1 << 30)) // 4,), 7, dtype=torch.int32, device="cuda")
assert int(block[-1]) == 7
print(f"another process had {block.nbytes / 2**30:.1f} GiB of it")
"""


def fill_card():
    environment = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}
    return subprocess.run([sys.executable, "-c", FILL], env=environment, check=True,
                          capture_output=True, text=True).stdout.strip()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    total = torch.cuda.get_device_properties(0).total_memory / GIB
    parser.add_argument("--gib", type=float, default=min(72, total / 2),
                        help="memory in regions (default 72, at most half the card)")
    parser.add_argument("--cycles", type=int, default=1)
    args = parser.parse_args()
    if not hasattr(library, "stayput_pause"):
        sys.exit("start this with LD_PRELOAD=build/libstayput.so")

    model = Model(args.gib)
    model.prefill()
    graph, logits = capture(model)
    graph.replay()
    expected, addresses = logits.clone(), model.addresses()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    print(f"{len(model.weights)} layers, {args.gib:.0f} GiB in regions")

    for cycle in range(1, args.cycles + 1):
        before = used_mib()
        start = time.perf_counter()
        stayput("stayput_pause", None)
        paused = time.perf_counter()
        during = used_mib()
        others = fill_card() if cycle == 1 else ""
        resuming = time.perf_counter()
        stayput("stayput_resume", None)
        resumed = time.perf_counter()
        model.prefill()
        graph.replay()
        same = torch.equal(logits, expected) and model.addresses() == addresses
        print(f"cycle {cycle}: {before} MiB, paused in {paused - start:.2f} s: {during} "
              f"MiB, resumed in {resumed - resuming:.2f} s: {used_mib()} MiB; logits and "
              f"addresses {'equal' if same else 'DIFFER'}")
        if others:
            print(others)
        if not same:
            sys.exit(1)


main()
