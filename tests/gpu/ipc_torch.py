# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own tensor sharing on region memory: tensors made in a region are sent to a
child process, which reads and writes them; after that a pause releases them, a resume
brings them back, and they can be shared again. One GPU, or two where there are.

    LD_PRELOAD=build/libstayput.so python3 tests/gpu/ipc_torch.py
"""
import ctypes
import sys

import torch
import torch.multiprocessing as multiprocessing

HOST = 1
library = ctypes.CDLL(None)
library.stayput_last_error.restype = ctypes.c_char_p


def stayput(name, *args):
    if getattr(library, name)(*args):
        sys.exit(f"{name}: {library.stayput_last_error().decode()}")


class Info(ctypes.Structure):
    """struct stayput_region_info"""
    _fields_ = ([("struct_size", ctypes.c_size_t), ("tag", ctypes.c_char * 64),
                 ("state", ctypes.c_int), ("reserved", ctypes.c_int)]
                + [(name, ctypes.c_uint64) for name in (
                    "bytes_active", "bytes_paused", "bytes_kept", "bytes_device",
                    "bytes_backup", "count_active", "count_paused", "count_kept",
                    "mappings")])


def bytes_active():
    info = Info(struct_size=ctypes.sizeof(Info))
    stayput("stayput_region_info", b"shared", ctypes.byref(info))
    return info.bytes_active


def make_tensors(device):
    """A large one, a small one, and a view into the middle of a third."""
    pool = torch.cuda.MemPool()
    stayput("stayput_region_push", b"shared", HOST)
    with torch.cuda.device(device), torch.cuda.use_mem_pool(pool):
        large = torch.arange(32 << 20, dtype=torch.int32, device=device)
        small = torch.arange(1000, dtype=torch.int32, device=device)
        whole = torch.arange(4 << 20, dtype=torch.int32, device=device)
    stayput("stayput_region_pop")
    return pool, [large, small, whole[1 << 20:2 << 20]]


def total(tensors):
    return [int(t.sum(dtype=torch.int64)) for t in tensors]


def use(tensors, answers):
    answers.put(total(tensors))
    for tensor in tensors:
        tensor += 1
        torch.cuda.synchronize(tensor.device)
    answers.put("written")


def child(received, answers):
    use(received.get(), answers)
    torch.cuda.ipc_collect()
    answers.put("closed")
    received.get()


def expect(what, got, want):
    if got != want:
        sys.exit(f"{what}: got {got}, want {want}")


def share(context, tensors):
    to_child, answers = context.Queue(), context.Queue()
    process = context.Process(target=child, args=(to_child, answers))
    process.start()
    before = total(tensors)
    to_child.put(tensors)
    expect("sums in the child", answers.get(timeout=120), before)
    expect("the child", answers.get(timeout=120), "written")
    expect("sums after the child wrote", total(tensors),
           [s + t.numel() for s, t in zip(before, tensors)])
    expect("the child", answers.get(timeout=120), "closed")
    to_child.put(None)
    process.join(120)
    expect("status of the child", process.exitcode, 0)


def main():
    if not hasattr(library, "stayput_pause"):
        sys.exit("start this with LD_PRELOAD=build/libstayput.so")
    context = multiprocessing.get_context("spawn")
    made = [make_tensors(f"cuda:{i}") for i in range(min(2, torch.cuda.device_count()))]
    tensors = [tensor for _, few in made for tensor in few]
    addresses = [t.data_ptr() for t in tensors]
    for round in range(2):
        share(context, tensors)
        sums = total(tensors)
        torch.cuda.ipc_collect()
        stayput("stayput_pause", b"shared")
        expect("bytes active while paused", bytes_active(), 0)
        stayput("stayput_resume", b"shared")
        expect("sums after resume", total(tensors), sums)
        expect("addresses", [t.data_ptr() for t in tensors], addresses)
    print(f"{len(tensors)} tensors on {len(made)} GPU shared, paused, resumed and shared "
          "again: right")


if __name__ == "__main__":
    main()
