#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints lookup_table.h: which lookups by name end in which of our hooks.

make_lookup_table.py CUDATYPEDEFS_H stayput.map lookup.names >lookup_table.h

cudaTypedefs.h has a type for each form of a driver function, named after the CUDA version
that brought it and the stream flavour: PFN_cuMemFreeAsync_v11020_ptsz. The n-th form of a
flavour is exported with the suffix _vn, the first with none. Every hook must come out.
"""
import collections
import re
import sys

FLAVOURS = {"": "LEGACY", "_ptsz": "PER_THREAD"}


def hooked_names(map_path, names_path):
    with open(map_path) as file:
        names = re.findall(r"^\t(cu\w+);$", file.read(), re.M)
    with open(names_path) as file:
        return names + [line.strip() for line in file if line.startswith("cu")]


def symbols(header_path):
    """Exported symbol -> (base name, version, flavour)."""
    forms = collections.defaultdict(set)
    with open(header_path) as file:
        for base, version, suffix in re.findall(
            r"\*PFN_(cu\w+?)_v(\d+)(_ptsz|_ptds)?\)", file.read()
        ):
            forms[base, suffix].add(int(version))
    found = {}
    for (base, suffix), versions in forms.items():
        for n, version in enumerate(sorted(versions), 1):
            name = base + (f"_v{n}" if n > 1 else "") + suffix
            found[name] = (base, version, suffix)
    return found


def main():
    header_path, map_path, names_path = sys.argv[1:]
    names = hooked_names(map_path, names_path)
    known = symbols(header_path)
    driver = [name for name in names if not name.startswith("cuda")]
    lost = [name for name in driver if name not in known]
    if lost:
        sys.exit("no type for " + ", ".join(lost))
    print("/* SPDX-License-Identifier: Apache-2.0 */")
    print("/* Made by make_lookup_table.py: not to be edited. */")
    print("/* clang-format off */")
    print("\n/* Every name that has a hook. */")
    for name in names:
        print(f"LOOKUP_NAME({name})")
    print("\n/* Of the driver: base name, version that brought it, flavour, symbol. */")
    for (base, version, suffix), name in sorted((known[name], name) for name in driver):
        print(f"LOOKUP_ROW({base}, {version}, {FLAVOURS[suffix]}, {name})")


main()
