# SPDX-License-Identifier: Apache-2.0
"""Memory that goes past the library, and what is said of it. past.py handle|segments|rules

handle    cudaMalloc through a handle, which libstayput.so does not see: one warning
segments  PyTorch's expandable segments, for STAYPUT_DEFAULT: one warning, which names them
rules     PyTorch's own allocations by STAYPUT_RULES="pt:module=libc10_cuda": in the region
"""
import ctypes
import json
import sys

lib = ctypes.CDLL(None)
GIB = 1 << 30


def snapshot():
    text = ctypes.create_string_buffer(1 << 20)
    lib.stayput_snapshot_json(text, ctypes.c_size_t(len(text)))
    return json.loads(text.value)


def handle():
    # The runtime of the nvidia wheels or of the toolkit, whichever is found.
    import torch

    torch.cuda.init()
    name = next(
        line.split()[-1] for line in open("/proc/self/maps") if "libcudart" in line
    )
    runtime, ptr = ctypes.CDLL(name), ctypes.c_void_p()
    assert runtime.cudaMalloc(ctypes.byref(ptr), ctypes.c_size_t(2 * GIB)) == 0
    lib.stayput_region_push(b"r", 1)
    lib.stayput_region_pop()


def segments():
    import torch

    keep = torch.zeros(3 * GIB, dtype=torch.uint8, device="cuda")
    foreign = snapshot()["foreign_vmm"]
    print(foreign)
    assert foreign["pytorch"] >= 3 * GIB, foreign
    del keep


def rules():
    import torch

    keep = torch.ones(GIB, dtype=torch.uint8, device="cuda")
    regions = {r["tag"]: r for r in snapshot()["regions"]}
    assert regions["pt"]["bytes_active"] >= GIB, regions
    assert lib.stayput_pause(b"pt") == 0 and lib.stayput_resume(b"pt") == 0
    assert int(keep.sum(dtype=torch.int64)) == GIB


globals()[sys.argv[1]]()
