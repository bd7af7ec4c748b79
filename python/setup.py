# SPDX-License-Identifier: Apache-2.0
"""Puts the libraries and the program into the wheel: those of the folder in STAYPUT_BUILD,
or else what make builds for the checkout that this is in."""

import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

TOP = Path(__file__).resolve().parent.parent
# Where they go in the package; the program stands to the libraries as in an installation.
CARRIED = {
    "libstayput.so": "lib",
    "libstayput-deep.so": "lib",
    "libstayput-tms.so": "lib",
    "stayput": "bin",
}
REQUIRED = ("libstayput.so", "libstayput-deep.so", "libstayput-tms.so")


def version():
    header = TOP / "include" / "stayput.h"
    if not header.exists():
        sys.exit(
            f"{TOP} is no checkout of stayput, which this folder has to be in: pip before "
            "21.3 copies it elsewhere first, use a later one"
        )
    return re.search(r'#define STAYPUT_VERSION "([^"]+)"', header.read_text())[1]


def needed_by(program):
    """What the program is linked to that not everybody has, and its licence."""
    listing = subprocess.run(["ldd", program], capture_output=True, text=True, check=True)
    found = re.search(r"libcjson\.so\S* => (\S+)", listing.stdout)
    licences = (
        Path("/usr/share/doc/libcjson1/copyright"),
        Path("/usr/share/licenses/cjson/LICENSE"),
    )
    return [Path(found[1])] + [p for p in licences if p.exists()] if found else []


class BuildWithLibraries(build_py):
    def run(self):
        # What an earlier build has left there would go into the wheel as well.
        shutil.rmtree(Path(self.build_lib) / "stayput", ignore_errors=True)
        super().run()
        build = os.environ.get("STAYPUT_BUILD")
        if build is None:
            make = ["make", "-C", str(TOP), f"-j{os.cpu_count() or 1}"]
            subprocess.run(make + [f"build/{name}" for name in REQUIRED], check=True)
            # The program needs a library that not everybody has: make says so.
            subprocess.run([*make, "all"], check=False)
            build = str(TOP / "build")
        for name, folder in CARRIED.items():
            built = Path(build) / name
            if built.exists() or name in REQUIRED:
                self.carry(built, folder)
        if (Path(build) / "stayput").exists():
            for needed in needed_by(Path(build) / "stayput"):
                self.carry(needed, "lib")

    def carry(self, built, folder):
        to = Path(self.build_lib) / "stayput" / folder
        self.mkpath(str(to))
        self.copy_file(str(built), str(to / built.name))


class PlatformWheel(bdist_wheel):
    """Any Python 3; Linux as on this machine, whose C library the libraries need."""

    def get_tag(self):
        return "py3", "none", "linux_" + platform.machine()


class WithLibraries(Distribution):
    def has_ext_modules(self):
        return True


setup(
    distclass=WithLibraries,
    version=version(),
    cmdclass={"build_py": BuildWithLibraries, "bdist_wheel": PlatformWheel},
)
