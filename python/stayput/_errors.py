# SPDX-License-Identifier: Apache-2.0
"""Exceptions: one for each code of include/stayput.h."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._report import Report


class StayputError(RuntimeError):
    """A call of the library failed. `code` is its STAYPUT_ERR_*, the text its sentence;
    `report` is there when a pause or resume had got far enough to have one."""

    code = 0
    report: Report | None = None


class Invalid(StayputError, ValueError):
    """An argument is out of range."""

    code = -1


class NotFound(StayputError, LookupError):
    """No region has that tag, or no region memory is there."""

    code = -2


class Busy(StayputError):
    """Another operation, or a stream capture, runs."""

    code = -3


class OutOfDeviceMemory(StayputError, MemoryError):
    """The device has too little memory free."""

    code = -4


class OutOfHostMemory(StayputError, MemoryError):
    """The host has too little memory."""

    code = -5


class DriverError(StayputError):
    """The CUDA driver refused, or the device is lost."""

    code = -6


class IOFailure(StayputError, OSError):
    """A file or a socket."""

    code = -7


class Unsupported(StayputError):
    """Not on this device, not in a forked child, or not in this set-up."""

    code = -8


class Inactive(Unsupported):
    """The library is not in this process."""


class Corrupt(StayputError):
    """Contents differ from what was saved."""

    code = -9


_BY_CODE = {
    kind.code: kind
    for kind in (
        Invalid,
        NotFound,
        Busy,
        OutOfDeviceMemory,
        OutOfHostMemory,
        DriverError,
        IOFailure,
        Unsupported,
        Corrupt,
    )
}


def from_code(code: int, sentence: str) -> StayputError:
    """The exception for a code; one that is not known here is a StayputError."""
    error = _BY_CODE.get(code, StayputError)(sentence)
    error.code = code
    return error
