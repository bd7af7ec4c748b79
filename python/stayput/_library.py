# SPDX-License-Identifier: Apache-2.0
"""The C library as it is in this process: found by symbol, called by ctypes.

ctypes.CDLL lets go of the interpreter's lock during every call. The structs are those of
include/stayput.h; tests/python compares them with the compiler's layout.
"""

from __future__ import annotations

import ctypes

from ._environment import __version__, library_path
from ._errors import Inactive, Unsupported, from_code

c_uint64, c_int, c_size_t = ctypes.c_uint64, ctypes.c_int, ctypes.c_size_t

TAG_SIZE = 64
REPORT_DEVICES = 16


class Options(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("policy", c_int),
        ("no_block", c_int),
        ("wait_ms", ctypes.c_int64),
        ("fail_if_held", c_int),
        ("only_if_idle", c_int),
    ]


class DeviceReport(ctypes.Structure):
    _fields_ = [
        ("device", c_int),
        ("reserved", c_int),
        ("bytes_released", c_uint64),
        ("bytes_released_driver", c_uint64),
        ("bytes_restored", c_uint64),
        ("bytes_copied", c_uint64),
        ("bytes_unchanged", c_uint64),
        ("bytes_zeroed", c_uint64),
        ("seconds_sync", ctypes.c_double),
        ("seconds_pin", ctypes.c_double),
        ("seconds_digest", ctypes.c_double),
        ("seconds_copy", ctypes.c_double),
        ("seconds_unmap", ctypes.c_double),
        ("seconds_create", ctypes.c_double),
        ("seconds_map", ctypes.c_double),
        ("copied_per_second", ctypes.c_double),
        ("bytes_held", c_uint64),
    ]


class Report(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("allocations", c_uint64),
        ("failed", c_uint64),
        ("seconds", ctypes.c_double),
        ("device_count", c_uint64),
        ("total", DeviceReport),
        ("device", DeviceReport * REPORT_DEVICES),
        ("bytes_stream_ordered", c_uint64),
    ]


class Info(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("tag", ctypes.c_char * TAG_SIZE),
        ("policy", c_int),
        ("state", c_int),
        ("device", c_int),
        ("reserved", c_int),
        ("base", c_uint64),
        ("size", c_uint64),
        ("generation", c_uint64),
    ]


class RegionInfo(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("tag", ctypes.c_char * TAG_SIZE),
        ("state", c_int),
        ("reserved", c_int),
        ("bytes_active", c_uint64),
        ("bytes_paused", c_uint64),
        ("bytes_kept", c_uint64),
        ("bytes_device", c_uint64),
        ("bytes_backup", c_uint64),
        ("count_active", c_uint64),
        ("count_paused", c_uint64),
        ("count_kept", c_uint64),
        ("mappings", c_uint64),
        ("bytes_stream_ordered", c_uint64),
        ("count_stream_ordered", c_uint64),
        ("bytes_foreign_vmm", c_uint64),
        ("count_foreign_vmm", c_uint64),
    ]


class Range(ctypes.Structure):
    _fields_ = [
        ("base", c_uint64),
        ("size", c_uint64),
        ("device", c_int),
        ("reserved", c_int),
    ]


ChangeFn = ctypes.CFUNCTYPE(
    None, c_int, ctypes.c_char_p, ctypes.POINTER(Range), c_size_t, ctypes.c_void_p
)

_tags = ctypes.POINTER(ctypes.c_char_p)
_SIGNATURES = {
    "stayput_region_push": (c_int, [ctypes.c_char_p, c_int]),
    "stayput_native_push": (c_int, []),
    "stayput_region_pop": (c_int, []),
    "stayput_pause_ex": (
        c_int,
        [_tags, c_size_t, ctypes.POINTER(Options), ctypes.POINTER(Report)],
    ),
    "stayput_resume_ex": (
        c_int,
        [_tags, c_size_t, ctypes.POINTER(Options), ctypes.POINTER(Report)],
    ),
    "stayput_host_reserve": (c_int, [ctypes.c_char_p]),
    "stayput_host_trim": (c_int, [c_size_t]),
    "stayput_host_copy": (ctypes.c_void_p, [ctypes.c_void_p, c_size_t]),
    "stayput_on_change": (c_int, [ChangeFn, ctypes.c_void_p]),
    "stayput_on_change_remove": (c_int, [ChangeFn, ctypes.c_void_p]),
    "stayput_query": (c_int, [ctypes.c_void_p, ctypes.POINTER(Info)]),
    "stayput_region_info": (c_int, [ctypes.c_char_p, ctypes.POINTER(RegionInfo)]),
    "stayput_region_list": (
        c_int,
        [ctypes.POINTER(RegionInfo), c_size_t, ctypes.POINTER(c_size_t)],
    ),
    "stayput_snapshot_json": (c_size_t, [ctypes.c_char_p, c_size_t]),
    "stayput_last_error": (ctypes.c_char_p, []),
}

_found: ctypes.CDLL | None = None


def _declare(handle: ctypes.CDLL) -> ctypes.CDLL:
    global _found
    version = handle.stayput_version
    version.restype, version.argtypes = ctypes.c_char_p, []
    loaded = version().decode()
    if loaded != __version__:
        raise Unsupported(
            f"the library in this process is stayput {loaded} and the package is "
            f"{__version__}: preload the one that the package carries"
        )
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(handle, name)
        function.restype, function.argtypes = result, arguments
    _found = handle
    return handle


def is_active() -> bool:
    """The library is in this process for every allocation: preloaded, or linked."""
    return hasattr(ctypes.CDLL(None), "stayput_version")


def library() -> ctypes.CDLL:
    """The library in this process, its functions declared for ctypes. Inactive when there
    is none."""
    if _found is not None:
        return _found
    if not is_active():
        raise Inactive(
            "libstayput.so is not in this process. Start the process with the environment "
            "of stayput.preload_env(), or with LD_PRELOAD=" + _path_or_name() + "; with "
            "PyTorch in a process that cannot be preloaded, call "
            "stayput.torch.use_pluggable_allocator() first"
        )
    return _declare(ctypes.CDLL(None))


def load() -> ctypes.CDLL:
    """The library in this process; the package's own is opened when there is none. What is
    opened hooks nothing: it has only what is allocated through it."""
    if _found is not None or is_active():
        return library()
    return _declare(ctypes.CDLL(library_path()))


def check(code: int) -> None:
    """Raises what an error code stands for, with the library's sentence."""
    if code != 0:
        raise from_code(code, last_error())


def last_error() -> str:
    """The library's sentence for this thread's last error."""
    text: bytes = library().stayput_last_error()
    return text.decode(errors="replace")


def _path_or_name() -> str:
    try:
        return library_path()
    except Inactive:
        return "libstayput.so"
