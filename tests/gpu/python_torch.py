# SPDX-License-Identifier: Apache-2.0
"""stayput.torch with the real PyTorch, on this machine's GPU.

    python3 tests/gpu/python_torch.py           every claim, a table last; about a minute
    python3 tests/gpu/python_torch.py GROUP     one group in this process, for a debugger

Groups have a process each: preloaded, pluggable (nothing preloaded) and expandable (with
PyTorch's expandable_segments on). Wants `make` to have built build/, and 8 GiB of the card.
"""

import gc
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(TOP / "python"))

import stayput  # noqa: E402

MIB = 1 << 20
WIDTH = 4096


def free_mib():
    torch.cuda.synchronize()
    return torch.cuda.mem_get_info()[0] // MIB


def tag(tensor):
    info = st.owner(tensor)
    return info and info.tag


def block(mib=64):
    return torch.empty(mib * MIB, dtype=torch.uint8, device="cuda")


def same(got, want):
    assert got == want, f"{got!r} is not {want!r}"


def raises(kind, function, *args, part=""):
    try:
        function(*args)
    except kind as error:
        assert part in str(error), f"{part!r} is not in {error}"
        return str(error)
    raise AssertionError(f"{kind.__name__} was not raised")


def close(context):
    with context:
        pass


# Preloaded, and some of these through the pluggable allocator too.


def regions_are_isolated():
    addresses = {}
    for name, where in (
        ("a", st.region("a")),
        ("b", st.region("b")),
        ("a discard", st.region("a", "discard")),
        ("native", st.native()),
    ):
        with where:
            one, other = block(), block()
        same(tag(one), None if name == "native" else name[0])
        addresses[name] = {one.data_ptr(), other.data_ptr()}
        del one, other
    outside = [block() for _ in range(4)]
    same([tag(t) for t in outside], [None] * 4)
    addresses["outside"] = {t.data_ptr() for t in outside}
    same(len(set.union(*addresses.values())), 12)
    with st.region("a"):
        again = block()
    assert again.data_ptr() in addresses["a"], "the region's own cache was not used"


def the_innermost_region_counts():
    with st.region("a"):
        with st.region("b"):
            with st.region("a"):
                same(tag(block()), "a")
            with st.native():
                same(tag(block()), None)
            same(tag(block()), "b")
        same(tag(block()), "a")
    same(tag(block()), None)


def exceptions_restore_everything():
    try:
        with st.region("a"):
            raises(stayput.Invalid, close, st.region("not a tag"))
            raises(torch.OutOfMemoryError, fill_the_card)
            same(tag(block()), "a")
            raise KeyError
    except KeyError:
        pass
    same(tag(block()), None)


def fill_the_card():
    with st.region("b"):
        return block(1 << 20)


def threads_use_one_tag_at_once():
    tags, together = [], threading.Barrier(4)

    def work():
        with st.region("a"):
            together.wait()
            tags.append(tag(block()))
            together.wait()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    same(tags, ["a"] * 4)


def contents_come_back():
    before = free_mib()
    with st.region("weights"):
        weights = [torch.randn(WIDTH, WIDTH, device="cuda") for _ in range(16)]
    with st.region("kv_cache", "discard"):
        cache = block(1024)
    with st.region("state", "zero"):
        state = torch.ones(1000, device="cuda")
    copies = [w.cpu() for w in weights]
    addresses = [t.data_ptr() for t in (*weights, cache, state)]
    held = free_mib()
    report = st.pause("weights", "kv_cache", "state")
    paused = free_mib()
    assert paused >= before - 64, f"{before - paused} MiB are still held"
    same([st.owner(w).state for w in weights], ["paused"] * 16)
    for weight, copy in zip(weights, copies):
        assert torch.equal(st.host_copy(weight), copy)
    assert torch.equal(st.host_copy(weights[3].T[5:9:2]), copies[3].T[5:9:2])
    raises(stayput.NotFound, st.host_copy, cache)
    back = st.resume("weights", "kv_cache", "state")
    for weight, copy in zip(weights, copies):
        assert torch.equal(weight.cpu(), copy)
    same(int(state.count_nonzero()), 0)
    same([t.data_ptr() for t in (*weights, cache, state)], addresses)
    print(report)
    print(back)
    return f"{paused - held} MiB, {report.seconds:.3f} s and {back.seconds:.3f} s"


class Decoder:
    """Layers whose captured steps read weights and a cache and write an output."""

    def __init__(self):
        with st.region("weights"):
            self.weights = [
                torch.randn(WIDTH, WIDTH, device="cuda") * WIDTH**-0.5 for _ in range(8)
            ]
        with st.region("kv_cache", "discard"):
            self.cache = torch.empty(8, WIDTH, device="cuda")

    def prefill(self):
        self.cache.copy_(torch.arange(8 * WIDTH, device="cuda").view(8, WIDTH) / WIDTH)

    def step(self, x):
        for i, weight in enumerate(self.weights):
            x = torch.nn.functional.gelu(x @ weight) + self.cache[i]
        return x


def graphs_replay_after_a_pause(policy):
    model = Decoder()
    model.prefill()
    inputs = {n: torch.randn(n, WIDTH, device="cuda") for n in (1, 4, 16)}
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for x in inputs.values():
            model.step(x)
    torch.cuda.synchronize()
    graphs, outputs, pool = {}, {}, None
    with st.region("weights"):  # as engines do that capture while they load
        for n, x in inputs.items():
            graphs[n] = torch.cuda.CUDAGraph()
            with st.graph(graphs[n], tag="cuda_graph", policy=policy, pool=pool):
                outputs[n] = model.step(x)
            pool = graphs[n].pool()
            same(tag(outputs[n]), "cuda_graph")
        same(tag(block()), "weights")
    wanted = {n: model.step(x).clone() for n, x in inputs.items()}
    for cycle in range(3):
        for graph in graphs.values():
            graph.replay()
        report = st.pause()
        same([st.owner(out).state for out in outputs.values()], ["paused"] * 3)
        same(stayput.region_info("cuda_graph").state, "paused")
        st.resume()
        model.prefill()
        for n, graph in graphs.items():
            graph.replay()
            assert torch.allclose(outputs[n], wanted[n], atol=1e-3), f"{n} in cycle {cycle}"
    graph_bytes = stayput.region_info("cuda_graph").bytes_active
    speed = report.total.copied_per_second / 1e9
    return f"{graph_bytes / MIB:.0f} MiB of graphs, {speed:.0f} GB/s"


def graphs_replay_with_discard():
    return graphs_replay_after_a_pause("discard")


def graphs_replay_with_host():
    return graphs_replay_after_a_pause("default")


def a_failed_capture_restores_everything():
    before = torch.cuda.current_stream()
    with st.region("a"):
        try:
            with st.graph(torch.cuda.CUDAGraph()):
                raises(stayput.Unsupported, close, st.region("b"))
                raises(stayput.Busy, st.pause)
                torch.ones(1, device="cuda").item()  # cannot be captured
        except RuntimeError:
            pass
        else:
            raise AssertionError("the capture did not fail")
        same(torch.cuda.current_stream(), before)
        same(tag(block()), "a")
    same(tag(block()), None)
    with st.graph(torch.cuda.CUDAGraph()):
        same(tag(block()), "cuda_graph")
    block(512)
    before = free_mib()
    torch.cuda.empty_cache()
    assert free_mib() >= before + 512, "the cache cannot be emptied any more"


def pause_gives_the_cache_back():
    st.pause("a", policy="discard")
    st.resume("a")
    with st.region("a"):
        kept, dropped = block(512), block(1024)
    outside = block(2048)
    before = free_mib()
    del dropped, outside
    report = st.pause("a")
    same(report.total.bytes_released // MIB, 512)
    gained = free_mib() - before
    assert gained >= 3500, f"only {gained} MiB came back"
    st.resume("a")
    same(tag(kept), "a")
    with st.region("a"):
        same(tag(block(1024)), "a")
    return f"{gained} MiB"


def what_outlives_a_region_is_not_in_it():
    """Workspaces of cuBLAS, and seeds of captures: products elsewhere would use them."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream), st.region("early"):
        square = torch.randn(WIDTH, WIDTH, device="cuda", dtype=torch.bfloat16)
        torch.nn.functional.linear(square, square, square[0])
        square @ square
        graph = torch.cuda.CUDAGraph()
        with st.graph(graph, tag="early_graph"):
            out = torch.nn.functional.linear(square, square, square[0])
            out = torch.nn.functional.dropout(out @ square)
    del square, out, graph
    gc.collect()
    st.pause("early", "early_graph")
    same([stayput.region_info(t).count_paused for t in ("early", "early_graph")], [0, 0])
    with torch.cuda.stream(stream):
        other = torch.ones(WIDTH, WIDTH, device="cuda", dtype=torch.bfloat16)
        same(float((other @ other)[0, 0]), float(WIDTH))
        same(float(torch.nn.functional.linear(other, other, other[0])[0, 0]), float(WIDTH))
    st.resume()


def train(pausing):
    torch.manual_seed(1)
    with st.region("train"):
        model = torch.nn.Sequential(
            torch.nn.Linear(1024, WIDTH), torch.nn.GELU(), torch.nn.Linear(WIDTH, 1024)
        ).cuda()
        optimizer = torch.optim.AdamW(model.parameters())
    losses = []
    for _ in range(6):
        with st.region("train"):
            x = torch.randn(64, 1024, device="cuda")
            loss = (model(x) - x).square().mean()
        loss.backward()
        with st.region("train"):
            optimizer.step()
        losses.append(loss.item())
        if pausing:
            st.pause("train")
            same(st.owner(model[0].weight).state, "paused")
            st.resume("train")
        optimizer.zero_grad()
    return losses


def training_goes_on():
    same(train(True), train(False))


def native_memory_can_be_shared():
    with st.native():
        tensor = block(4)
    handle = tensor.untyped_storage()._share_cuda_()[1]
    assert handle, "no IPC handle"
    same(tag(tensor), None)


def every_device_has_its_pools():
    if torch.cuda.device_count() < 2:
        return "skipped: one GPU"
    with st.region("a", device=[0, 1]):
        pair = [torch.ones(64 * MIB, device=f"cuda:{i}") for i in range(2)]
    same([st.owner(t).device for t in pair], [0, 1])
    print(st.pause("a"))
    st.resume("a")
    same([float(t.sum()) for t in pair], [64.0 * MIB] * 2)
    return None


def many_cycles_are_flat():
    model = Decoder()
    st.pause()
    held = free_mib()
    for _ in range(20):
        st.resume()
        with st.region("scratch", "discard"):
            block(256)
        with st.region("weights"):
            block(128)
        st.pause()
    lost = held - free_mib()
    assert lost < 4, f"{lost} MiB were lost"
    st.resume()
    del model


# Not preloaded.


def inactive_says_what_to_do():
    for attempt in (st.region("a").__enter__, st.native().__enter__, st.pause):
        sentence = raises(stayput.Inactive, attempt, part="LD_PRELOAD=")
    assert "use_pluggable_allocator" in sentence
    st.use_pluggable_allocator()
    assert not stayput.is_active()


# With expandable_segments.


def expandable_segments_are_refused():
    for variable in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        os.environ.pop("PYTORCH_CUDA_ALLOC_CONF", None)
        os.environ.pop("PYTORCH_ALLOC_CONF", None)
        os.environ[variable] = "expandable_segments:True"
        for attempt in (st.region("a"), st.graph(None), st.native()):
            sentence = raises(
                stayput.Unsupported, close, attempt, part="expandable_segments:False"
            )
        assert variable in sentence
    same(tag(block()), None)


PRELOADED = (
    regions_are_isolated,
    the_innermost_region_counts,
    exceptions_restore_everything,
    threads_use_one_tag_at_once,
    contents_come_back,
    graphs_replay_with_discard,
    graphs_replay_with_host,
    a_failed_capture_restores_everything,
    pause_gives_the_cache_back,
    what_outlives_a_region_is_not_in_it,
    training_goes_on,
    native_memory_can_be_shared,
    every_device_has_its_pools,
    many_cycles_are_flat,
)
PLUGGABLE = (
    inactive_says_what_to_do,
    regions_are_isolated,
    the_innermost_region_counts,
    exceptions_restore_everything,
    threads_use_one_tag_at_once,
    contents_come_back,
    graphs_replay_with_discard,
    pause_gives_the_cache_back,
    many_cycles_are_flat,
)
GROUPS = {
    "preloaded": (PRELOADED, lambda: stayput.preload_env()),
    "pluggable": (PLUGGABLE, lambda: without_preload()),
    "expandable": (
        (expandable_segments_are_refused,),
        lambda: stayput.preload_env(
            env={**os.environ, "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
        ),
    ),
}


def without_preload():
    return {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}


def run_group(name):
    failed = 0
    for claim in GROUPS[name][0]:
        start = time.perf_counter()
        try:
            said, word = claim() or "", "ok"
        except Exception as error:
            import traceback

            traceback.print_exc(file=sys.stdout)
            said, word = f"{type(error).__name__}: {error}".splitlines()[0], "FAIL"
            failed += 1
        gc.collect()
        seconds = time.perf_counter() - start
        print(
            f"| {name} | {claim.__name__} | {word} | {seconds:.1f} s | {said} |", flush=True
        )
    return failed


def main():
    rows, failed = [], []
    for name, (claims, environment) in GROUPS.items():
        child = subprocess.run(
            [sys.executable, __file__, name],
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        print(child.stdout, end="", flush=True)
        found = [
            line for line in child.stdout.splitlines() if line.startswith(f"| {name} |")
        ]
        rows += found
        if child.returncode != 0 or len(found) != len(claims):
            failed.append(f"{name} (status {child.returncode})")
    print("\n| group | claim | | time | |\n|---|---|---|---|---|")
    print("\n".join(rows))
    print("failed:", ", ".join(failed) or "none")
    return bool(failed)


if len(sys.argv) > 1:
    import stayput.torch as st
    import torch

    sys.exit(run_group(sys.argv[1]) != 0)
sys.exit(main())
