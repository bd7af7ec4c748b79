# SPDX-License-Identifier: Apache-2.0
"""Regions for PyTorch: its caching allocator is kept apart for each of them.

    with stayput.torch.region("weights"):
        model = Model().cuda()
    with stayput.torch.region("kv_cache", "discard"):
        cache = torch.empty(...)
    with stayput.torch.graph(g, tag="cuda_graph"):   # in place of torch.cuda.graph
        logits = model(x)
    stayput.torch.pause()
    stayput.torch.resume()

A block that one region gave back is never handed to another: each (tag, policy, device) has
a torch.cuda.MemPool of its own. The library has to be in the process: preloaded, or, where
that cannot be done, through use_pluggable_allocator().

A region is its thread's own: do not await inside. What autograd's threads allocate in
backward() is outside; so is a device that is first used inside a region, unless `device`
names it. Before PyTorch 2.8 pools are not the thread's own: let no other thread allocate
meanwhile.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import re
import threading
from collections.abc import Iterator, Sequence
from typing import Any, Union

import torch

from . import _api, _library
from ._environment import library_path
from ._errors import Busy, NotFound, Unsupported
from ._report import Report

__all__ = [
    "graph",
    "host_copy",
    "native",
    "owner",
    "pause",
    "region",
    "resume",
    "use_pluggable_allocator",
]

Device = Union[None, int, str, "torch.device", Sequence[Union[int, str, "torch.device"]]]
_Key = tuple[str, str]  # tag and policy; native memory has a key that no tag can be

_NATIVE: _Key = ("", "native")

_lock = threading.Lock()
# Pools that no region uses now. PyTorch lets a pool be in use once at a time.
_idle: dict[tuple[_Key, int], list[Any]] = {}
_graph_pools: dict[tuple[_Key, int], list[Any]] = {}
_settled: set[tuple[int, int, int]] = set()
_allocator: Any = None
_thread = threading.local()


def use_pluggable_allocator() -> None:
    """Lets regions get their memory from the package's library by a
    CUDAPluggableAllocator, in a process that is not preloaded. Memory outside of regions
    stays PyTorch's. Stream captures are not seen by the library then: do not pause during
    one. In a preloaded process this does nothing."""
    global _allocator
    if _library.is_active() or _allocator is not None:
        return
    _require_pools()
    if not hasattr(_library.load(), "stayput_torch_malloc"):
        raise Unsupported("this libstayput.so has no stayput_torch_malloc: use a newer one")
    _allocator = torch.cuda.memory.CUDAPluggableAllocator(
        library_path(), "stayput_torch_malloc", "stayput_torch_free"
    )


@contextlib.contextmanager
def region(
    tag: str, policy: _api.AnyPolicy = _api.Policy.DEFAULT, device: Device = None
) -> Iterator[None]:
    """Tensors that this thread makes inside belong to `tag`: `with` or decorator.

    policy   see stayput.Policy
    device   one or several; None: the current one and all that are in use already

    Regions nest, the innermost counts; an exception leaves everything as it was before.
    Inside, PyTorch does not give back what it has cached elsewhere when memory runs out:
    torch.cuda.empty_cache() before what is large.

    Unsupported: PyTorch is too old, or set to memory that cannot be released, or a graph is
    being captured. Inactive: the library is not in this process.
    """
    _require()
    if torch.cuda.is_current_stream_capturing():
        raise Unsupported(
            "a region cannot be opened inside a graph capture, which keeps its memory in a "
            "pool of its own: give stayput.torch.graph() the tag"
        )
    devices = _indices(device)
    for index in devices:
        with torch.cuda.device(index):
            _keep_workspaces_out()
    with _api.region(tag, policy), _isolated((tag, _api.Policy(policy).value), devices):
        yield


@contextlib.contextmanager
def native(device: Device = None) -> Iterator[None]:
    """Tensors that this thread makes inside are native memory, which any other process may
    open by CUDA IPC, and which is never paused: `with` or decorator."""
    _require()
    with _api.native(), _isolated(_NATIVE, _indices(device)):
        yield


@contextlib.contextmanager
def graph(
    cuda_graph: Any,
    pool: Any = None,
    stream: Any = None,
    capture_error_mode: str = "global",
    *,
    tag: str = "cuda_graph",
    policy: _api.AnyPolicy = _api.Policy.DEFAULT,
) -> Iterator[None]:
    """torch.cuda.graph(), with the memory that the capture allocates in region `tag`, so
    that it can be paused and the graph replayed after a resume.

    "discard" is right when every replay writes what it reads, outputs included; by default
    contents are kept. Graphs that share a `pool` share its memory, whatever their tags.
    """
    _require()
    if pool is None:
        pool = _graph_pool((tag, _api.Policy(policy).value))
    pool = getattr(pool, "id", pool)
    device, began = torch.cuda.current_device(), False
    capture = torch.cuda.graph(
        cuda_graph, pool=pool, stream=stream, capture_error_mode=capture_error_mode
    )
    with contextlib.ExitStack() as stack:
        # PyTorch leaves its capture stream current when a capture cannot be ended.
        stack.enter_context(torch.cuda.stream(torch.cuda.current_stream()))
        with torch.cuda.stream(capture.capture_stream):
            _keep_workspaces_out()
        # What a capture's beginning allocates outside of the graph's pool is no region's.
        stack.enter_context(_api.native())
        stack.enter_context(_unrouted())
        try:
            with capture, _api.region(tag, policy):
                began = True
                yield
        except BaseException:
            if began:
                _stop_recording(device, pool)
            raise


def pause(
    *tags: str,
    empty_cache: bool = True,
    collect: bool = False,
    wait: float | None = None,
    policy: _api.AnyPolicy | None = None,
    block: bool = True,
    fail_if_held: bool = False,
    only_if_idle: bool = False,
    progress: bool = False,
) -> Report:
    """stayput.pause(), after giving back what PyTorch has cached and no tensor uses, in
    regions and outside.

    empty_cache   False: leave the cache. What it holds in the regions is paused with them,
                  copied if their policy is host, and what it holds outside stays taken
    collect       run Python's garbage collector first
    """
    _require()
    if torch.cuda.is_current_stream_capturing():
        raise Busy("this thread is capturing a graph: nothing can be paused meanwhile")
    if collect:
        gc.collect()
    if empty_cache:
        with _unrouted():
            _empty_cache()
    return _api.pause(
        *tags,
        wait=wait,
        policy=policy,
        block=block,
        fail_if_held=fail_if_held,
        only_if_idle=only_if_idle,
        progress=progress,
    )


def resume(
    *tags: str, wait: float | None = None, block: bool = True, progress: bool = False
) -> Report:
    """stayput.resume()."""
    _require()
    return _api.resume(*tags, wait=wait, block=block, progress=progress)


def host_copy(tensor: Any) -> Any:
    """A CPU tensor of the contents that a paused tensor had: no copy, to be read only.
    Valid until it is resumed or freed: do not touch it afterwards, clone() what is to stay.

    NotFound: it is not paused, or its contents were not kept.
    """
    if tensor.numel() == 0:
        return torch.empty(tensor.shape, dtype=tensor.dtype)
    last = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride()))
    view = _api.host_copy(tensor.data_ptr(), (last + 1) * tensor.element_size())
    # Not from the view itself: PyTorch warns of buffers that cannot be written.
    raw = (ctypes.c_ubyte * view.nbytes).from_address(_address(view))
    flat = torch.frombuffer(raw, dtype=torch.uint8).view(tensor.dtype)
    return flat.as_strided(tensor.shape, tensor.stride())


def owner(tensor: Any) -> _api.Info | None:
    """Tag, policy, state, device, base and size of the allocation that a tensor lies in.
    None: native memory."""
    try:
        return _api.query(tensor.data_ptr())
    except NotFound:
        return None


def _address(view: memoryview) -> int:
    owner_of_view: Any = view.obj
    return ctypes.addressof(owner_of_view)


def _require_pools() -> None:
    found = re.match(r"(\d+)\.(\d+)", torch.__version__)
    if found and (int(found[1]), int(found[2])) < (2, 6):
        raise Unsupported(
            f"PyTorch {torch.__version__} has no usable torch.cuda.MemPool, which keeps "
            "regions apart: 2.6 or later is needed"
        )
    if torch.version.cuda is None:
        raise Unsupported(f"PyTorch {torch.__version__} is a build without CUDA")


def _require() -> None:
    if _allocator is None:
        _library.library()
    _require_pools()
    for variable in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        setting = re.search(
            r"(?:^|,)\s*(expandable_segments\s*:\s*true|backend\s*:\s*cudaMallocAsync)",
            os.environ.get(variable, ""),
            re.IGNORECASE,
        )
        if setting:
            name = setting[1].split(":")[0].strip()
            other = "False" if name == "expandable_segments" else "native"
            raise Unsupported(
                f"{variable} has {setting[1]}, whose memory cannot be released: set "
                f"{name}:{other} there, or leave it out"
            )


class _Route:
    """Where one region of this thread sends its allocations, while it is the innermost."""

    def __init__(self, key: _Key, pools: dict[int, Any], outer: _Route | None) -> None:
        self.key, self.pools, self.outer = key, pools, outer
        self._open: contextlib.ExitStack | None = None

    def begin(self) -> None:
        with contextlib.ExitStack() as stack:
            for device, pool in self.pools.items():
                stack.enter_context(torch.cuda.use_mem_pool(pool, device))
            self._open = stack.pop_all()

    def end(self) -> None:
        stack, self._open = self._open, None
        if stack is not None:
            stack.close()


def _innermost() -> _Route | None:
    route: _Route | None = getattr(_thread, "route", None)
    return route


@contextlib.contextmanager
def _unrouted() -> Iterator[None]:
    """This thread's allocations go where they go without regions: before PyTorch 2.10 the
    outermost pool wins over inner ones, and over that of a graph."""
    route = _innermost()
    if route is None:
        yield
        return
    route.end()
    _thread.route = None
    try:
        yield
    finally:
        _thread.route = route
        route.begin()


@contextlib.contextmanager
def _isolated(key: _Key, devices: list[int]) -> Iterator[None]:
    outer = _innermost()
    with contextlib.ExitStack() as stack:
        pools = {
            index: _pool_of_outer(key, index, outer) or _lease(key, index, stack)
            for index in devices
        }
        route = _Route(key, pools, outer)
        stack.enter_context(_unrouted())
        route.begin()
        stack.callback(route.end)
        _thread.route = route
        try:
            yield
        finally:
            _thread.route = None


def _pool_of_outer(key: _Key, device: int, route: _Route | None) -> Any:
    while route is not None:
        if route.key == key and device in route.pools:
            return route.pools[device]
        route = route.outer
    return None


def _lease(key: _Key, device: int, stack: contextlib.ExitStack) -> Any:
    with _lock:
        idle = _idle.setdefault((key, device), [])
        pool = idle.pop() if idle else None
    if pool is None:
        pool = _new_pool(key, device)
    stack.callback(_give_back, key, device, pool)
    return pool


def _give_back(key: _Key, device: int, pool: Any) -> None:
    with _lock:
        _idle[key, device].append(pool)


def _new_pool(key: _Key, device: int) -> Any:
    with torch.cuda.device(device):
        if _allocator is None or key == _NATIVE:
            return torch.cuda.MemPool()
        return torch.cuda.MemPool(_allocator.allocator())


def _graph_pool(key: _Key) -> Any:
    """The id of a pool for a graph. One with an allocator has to outlive the graph, whose
    end nobody tells of: it is never destroyed, and used again when no graph has it."""
    if _allocator is None:
        return torch.cuda.graph_pool_handle()
    device = torch.cuda.current_device()
    with _lock:
        pools = _graph_pools.setdefault((key, device), [])
        for pool in pools:
            if pool.use_count() == 1:
                return pool.id
        pool = _new_pool(key, device)
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(pool))
        pools.append(pool)
        return pool.id


def _keep_workspaces_out() -> None:
    """Lets cuBLAS have its workspaces for this thread and stream now. Made by the first
    product in a region they would belong to it, and all later ones would use them."""
    stream = torch.cuda.current_stream()
    key = (threading.get_ident(), torch.cuda.current_device(), stream.cuda_stream)
    if key in _settled:
        return
    with native():
        torch.cuda.current_blas_handle()
        square = torch.ones((16, 16), device="cuda")
        torch.nn.functional.linear(square, square, square[0])
    _settled.add(key)


def _stop_recording(device: int, pool: Any) -> None:
    """As PyTorch up to 2.11 does not when a capture cannot be ended: its cache could never
    be emptied again."""
    end = getattr(torch._C, "_cuda_endAllocateToPool", None)
    if end is not None:
        with contextlib.suppress(RuntimeError):
            end(device, pool)


def _indices(device: Device) -> list[int]:
    if device is None:
        current = torch.cuda.current_device()
        return [current, *(i for i in _devices_in_use() if i != current)]
    if isinstance(device, (int, str, torch.device)):
        device = [device]
    return list(dict.fromkeys(_index(each) for each in device))


def _index(device: int | str | torch.device) -> int:
    if isinstance(device, int):
        return device
    index = torch.device(device).index
    return torch.cuda.current_device() if index is None else int(index)


def _devices_in_use() -> list[int]:
    has_context = getattr(torch._C, "_cuda_hasPrimaryContext", None)
    if has_context is None:
        return []
    return [i for i in range(torch.cuda.device_count()) if has_context(i)]


def _empty_cache() -> None:
    for device in _devices_in_use() or [torch.cuda.current_device()]:
        torch.cuda.synchronize(device)
    # A pool gives its cache back only when it goes; what tensors still use of it stays.
    dropped = []
    with _lock:
        for pools in _idle.values():
            dropped += [pool for pool in pools if _has_unused(pool)]
            pools[:] = [pool for pool in pools if pool not in dropped]
    del dropped
    torch.cuda.empty_cache()


def _has_unused(pool: Any) -> bool:
    return pool.use_count() == 1 and any(
        segment["active_size"] == 0 for segment in pool.snapshot()
    )
