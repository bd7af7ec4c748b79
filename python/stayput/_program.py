# SPDX-License-Identifier: Apache-2.0
"""The command `stayput`: the program that the wheel carries."""

from __future__ import annotations

import os
import sys

from . import _environment

FOLDERS = (_environment._HERE / "bin", _environment._CHECKOUT / "build")


def main() -> None:
    """Becomes the program."""
    for folder in FOLDERS:
        program = folder / "stayput"
        if program.is_file():
            os.execv(program, [str(program), *sys.argv[1:]])
    sys.exit("stayput: this installation of the package has no program")
