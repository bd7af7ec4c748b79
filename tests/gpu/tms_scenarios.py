#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The uses that torch_memory_saver is made for, by its own Python package over our library.

Here, once: get the package, and put our libraries into it.

    make
    pip download -q --no-deps --only-binary :all: -d build/tms torch-memory-saver==0.0.10
    python3 -m zipfile -e build/tms/*.whl build/tms/package
    PYTHONPATH=python python3 -m stayput.tms install --package-dir build/tms/package

On the machine with the GPU, where build/tms/package has been carried to:

    python3 tests/gpu/tms_scenarios.py build/tms/package

Takes about a minute on one GPU, and needs 24 GiB of it. With two GPUs the scenarios of
several devices are run too. After `stayput.tms uninstall`, --original runs what the library
that the package brings is expected to do as well.

Scenarios share a process, and PyTorch keeps what a region's pool once had: every scenario
has tags of its own, but for simple(), which comes first.
"""

import argparse
import gc
import glob
import os
import subprocess
import sys
import time
import traceback

MIB, GIB = 1 << 20, 1 << 30
SLACK = 64 * MIB


def package():
    from torch_memory_saver import torch_memory_saver

    return torch_memory_saver


def free_bytes(device=0):
    import torch

    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    return torch.cuda.mem_get_info(device)[0]


def full(size, value, device="cuda"):
    import torch

    return torch.full((size,), value, dtype=torch.uint8, device=device)


def near(got, want, slack=SLACK):
    assert abs(got - want) <= slack, f"{got / MIB:.0f} MiB, expected {want / MIB:.0f} MiB"


def holds(tensor, value):
    assert bool((tensor == value).all()), f"contents are not {value}"


def simple():
    tms = package()
    outside = full(256 * MIB, 9)
    with tms.region():
        inside = full(GIB, 5)
    address, free = inside.data_ptr(), free_bytes()
    tms.pause()
    near(free_bytes() - free, GIB)
    holds(outside, 9)
    tms.resume()
    near(free_bytes(), free)
    assert inside.data_ptr() == address
    inside.fill_(6)
    holds(inside, 6)


def tags():
    tms = package()
    with tms.region(tag="weights"):
        weights = full(GIB, 1)
    with tms.region(tag="kv_cache"):
        cache = full(2 * GIB, 2)
    free = free_bytes()
    for order in (("weights", "kv_cache"), ("kv_cache", "weights")):
        tms.pause(order[0])
        near(free_bytes() - free, GIB if order[0] == "weights" else 2 * GIB)
        tms.pause(order[1])
        near(free_bytes() - free, 3 * GIB)
        tms.resume(order[1])
        tms.resume(order[0])
        near(free_bytes(), free)
        weights.fill_(3)
        cache.fill_(4)
    tms.pause("kv_cache")
    holds(weights, 3)
    tms.resume("kv_cache")


def wrong_states():
    """Where the package's own library ends the process."""
    tms = package()
    with tms.region(tag="a", enable_cpu_backup=True):
        a = full(64 * MIB, 1)
    with tms.region(tag="b", enable_cpu_backup=True):
        b = full(64 * MIB, 2)
    tms.resume()
    tms.pause("a")
    tms.pause("a")
    tms.pause()
    tms.resume("b")
    tms.resume()
    tms.resume()
    tms.pause("nobody has this tag")
    holds(a, 1)
    holds(b, 2)
    assert tms.get_cpu_backup(full(MIB, 3)) is None


def _backup(name, backend, retain=False):
    import torch

    tms = package()
    tms.retain_cpu_backup = retain
    with tms.region(tag=name, enable_cpu_backup=True, cpu_backup_backend=backend):
        kept = torch.arange(128 * MIB, dtype=torch.int32, device="cuda")
        small = torch.full((10, 20, 30), 1.5, device="cuda")
    with tms.region(tag="lost"):
        lost = full(256 * MIB, 77)
    expected = kept.cpu()
    for _ in range(3):
        free = free_bytes()
        tms.pause(name)
        tms.pause("lost")
        near(free_bytes() - free, 768 * MIB)
        assert torch.equal(tms.get_cpu_backup(kept, zero_copy=True), expected)
        assert torch.equal(tms.get_cpu_backup(small), torch.full((10, 20, 30), 1.5))
        assert tms.get_cpu_backup(lost) is None
        tms.resume()
        assert torch.equal(kept.cpu(), expected)
        if retain:
            assert torch.equal(tms.get_cpu_backup(kept, zero_copy=True), expected)
        else:
            assert tms.get_cpu_backup(kept) is None
        lost.fill_(77)
    kept += 1
    tms.pause()
    tms.resume()
    assert torch.equal(kept.cpu(), expected + 1)
    tms.retain_cpu_backup = False
    tms.resume()


def backup_pinned():
    _backup("pinned", "pinned")


def backup_mmap():
    _backup("mmap", "mmap")


def backup_retained():
    _backup("retained", None, retain=True)


def disk_backup():
    tms = package()
    with tms.region(tag="disk", enable_disk_backup=True):
        kept = full(256 * MIB, 8)
    tms.pause("disk")
    tms.resume("disk")
    holds(kept, 8)


def cuda_graph():
    import torch

    tms = package()
    with tms.region(tag="graph_cache"):
        cache = torch.ones(256 * MIB, device="cuda")
    given, result = torch.zeros(1, device="cuda"), torch.zeros(1, device="cuda")

    def step():
        # Intermediates of 1 GiB each, which live in the graph's own pool.
        between = cache * 2 + given
        result.copy_((between / 4).mean().reshape(1))

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        step()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = free_bytes()
    graph = torch.cuda.CUDAGraph()
    with tms.cuda_graph(graph, tag="graph"):
        step()
    pool = before - free_bytes()
    assert pool > GIB, f"the graph's pool has {pool / MIB:.0f} MiB only"
    for value in (2.0, 6.0, 10.0):
        given.fill_(value)
        graph.replay()
        assert result.item() == (2 + value) / 4
        free = free_bytes()
        tms.pause("graph_cache")
        tms.pause("graph")
        near(free_bytes() - free, GIB + pool)
        tms.resume("graph")
        tms.resume("graph_cache")
        cache.fill_(1)
    given.fill_(14.0)
    graph.replay()
    assert result.item() == 4


def several_devices():
    import torch

    if torch.cuda.device_count() < 2:
        return "one device"
    tms = package()
    # A pool of PyTorch's is for the device that is current.
    with tms.region(tag="both", enable_cpu_backup=True):
        zero = full(512 * MIB, 1)
    torch.cuda.set_device(1)
    with tms.region(tag="both", enable_cpu_backup=True):
        one = full(512 * MIB, 2)
    with tms.region(tag="one"):
        other = full(512 * MIB, 3)
    assert (zero.get_device(), one.get_device()) == (0, 1)
    free = [free_bytes(0), free_bytes(1)]
    tms.pause("both")
    near(free_bytes(0) - free[0], 512 * MIB)
    near(free_bytes(1) - free[1], 512 * MIB)
    tms.pause("one")
    near(free_bytes(1) - free[1], GIB)
    holds(full(MIB, 4, "cuda:0"), 4)
    assert torch.cuda.current_device() == 1
    tms.resume()
    assert torch.cuda.current_device() == 1
    holds(zero, 1)
    holds(one, 2)
    other.fill_(5)
    holds(other, 5)
    torch.cuda.set_device(0)


def peer_copy():
    import torch

    if torch.cuda.device_count() < 2:
        return "one device"
    tms = package()
    native = full(64 * MIB, 6, "cuda:1")
    holds(native.to("cuda:0"), 6)
    with torch.cuda.device(1), tms.region(tag="peers", enable_cpu_backup=True):
        ours = full(64 * MIB, 7)
    holds(ours.to("cuda:0"), 7)
    tms.pause("peers")
    tms.resume("peers")
    holds(ours.to("cuda:0"), 7)


def out_of_memory():
    import torch

    tms = package()
    total = torch.cuda.mem_get_info()[1]
    for _ in range(2):
        try:
            with tms.region(tag="large"):
                full(2 * total, 1)
            raise AssertionError("twice the card was allocated")
        except torch.OutOfMemoryError:
            pass
    with tms.region(tag="large"):
        fits = full(GIB, 7)
    holds(fits, 7)


def margin():
    import torch

    tms = package()
    with tms.region(tag="margin"):
        full(MIB, 1)
    tms.memory_margin_bytes = free_bytes() - GIB
    try:
        with tms.region(tag="margin"):
            fits = full(512 * MIB, 2)
        try:
            with tms.region(tag="margin"):
                full(2 * GIB, 3)
            raise AssertionError("the margin was not kept")
        except torch.OutOfMemoryError:
            pass
        holds(fits, 2)
    finally:
        tms.memory_margin_bytes = 0


def nested_regions():
    """TMS_INIT_ENABLE and TMS_INIT_ENABLE_CPU_BACKUP are set."""
    tms = package()
    weights = full(512 * MIB, 42)
    with tms.region(tag="grad_buffer", enable_cpu_backup=False):
        gradients = full(512 * MIB, 99)
        with tms.region(tag="inner", enable_cpu_backup=True):
            inner = full(64 * MIB, 43)
    more = full(512 * MIB, 44)
    free = free_bytes()
    tms.pause("grad_buffer")
    near(free_bytes() - free, 512 * MIB)
    holds(weights, 42)
    tms.pause("default")
    tms.pause("inner")
    assert tms.get_cpu_backup(gradients) is None
    tms.resume("default")
    holds(weights, 42)
    holds(more, 44)
    tms.resume("inner")
    holds(inner, 43)
    tms.resume("grad_buffer")
    gradients.fill_(1)
    holds(gradients, 1)


def training_engine():
    """As nested_regions(): everything is in a region."""
    import torch

    tms = package()
    torch.manual_seed(0)
    layers = [torch.nn.Linear(4096, 4096, device="cuda") for _ in range(16)]
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    data = torch.randn(2048, 4096, device="cuda")

    def train():
        loss = (model(data) - data).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        assert loss.isfinite()

    def sums():
        moments = [m for s in optimizer.state.values() for m in s.values()]
        return [t.double().sum().item() for t in [*model.parameters(), *moments, data]]

    train()
    for _ in range(2):
        before = sums()
        free = free_bytes()
        tms.pause()
        released = free_bytes() - free
        assert released > 3 * GIB, f"{released / MIB:.0f} MiB only"
        with tms.disable():
            # Native memory while all else is paused, given back at the end.
            between = full(GIB, 53)
            holds(between, 53)
            del between
        near(free_bytes(), free + released)
        tms.resume()
        near(free_bytes(), free)
        assert sums() == before
        train()
        assert sums() != before


PLAIN = [simple, tags, backup_pinned, backup_mmap, backup_retained, several_devices]
OURS = [wrong_states, disk_backup, out_of_memory, margin]
EVERYTHING = {"TMS_INIT_ENABLE": "1", "TMS_INIT_ENABLE_CPU_BACKUP": "1"}
# Hook mode, environment, scenarios: a process each.
RUNS = [
    ("preload", {}, [*PLAIN, cuda_graph, *OURS, peer_copy]),
    ("torch", {}, [*PLAIN, *OURS]),
    ("preload", EVERYTHING, [nested_regions, training_engine]),
]


def run_one(scenario):
    """The word for the table, and what it took."""
    import torch

    start = time.perf_counter()
    try:
        word = f"skip: {why}" if (why := scenario()) else "ok"
    except Exception:
        traceback.print_exc()
        word = "failed"
    gc.collect()
    torch.cuda.empty_cache()
    return word, time.perf_counter() - start


def child(mode, names):
    package().hook_mode = mode
    for name in names:
        word, seconds = run_one(globals()[name])
        print(f"scenario {mode} {name} {seconds:.2f} {word}", flush=True)
    return 0


def preload_of(folder):
    """The package looks at PyTorch's version too, which takes seconds to import."""
    code = "import torch; print(torch.version.cuda)"
    version = subprocess.check_output([sys.executable, "-c", code], text=True)
    major = version.split(".")[0]
    pattern = f"torch_memory_saver_hook_mode_preload_cu{major}.*so"
    found = glob.glob(os.path.join(folder, pattern))
    assert len(found) == 1, f"{pattern} in {folder}: {found}"
    return found[0]


def run(folder, preload, mode, extra, scenarios):
    """Lines of the table: what a process did not come to has failed."""
    path = os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH")]))
    env = dict(os.environ, PYTHONPATH=path, **extra)
    if mode == "preload":
        env["LD_PRELOAD"] = preload
    names = [scenario.__name__ for scenario in scenarios]
    done = subprocess.run(
        [sys.executable, __file__, folder, "--child", mode, *names],
        env=env,
        stdout=subprocess.PIPE,
        text=True,
    )
    results = {}
    for line in done.stdout.splitlines():
        if line.startswith("scenario "):
            _, _, name, seconds, word = line.split(" ", 4)
            results[name] = (word, seconds)
            print(f"{word} {mode} {name}")
        else:
            print(line)
    for name in names:
        if name not in results:
            results[name] = (f"failed: status {done.returncode}", "-")
            print(f"failed {mode} {name}: the process ended with {done.returncode}")
    if done.returncode != 0:
        results["the end"] = (f"failed: status {done.returncode}", "-")
    return [(mode, name, *result) for name, result in results.items()]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("package", help="folder that torch_memory_saver was unpacked to")
    parser.add_argument("--original", action="store_true", help="the package's own library")
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    args = parser.parse_args()
    folder = os.path.abspath(args.package)
    if args.child:
        return child(args.child[0], args.child[1:])
    start = time.perf_counter()
    rows, preload = [], preload_of(folder)
    for mode, extra, scenarios in RUNS:
        left = [s for s in scenarios if not (args.original and s in [*OURS, peer_copy])]
        rows += run(folder, preload, mode, extra, left)
    print(f"\n{'mode':8} {'scenario':18} {'seconds':>8}  result")
    for mode, name, word, seconds in rows:
        print(f"{mode:8} {name:18} {seconds:>8}  {word}")
    failed = sum(row[2].startswith("failed") for row in rows)
    print(f"{len(rows)} scenarios, {failed} failed, {time.perf_counter() - start:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
