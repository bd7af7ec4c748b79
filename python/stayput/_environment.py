# SPDX-License-Identifier: Apache-2.0
"""Where the libraries are, and the environment that preloads them into a child."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from ._errors import Inactive, Invalid

_HERE = Path(__file__).resolve().parent
# Of a checkout that is used without having been installed.
_CHECKOUT = _HERE.parent.parent


def _version() -> str:
    header = _CHECKOUT / "include" / "stayput.h"
    if (_CHECKOUT / "python" / "stayput" / "_environment.py").exists() and header.exists():
        found = re.search(r'#define STAYPUT_VERSION "([^"]+)"', header.read_text())
        if found:
            return found[1]
    from importlib.metadata import version

    return version("stayput")


__version__ = _version()


def library_path(deep: bool = False) -> str:
    """The file of libstayput.so, or of libstayput-deep.so: what the package carries, or in
    a checkout what `make` has built."""
    name = "libstayput-deep.so" if deep else "libstayput.so"
    for folder in (_HERE / "lib", _CHECKOUT / "build"):
        if (folder / name).exists():
            return str(folder / name)
    raise Inactive(
        f"{name} is neither in {_HERE / 'lib'} nor in {_CHECKOUT / 'build'}: "
        "install the package from its wheel, or run make"
    )


def preload_env(
    deep: bool = False,
    *,
    regions: str | Mapping[str, str] | None = None,
    default: str | None = None,
    rules: str | None = None,
    env: Mapping[str, str] | None = None,
    **settings: object,
) -> dict[str, str]:
    """The environment for a child process that is to have the library.

    deep      libstayput-deep.so: reaches static runtimes, CuPy, Numba, JAX
    regions   STAYPUT_REGIONS: its text, or {"kv_cache": "discard", "*": "keep"}
    default   STAYPUT_DEFAULT: tag for allocations outside any region
    rules     STAYPUT_RULES
    env       what to start from, os.environ when left out; it is not changed
    settings  any other variable by the end of its name: host_limit="64GiB", log="info"

    LD_PRELOAD keeps what it has, the library comes first, and no libstayput is in it twice:

        subprocess.Popen([...], env=stayput.preload_env(default="engine"))
    """
    result = dict(os.environ if env is None else env)
    path = library_path(deep)
    if re.search(r"[\s:]", path):
        raise Invalid(
            f"LD_PRELOAD cannot hold {path!r}: it has a space or a colon in it. "
            "Link to the library from a folder without"
        )
    others = [
        entry
        for entry in re.split(r"[\s:]+", result.get("LD_PRELOAD", ""))
        if entry and os.path.basename(entry) not in _PRELOADS
    ]
    result["LD_PRELOAD"] = ":".join([path, *others])
    if regions is not None and not isinstance(regions, str):
        regions = ",".join(f"{tag}={policy}" for tag, policy in regions.items())
    named: dict[str, object] = {
        "regions": regions,
        "default": default,
        "rules": rules,
        **settings,
    }
    for name, value in named.items():
        if value is not None:
            result["STAYPUT_" + name.upper()] = _text(value)
    return result


_PRELOADS = ("libstayput.so", "libstayput-deep.so", "libstayput-tms.so")


def _text(value: object) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)
