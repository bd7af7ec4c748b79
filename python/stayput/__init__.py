# SPDX-License-Identifier: Apache-2.0
"""Put a CUDA process to sleep without moving a pointer.

    with stayput.region("kv_cache", "discard"):
        ...                        # allocations of this thread belong to the region
    print(stayput.pause("kv_cache"))
    print(stayput.resume("kv_cache"))

libstayput.so has to be in the process: start it with the environment of
stayput.preload_env(), or `LD_PRELOAD=...`. Programs that use PyTorch want the regions of
stayput.torch, which also keep its caching allocator apart.

Importing this touches no CUDA and opens no library; names are loaded at their first use.
include/stayput.h is the manual of what lies below: units, errors, threads.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ._api import (
        Info as Info,
        Policy as Policy,
        Region as Region,
        State as State,
        host_copy as host_copy,
        host_reserve as host_reserve,
        host_trim as host_trim,
        native as native,
        pause as pause,
        query as query,
        region as region,
        region_info as region_info,
        regions as regions,
        resume as resume,
        snapshot as snapshot,
    )
    from ._change import Change as Change, Range as Range, on_change as on_change
    from ._environment import (
        __version__ as __version__,
        library_path as library_path,
        preload_env as preload_env,
    )
    from ._errors import (
        Busy as Busy,
        Corrupt as Corrupt,
        DriverError as DriverError,
        Inactive as Inactive,
        Invalid as Invalid,
        IOFailure as IOFailure,
        NotFound as NotFound,
        OutOfDeviceMemory as OutOfDeviceMemory,
        OutOfHostMemory as OutOfHostMemory,
        StayputError as StayputError,
        Unsupported as Unsupported,
    )
    from ._library import is_active as is_active, library as library
    from ._report import DeviceReport as DeviceReport, Report as Report

_HOME = {
    "_api": "Info Policy Region State host_copy host_reserve host_trim native pause query "
    "region region_info regions resume snapshot",
    "_change": "Change Range on_change",
    "_environment": "__version__ library_path preload_env",
    "_errors": "Busy Corrupt DriverError IOFailure Inactive Invalid NotFound "
    "OutOfDeviceMemory OutOfHostMemory StayputError Unsupported",
    "_library": "is_active library",
    "_report": "DeviceReport Report",
}

__all__ = sorted(name for names in _HOME.values() for name in names.split())


def __getattr__(name: str) -> object:
    for home, names in _HOME.items():
        if name in names.split():
            from importlib import import_module

            value: object = getattr(import_module("." + home, __name__), name)
            globals()[name] = value
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> "list[str]":
    return sorted(set(globals()) | set(__all__))
