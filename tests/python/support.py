# SPDX-License-Identifier: Apache-2.0
"""The runtime of the fake driver for tests: calls go through the hooks where the library
is preloaded, since the runtime is opened for everybody."""

import contextlib
import ctypes
import unittest

MIB = 1 << 20


class Case(unittest.TestCase):
    PRELOAD = "stayput"
    ENVIRONMENT: dict = {}


class Runtime:
    def __init__(self):
        ctypes.CDLL("libcudart.so.13", mode=ctypes.RTLD_GLOBAL)
        self.process = ctypes.CDLL(None)

    def call(self, name, *args):
        error = getattr(self.process, name)(*args)
        if error:
            raise RuntimeError(f"{name}: CUDA error {error}")

    def malloc(self, size):
        ptr = ctypes.c_void_p()
        self.call("cudaMalloc", ctypes.byref(ptr), ctypes.c_size_t(size))
        return ptr.value

    def free(self, ptr):
        self.call("cudaFree", ctypes.c_void_p(ptr))

    def write(self, ptr, data):
        self.call("cudaMemcpy", ctypes.c_void_p(ptr), data, ctypes.c_size_t(len(data)), 1)

    def read(self, ptr, size):
        data = ctypes.create_string_buffer(size)
        self.call("cudaMemcpy", data, ctypes.c_void_p(ptr), ctypes.c_size_t(size), 2)
        return data.raw

    def free_bytes(self):
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.call("cudaMemGetInfo", ctypes.byref(free), ctypes.byref(total))
        return free.value

    @contextlib.contextmanager
    def capture(self, mode=2):
        stream, graph = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cudaStreamCreate", ctypes.byref(stream))
        self.call("cudaStreamBeginCapture", stream, mode)
        try:
            yield
        finally:
            self.call("cudaStreamEndCapture", stream, ctypes.byref(graph))
