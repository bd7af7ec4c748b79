# SPDX-License-Identifier: Apache-2.0
"""What a pause or resume did, readable."""

from __future__ import annotations

from dataclasses import dataclass, fields

from . import _library


@dataclass(frozen=True)
class DeviceReport:
    """One device's part. Fields are those of struct stayput_device_report."""

    device: int
    bytes_released: int
    bytes_released_driver: int
    bytes_restored: int
    bytes_copied: int
    bytes_unchanged: int
    bytes_zeroed: int
    seconds_sync: float
    seconds_pin: float
    seconds_digest: float
    seconds_copy: float
    seconds_unmap: float
    seconds_create: float
    seconds_map: float
    copied_per_second: float
    bytes_held: int

    def __str__(self) -> str:
        parts = [
            f"{size(getattr(self, 'bytes_' + name))} {name}"
            + (f" at {self.copied_per_second / 1e9:.1f} GB/s" if name == "copied" else "")
            for name in ("released", "restored", "copied", "unchanged", "zeroed", "held")
            if getattr(self, "bytes_" + name)
        ]
        phases = [
            f"{name} {seconds * 1e3:.1f}"
            for name, seconds in self._phases()
            if seconds >= 5e-5
        ]
        if phases:
            parts.append("ms: " + ", ".join(phases))
        return "; ".join(parts) or "nothing to do"

    def _phases(self) -> list[tuple[str, float]]:
        return [
            (field.name[len("seconds_") :], getattr(self, field.name))
            for field in fields(self)
            if field.name.startswith("seconds_")
        ]


@dataclass(frozen=True, repr=False)
class Report:
    """What a pause or resume did. Fields are those of struct stayput_report."""

    operation: str  # "pause" or "resume"
    allocations: int
    failed: int
    seconds: float
    total: DeviceReport
    devices: tuple[DeviceReport, ...]
    bytes_stream_ordered: int
    note: str  # which tag other processes hold, and who they are; "" when bytes_held is 0

    def __repr__(self) -> str:
        plural = "" if self.allocations == 1 else "s"
        head = f"<{self.operation}: {self.allocations} allocation{plural}"
        if self.failed:
            head += f", {self.failed} failed"
        head += f" in {self.seconds * 1e3:.1f} ms"
        if self.bytes_stream_ordered:
            head += f", {size(self.bytes_stream_ordered)} stream-ordered stay"
        if len(self.devices) == 1:
            return f"{head}; GPU {self.devices[0].device}: {self.devices[0]}>"
        lines = [f"\n  GPU {part.device}: {part}" for part in self.devices]
        if lines:
            lines.insert(0, f"\n  all: {self.total}")
        return head + "".join(lines) + ">"


def from_struct(operation: str, report: _library.Report, sentence: str) -> Report:
    """A Report with the values of the C struct."""
    parts = report.device[: min(report.device_count, _library.REPORT_DEVICES)]
    return Report(
        operation=operation,
        allocations=report.allocations,
        failed=report.failed,
        seconds=report.seconds,
        total=_device(report.total),
        devices=tuple(sorted(map(_device, parts), key=lambda part: part.device)),
        bytes_stream_ordered=report.bytes_stream_ordered,
        note=sentence if report.total.bytes_held else "",
    )


def _device(part: _library.DeviceReport) -> DeviceReport:
    return DeviceReport(**{f.name: getattr(part, f.name) for f in fields(DeviceReport)})


def size(count: int) -> str:
    """Bytes for people."""
    for unit, shift in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if count >= 1 << shift:
            return f"{count / (1 << shift):.1f} {unit}"
    return f"{count} B"
