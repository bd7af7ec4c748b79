# SPDX-License-Identifier: Apache-2.0
"""pause.c in Python, with ctypes alone.

    LD_PRELOAD=build/libstayput.so python3 examples/pause.py [libcudart.so.13]
"""
import ctypes
import sys

STAYPUT_HOST = 1
SIZE = 256 << 20

# Loaded for everybody, so that `process.cudaMalloc` below is the preloaded one and finds
# the runtime behind it. ctypes.CDLL("libcudart.so.13").cudaMalloc would go past it.
runtime = sys.argv[1] if len(sys.argv) > 1 else "libcudart.so.13"
ctypes.CDLL(runtime, mode=ctypes.RTLD_GLOBAL)
process = ctypes.CDLL(None)
process.stayput_last_error.restype = ctypes.c_char_p


def cuda(name, *args):
    error = getattr(process, name)(*args)
    if error:
        sys.exit(f"{name}: CUDA error {error}")


def stayput(name, *args):
    if getattr(process, name)(*args):
        sys.exit(f"{name}: {process.stayput_last_error().decode()}")


def free_mib():
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    cuda("cudaMemGetInfo", ctypes.byref(free), ctypes.byref(total))
    return free.value >> 20


size = ctypes.c_size_t(SIZE)
weights = ctypes.c_void_p()
before = ctypes.create_string_buffer(bytes(range(256)) * (SIZE // 256), SIZE)
after = ctypes.create_string_buffer(SIZE)

stayput("stayput_region_push", b"weights", STAYPUT_HOST)
cuda("cudaMalloc", ctypes.byref(weights), size)
stayput("stayput_region_pop")
cuda("cudaMemcpy", weights, before, size, 1)
print(f"active  weights at {weights.value:#x}, {free_mib()} MiB free")

stayput("stayput_pause", b"weights")
print(f"paused  weights at {weights.value:#x}, {free_mib()} MiB free")

stayput("stayput_resume", b"weights")
cuda("cudaMemcpy", after, weights, size, 2)
same = before.raw == after.raw
print(f"resumed weights at {weights.value:#x}, {free_mib()} MiB free, "
      f"contents {'the same' if same else 'DIFFER'}")
cuda("cudaFree", weights)
sys.exit(not same)
