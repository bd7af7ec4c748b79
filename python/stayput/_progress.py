# SPDX-License-Identifier: Apache-2.0
"""A tqdm bar for a pause or resume that runs in the calling thread."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from . import _api


def _on_device(tags: Sequence[str]) -> int:
    return sum(r.bytes_device for r in _api.regions() if not tags or r.tag in tags)


@contextlib.contextmanager
def bar(name: str, tags: Sequence[str]) -> Iterator[None]:
    """Follows the device memory of the regions from a thread of its own."""
    try:
        from tqdm.auto import tqdm
    except ImportError:
        yield
        return
    before = _on_device(tags)
    total = before if name == "pause" else _paused(tags)
    done = threading.Event()
    with tqdm(total=total, desc=name, unit="B", unit_scale=True, leave=False) as shown:
        follower = threading.Thread(
            target=_follow, args=(shown, before, tags, done), daemon=True
        )
        follower.start()
        try:
            yield
        finally:
            done.set()
            follower.join()


def _paused(tags: Sequence[str]) -> int:
    return sum(r.bytes_paused for r in _api.regions() if not tags or r.tag in tags)


def _follow(shown: Any, before: int, tags: Sequence[str], done: threading.Event) -> None:
    last = False
    while not last:
        last = done.wait(0.1)
        moved = min(abs(_on_device(tags) - before), shown.total)
        shown.update(moved - shown.n)
