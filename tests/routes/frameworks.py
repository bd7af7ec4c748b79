# SPDX-License-Identifier: Apache-2.0
"""frameworks.py NAME - as route.c, for what is reached from Python: allocates by NAME's own
means, and prints "caught", "native", "absent" where there is no such package, or what went
wrong. Frameworks that keep what they free are asked to give it back."""

import ctypes
import gc
import sys

SIZE = 32 << 20
stayput = ctypes.CDLL(None)


def region_bytes():
    """Bytes that the region of STAYPUT_DEFAULT holds."""
    import json

    text = ctypes.create_string_buffer(1 << 20)
    stayput.stayput_snapshot_json(text, ctypes.c_size_t(len(text)))
    return sum(r["bytes_active"] for r in json.loads(text.value)["regions"])


def judge(before, during, after, freed=True):
    if during - before < SIZE:
        return "native"
    return "caught" if after < during or not freed else "FAILED to free"


def via_ctypes():
    runtime = ctypes.CDLL(sys.argv[2])
    ptr = ctypes.c_void_p()
    if runtime.cudaMalloc(ctypes.byref(ptr), ctypes.c_size_t(SIZE)):
        return "FAILED to allocate"
    during = region_bytes()
    if runtime.cudaMemset(ptr, 7, ctypes.c_size_t(SIZE)):
        return "FAILED to use the memory"
    if runtime.cudaFree(ptr):
        return "FAILED to free"
    return judge(0, during, region_bytes())


def via_torch():
    import torch

    before = region_bytes()
    x = torch.full((SIZE,), 7, dtype=torch.uint8, device="cuda")
    if int(x[-1]) != 7:
        return "FAILED to use the memory"
    during = region_bytes()
    del x
    torch.cuda.empty_cache()
    return judge(before, during, region_bytes())


def via_cupy():
    import cupy

    before = region_bytes()
    x = cupy.full((SIZE,), 7, dtype=cupy.uint8)
    if int(x[-1]) != 7:
        return "FAILED to use the memory"
    during = region_bytes()
    del x
    cupy.get_default_memory_pool().free_all_blocks()
    return judge(before, during, region_bytes())


def via_numba():
    import numpy
    from numba import cuda

    before = region_bytes()
    x = cuda.to_device(numpy.full(SIZE, 7, dtype=numpy.uint8))
    if int(x[SIZE - 1]) != 7:
        return "FAILED to use the memory"
    during = region_bytes()
    del x
    gc.collect()
    cuda.current_context().reset()
    return judge(before, during, region_bytes())


def via_jax():
    import jax.numpy as jnp

    before = region_bytes()
    x = jnp.full((SIZE,), 7, dtype=jnp.uint8)
    if int(x[-1]) != 7:
        return "FAILED to use the memory"
    # Its pool gives nothing back before the process ends.
    return judge(before, region_bytes(), 0, freed=False)


ROUTES = {
    "ctypes": via_ctypes,
    "torch": via_torch,
    "cupy": via_cupy,
    "numba": via_numba,
    "jax": via_jax,
}

if __name__ == "__main__":
    try:
        print(ROUTES[sys.argv[1]]())
    except ImportError:
        print("absent")
