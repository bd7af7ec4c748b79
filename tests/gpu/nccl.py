# SPDX-License-Identifier: Apache-2.0
"""nccl.py LIBRARY - all-reduce over buffers in a region on every GPU of this machine, two at
least, a process each: eager and in a CUDA graph, before and after pauses. NCCL's own buffers
stay native."""

import ctypes
import os
import subprocess
import sys

SIZE = 64 << 20


def rank_main(rank, world):
    import torch
    import torch.distributed as dist

    stayput = ctypes.CDLL(None)
    stayput.stayput_last_error.restype = ctypes.c_char_p
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=world)

    def call(function, *args):
        if function(*args):
            sys.exit(f"rank {rank}: {stayput.stayput_last_error().decode()}")

    pool = torch.cuda.MemPool()
    call(stayput.stayput_region_push, b"grads", 1)
    with torch.cuda.use_mem_pool(pool):
        buffer = torch.empty(SIZE // 4, device="cuda")
    call(stayput.stayput_region_pop)
    info = ctypes.create_string_buffer(256)
    ctypes.c_size_t.from_buffer(info).value = 112
    if stayput.stayput_query(ctypes.c_void_p(buffer.data_ptr()), info):
        sys.exit(f"rank {rank}: the buffer is not in the region: "
                 f"{stayput.stayput_last_error().decode()}")

    def reduce_and_check(run, step):
        buffer.fill_(rank + step)
        run()
        torch.cuda.synchronize()
        want = sum(r + step for r in range(world))
        if not bool((buffer == want).all()):
            sys.exit(f"rank {rank}: step {step}: {buffer[0]} instead of {want}")

    reduce_and_check(lambda: dist.all_reduce(buffer), 1)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        dist.all_reduce(buffer)
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        dist.all_reduce(buffer)
    for cycle in range(3):
        free, _ = torch.cuda.mem_get_info()
        call(stayput.stayput_pause, None)
        freed = torch.cuda.mem_get_info()[0] - free
        dist.barrier()
        call(stayput.stayput_resume, None)
        if freed < SIZE // 2:
            sys.exit(f"rank {rank}: only {freed} bytes were freed")
        reduce_and_check(lambda: dist.all_reduce(buffer), 10 + cycle)
        reduce_and_check(graph.replay, 20 + cycle)
    dist.barrier()
    print(f"ok rank {rank} of {world}: all-reduce, eager and replayed, right after 3 pauses")
    sys.stdout.flush()
    os._exit(0)


def main():
    import torch

    world = torch.cuda.device_count()
    if world < 2:
        sys.exit("skipped: two GPUs are needed")
    env = dict(os.environ, LD_PRELOAD=sys.argv[1], NCCL_GRAPH_REGISTER="0",
               MASTER_ADDR="127.0.0.1", MASTER_PORT="29555")
    ranks = [subprocess.Popen([sys.executable, __file__, "--rank", str(r), str(world)], env=env)
             for r in range(world)]
    sys.exit(max(r.wait() for r in ranks))


if sys.argv[1] == "--rank":
    rank_main(int(sys.argv[2]), int(sys.argv[3]))
else:
    main()
