# SPDX-License-Identifier: Apache-2.0
"""Being told when memory goes and comes."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Callable

from . import _library
from ._library import check, library


class Change(str, enum.Enum):
    """What a callback is told of; equal to its text."""

    RELEASING = "releasing"  # is about to lose its memory
    RESTORED = "restored"  # has memory again, and contents as the policies say

    __str__ = str.__str__


_CHANGES = dict(enumerate(Change, start=1))


@dataclass(frozen=True)
class Range:
    """Addresses of whole allocations: struct stayput_range."""

    base: int
    size: int
    device: int


Callback = Callable[[Change, str, Sequence[Range]], object]

# For ever: an operation under way may still call one that has been removed.
_made: list[Any] = []


def on_change(callback: Callback) -> Callable[[], None]:
    """From here, calls callback(change, tag, ranges) for each region that a pause or resume
    changes: with "releasing" while all memory is still there, with "restored" when it is
    there again. Where registrations with NCCL or an RDMA card are given up and renewed.

    It runs in the thread that pauses or resumes, which waits for it. It may use CUDA; a
    pause or resume in it is Busy. What it raises goes to sys.unraisablehook. Let no other
    Python thread free memory of the region meanwhile: that would wait for the operation
    with the interpreter's lock, which the callback needs.

    Returns a function that ends it.
    """

    def call(change: int, tag: bytes, ranges: Any, count: int, _: Any) -> None:
        found = [Range(r.base, r.size, r.device) for r in ranges[:count]]
        callback(_CHANGES[change], tag.decode(), found)

    function = _library.ChangeFn(call)
    check(library().stayput_on_change(function, None))
    _made.append(function)

    def remove() -> None:
        check(library().stayput_on_change_remove(function, None))

    return remove
