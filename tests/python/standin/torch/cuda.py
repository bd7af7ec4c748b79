# SPDX-License-Identifier: Apache-2.0
"""torch.cuda of the stand-in."""

import contextlib
import ctypes
import os
import threading

from support import Runtime

runtime = Runtime()
# Before 2.10 the pool that was begun first wins.
FIRST_WINS = "STANDIN_VERSION" in os.environ


class Block:
    """Freed to its pool when nobody has it any more."""

    def __init__(self, pool, device, ptr, size):
        self.pool, self.device, self.ptr, self.size = pool, device, ptr, size

    def __del__(self):
        self.pool.free_block(self)


class PrivatePool:
    def __init__(self, allocator=None):
        self.allocator, self.uses, self.cached, self.segments = allocator, 1, [], []

    def malloc(self, device, size):
        for i, (d, ptr, n) in enumerate(self.cached):
            if (d, n) == (device, size):
                del self.cached[i]
                return Block(self, device, ptr, size)
        if self.allocator:
            ptr = self.allocator.malloc(size, device, None)
            if not ptr:
                raise MemoryError
        else:
            ptr = runtime.malloc(size)
        self.segments.append(ptr)
        return Block(self, device, ptr, size)

    def free_block(self, block):
        self.cached.append((block.device, block.ptr, block.size))

    def empty(self):
        for device, ptr, size in self.cached:
            self.segments.remove(ptr)
            if self.allocator:
                self.allocator.free(ptr, size, device, None)
            else:
                runtime.free(ptr)
        self.cached = []


class Allocator:
    def __init__(self):
        self.default, self.freeable, self.routes = PrivatePool(), [], []

    def malloc(self, size):
        here = current_device()
        order = self.routes if FIRST_WINS else reversed(self.routes)
        for device, pool, matches in order:
            if device == here and matches():
                return pool.malloc(here, size)
        return self.default.malloc(here, size)

    def begin(self, device, pool, matches):
        for other in self.routes:
            if other[:2] == (device, pool):
                raise RuntimeError("beginAllocateToPool: already recording to mempool_id")
        pool.uses += 1
        self.routes.append((device, pool, matches))

    def end(self, device, pool):
        if (device, pool) not in [r[:2] for r in self.routes]:
            raise RuntimeError("endAllocatePool: not currently recording to mempool_id")
        self.routes = [r for r in self.routes if r[:2] != (device, pool)]

    def release(self, pool):
        pool.uses -= 1
        if pool.uses == 0:
            self.freeable.append(pool)


allocator = Allocator()


class MemPool:
    def __init__(self, custom=None):
        self.device = current_device()
        self.pool = PrivatePool(custom)

    @property
    def id(self):
        return self.pool

    def use_count(self):
        return self.pool.uses

    def snapshot(self):
        cached = {ptr for _, ptr, _ in self.pool.cached}
        return [{"active_size": 0 if ptr in cached else 1} for ptr in self.pool.segments]

    def __del__(self):
        allocator.release(self.pool)
        self.pool.empty()


@contextlib.contextmanager
def use_mem_pool(pool, device=None):
    assert device == pool.device, "a pool of another device"
    thread = threading.get_ident()
    allocator.begin(device, pool.pool, lambda: threading.get_ident() == thread)
    try:
        yield
    finally:
        allocator.end(device, pool.pool)
        allocator.release(pool.pool)


def empty_cache():
    if allocator.routes:
        return
    allocator.default.empty()
    for pool in allocator.freeable:
        pool.empty()


def synchronize(device=None):
    runtime.call("cudaDeviceSynchronize")


def current_device():
    index = ctypes.c_int()
    runtime.call("cudaGetDevice", ctypes.byref(index))
    return index.value


def device_count():
    count = ctypes.c_int()
    runtime.call("cudaGetDeviceCount", ctypes.byref(count))
    return count.value


@contextlib.contextmanager
def device(index):
    before = current_device()
    if index != before:
        runtime.call("cudaSetDevice", index)
    try:
        yield
    finally:
        if index != before:
            runtime.call("cudaSetDevice", before)


class Stream:
    def __init__(self, create=True):
        self.handle, self.capturing = ctypes.c_void_p(), False
        if create:
            runtime.call("cudaStreamCreate", ctypes.byref(self.handle))

    @property
    def cuda_stream(self):
        return self.handle.value or 0


_default_stream = Stream(create=False)


class _Current(threading.local):
    stream = None


_current = _Current()
# What lives as long as the process, from whichever pool is in use at the time.
_workspaces = {}
_seeds = []


def current_blas_handle(kind="cublas"):
    key = threading.get_ident(), current_device(), current_stream().cuda_stream, kind
    if key not in _workspaces:
        _workspaces[key] = allocator.malloc(4096)


def current_stream():
    return _current.stream or _default_stream


def is_current_stream_capturing():
    return current_stream().capturing


@contextlib.contextmanager
def stream(wanted):
    before, _current.stream = _current.stream, wanted
    try:
        yield
    finally:
        _current.stream = before


class CUDAGraph:
    def __init__(self):
        self.handle, self.pool_id = ctypes.c_void_p(), None

    def pool(self):
        return self.pool_id

    def __del__(self):
        if self.pool_id:
            allocator.release(self.pool_id)


def graph_pool_handle():
    pool = PrivatePool()
    pool.uses = 0
    return pool


class graph:
    """Like PyTorch's own, it leaves its stream current when the capture fails to end."""

    def __init__(self, cuda_graph, pool=None, stream=None, capture_error_mode="global"):
        self.graph, self.pool, self.capture_stream = cuda_graph, pool, stream or Stream()
        self.mode = ["global", "thread_local", "relaxed"].index(capture_error_mode)

    def __enter__(self):
        synchronize()
        empty_cache()
        if not _seeds:
            _seeds.append(allocator.malloc(512))
        self.before, _current.stream = _current.stream, self.capture_stream
        self.graph.pool_id = pool = self.pool or graph_pool_handle()
        allocator.begin(current_device(), pool, is_current_stream_capturing)
        runtime.call("cudaStreamBeginCapture", self.capture_stream.handle, self.mode)
        self.capture_stream.capturing = True

    def __exit__(self, *failure):
        self.capture_stream.capturing = False
        runtime.call(
            "cudaStreamEndCapture",
            self.capture_stream.handle,
            ctypes.byref(self.graph.handle),
        )
        allocator.end(current_device(), self.graph.pool_id)
        _current.stream = self.before


class _Custom:
    def __init__(self, library, malloc, free):
        self.malloc, self.free = library[malloc], library[free]
        self.malloc.restype = ctypes.c_void_p
        self.malloc.argtypes = [ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
        self.free.restype = None
        self.free.argtypes = [
            ctypes.c_void_p,
            ctypes.c_ssize_t,
            ctypes.c_int,
            ctypes.c_void_p,
        ]


class memory:
    class CUDAPluggableAllocator:
        def __init__(self, path, malloc, free):
            self._allocator = _Custom(ctypes.CDLL(path), malloc, free)

        def allocator(self):
            return self._allocator
