# SPDX-License-Identifier: Apache-2.0
"""Regions, pause and resume: what include/stayput.h has, for Python."""

from __future__ import annotations

import contextlib
import ctypes
import enum
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Union

from . import _library, _report
from ._errors import Busy, Invalid, NotFound, from_code
from ._library import check, library
from ._report import Report


class Policy(str, enum.Enum):
    """What becomes of contents over a pause. Everywhere, its text does as well."""

    DEFAULT = "default"  # what STAYPUT_REGIONS says of the tag, else host
    HOST = "host"  # kept in host memory, and there again after resume
    DISCARD = "discard"  # undefined after resume
    ZERO = "zero"  # all zero after resume
    KEEP = "keep"  # never released: native memory that is only counted

    __str__ = str.__str__


class State(str, enum.Enum):
    """What an allocation or region is; equal to its text."""

    ACTIVE = "active"
    PAUSING = "pausing"
    PAUSED = "paused"
    RESUMING = "resuming"
    FREEING = "freeing"
    PARTLY = "partly"  # a region with both active and paused allocations

    __str__ = str.__str__


# By their numbers in stayput.h.
_POLICIES = list(Policy)
_STATES = dict(enumerate(State, start=1))

AnyPolicy = Union[Policy, str]


def policy_code(policy: AnyPolicy) -> int:
    """The number of a policy in stayput.h."""
    try:
        return _POLICIES.index(Policy(policy))
    except ValueError:
        known = ", ".join(_POLICIES)
        raise Invalid(f"{policy!r} is not a policy: {known} are") from None


def _tag(tag: str) -> bytes:
    if not isinstance(tag, str):
        raise Invalid(f"a tag is text, not {tag!r}")
    if "\0" in tag:  # where C would take the tag to end
        raise Invalid(f"{tag!r} is not a tag")
    return tag.encode(errors="backslashreplace")


@contextlib.contextmanager
def region(tag: str, policy: AnyPolicy = Policy.DEFAULT) -> Iterator[None]:
    """Allocations that this thread makes inside belong to `tag`: `with` or decorator.

    Regions nest, the innermost counts. STAYPUT_REGIONS, when it names the tag, wins over
    `policy`. With PyTorch use stayput.torch.region(), or its cache mixes regions up.
    """
    check(library().stayput_region_push(_tag(tag), policy_code(policy)))
    try:
        yield
    finally:
        check(library().stayput_region_pop())


@contextlib.contextmanager
def native() -> Iterator[None]:
    """Allocations that this thread makes inside are native ones: `with` or decorator."""
    check(library().stayput_native_push())
    try:
        yield
    finally:
        check(library().stayput_region_pop())


def pause(
    *tags: str,
    wait: float | None = None,
    policy: AnyPolicy | None = None,
    block: bool = True,
    fail_if_held: bool = False,
    only_if_idle: bool = False,
    progress: bool = False,
) -> Report:
    """Gives the device memory of these regions back, all or nothing; without tags, of
    every region. Work that uses it must have been launched before, and is waited for.

    Memory that other processes have opened by CUDA IPC stays; the report says how much.

    wait          seconds to try again while the answer is Busy. None: another operation is
                  waited for as long as it takes, a stream capture not at all
    policy        host, discard or zero for everything this releases, instead of its own
    block         False: Busy instead of waiting for another operation
    fail_if_held  Busy when other processes have some of it open
    only_if_idle  Busy when there is work in flight, instead of waiting for it
    progress      a tqdm bar, if tqdm is installed

    What stayput_pause_ex() of stayput.h can answer is raised: OutOfHostMemory, Busy, ...
    """
    options = _library.Options(ctypes.sizeof(_library.Options))
    options.policy = 0 if policy is None else policy_code(policy)
    options.no_block = not block or wait is not None
    options.fail_if_held = fail_if_held
    options.only_if_idle = only_if_idle
    with _bar("pause", tags, progress):
        return _patiently(wait, lambda: _operate("pause", tags, options))


def resume(
    *tags: str,
    wait: float | None = None,
    block: bool = True,
    progress: bool = False,
) -> Report:
    """Puts memory and contents back behind these regions, all or nothing; without tags,
    behind every region.

    wait      seconds to wait for device memory that others hold; 0: not at all; None: as
              STAYPUT_RESUME_WAIT says. Python handles signals, Ctrl-C too, afterwards
    block     False: Busy instead of waiting for another operation
    progress  a tqdm bar, if tqdm is installed

    What stayput_resume_ex() of stayput.h can answer is raised: OutOfDeviceMemory, ...
    """
    options = _library.Options(ctypes.sizeof(_library.Options))
    options.no_block = not block
    if wait is not None:
        longest = 1 << 53  # of ms, for those who wait for ever
        options.wait_ms = max(1, round(min(wait * 1000, longest))) if wait > 0 else -1
    with _bar("resume", tags, progress):
        return _operate("resume", tags, options)


def _operate(name: str, tags: Sequence[str], options: _library.Options) -> Report:
    report = _library.Report(ctypes.sizeof(_library.Report))
    texts = (ctypes.c_char_p * len(tags))(*map(_tag, tags)) if tags else None
    function = getattr(library(), f"stayput_{name}_ex")
    code = function(texts, len(tags), ctypes.byref(options), ctypes.byref(report))
    sentence = _library.last_error()
    result = _report.from_struct(name, report, sentence)
    if code != 0:
        error = from_code(code, sentence)
        error.report = result
        raise error
    return result


def _patiently(wait: float | None, attempt: Any) -> Report:
    deadline = time.monotonic() + (wait or 0)
    while True:
        try:
            result: Report = attempt()
            return result
        except Busy:
            if wait is None or time.monotonic() >= deadline:
                raise
            time.sleep(0.005)


def _bar(name: str, tags: Sequence[str], wanted: bool) -> Any:
    if not wanted:
        return contextlib.nullcontext()
    from ._progress import bar

    return bar(name, tags)


def host_reserve(tag: str | None = None) -> None:
    """Begins to pin the host memory that pausing `tag` (None: every region) will need.
    Returns at once; a pause that comes meanwhile waits for it."""
    check(library().stayput_host_reserve(None if tag is None else _tag(tag)))


def host_trim(keep_bytes: int = 0) -> None:
    """Gives host memory without paused contents back, until `keep_bytes` are left."""
    if keep_bytes < 0:
        raise Invalid(f"keep_bytes is {keep_bytes}: it cannot be negative")
    check(library().stayput_host_trim(keep_bytes))


def host_copy(ptr: int, size: int) -> memoryview:
    """The `size` bytes from device address `ptr` as they were when paused: read-only, no
    copy. Valid until the allocation is resumed or freed: do not touch it afterwards.

    NotFound when the range is not inside one paused allocation whose contents were kept.
    """
    address = library().stayput_host_copy(ptr, size)
    if not address:
        raise NotFound(
            f"{size} bytes at {ptr:#x} are not inside one paused allocation whose "
            "contents were kept"
        )
    return memoryview((ctypes.c_ubyte * size).from_address(address)).toreadonly()


@dataclass(frozen=True)
class Info:
    """What an allocation is: struct stayput_info."""

    tag: str
    policy: Policy
    state: State
    device: int
    base: int
    size: int
    generation: int


def query(ptr: int) -> Info:
    """What the allocation is that `ptr` points into. NotFound: native memory, or none."""
    info = _library.Info(ctypes.sizeof(_library.Info))
    check(library().stayput_query(ptr, ctypes.byref(info)))
    return Info(
        tag=info.tag.decode(),
        policy=_POLICIES[info.policy],
        state=_STATES[info.state],
        device=info.device,
        base=info.base,
        size=info.size,
        generation=info.generation,
    )


_AMOUNTS = ("active", "paused", "kept", "device", "backup", "stream_ordered", "foreign_vmm")


@dataclass(frozen=True)
class Region:
    """How much a region holds, on all devices: struct stayput_region_info."""

    tag: str
    state: State
    bytes_active: int
    bytes_paused: int
    bytes_kept: int
    bytes_device: int
    bytes_backup: int
    count_active: int
    count_paused: int
    count_kept: int
    mappings: int
    bytes_stream_ordered: int
    count_stream_ordered: int
    bytes_foreign_vmm: int
    count_foreign_vmm: int

    def __str__(self) -> str:
        parts = [
            f"{_report.size(getattr(self, 'bytes_' + name))} {name.replace('_', ' ')}"
            for name in _AMOUNTS
            if getattr(self, "bytes_" + name)
        ]
        return f"{self.tag}: {self.state}" + "".join(", " + part for part in parts)


def _region(info: _library.RegionInfo) -> Region:
    values: dict[str, Any] = {
        name: getattr(info, name)
        for name in Region.__dataclass_fields__
        if name not in ("tag", "state")
    }
    return Region(tag=info.tag.decode(), state=_STATES[info.state], **values)


def region_info(tag: str) -> Region:
    """How much one region holds. NotFound: no region has that tag."""
    info = _library.RegionInfo(ctypes.sizeof(_library.RegionInfo))
    check(library().stayput_region_info(_tag(tag), ctypes.byref(info)))
    return _region(info)


def regions() -> list[Region]:
    """How much each region holds, in the order in which they came up."""
    count = ctypes.c_size_t()
    check(library().stayput_region_list(None, 0, ctypes.byref(count)))
    while True:
        capacity = count.value
        infos = (_library.RegionInfo * max(1, capacity))()
        infos[0].struct_size = ctypes.sizeof(_library.RegionInfo)
        check(library().stayput_region_list(infos, capacity, ctypes.byref(count)))
        if count.value <= capacity:
            return [_region(infos[i]) for i in range(count.value)]


def snapshot() -> dict[str, Any]:
    """Regions and the host memory of backups: the library's JSON, parsed."""
    size = library().stayput_snapshot_json(None, 0) + 1
    while True:
        text = ctypes.create_string_buffer(size)
        length = library().stayput_snapshot_json(text, size)
        if length < size:
            result: dict[str, Any] = json.loads(text.value)
            return result
        size = length + 1
