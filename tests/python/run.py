#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the tests of the Python package, each in a process of its own, on the fake driver.

    build/test_python [TEST]         of the checkout
    build/test_python_wheel [TEST]   of the wheel, installed in a virtual environment

Links to this file have those names; tests/run.sh reads what is printed. A class says with
PRELOAD what its tests are preloaded with, with ENVIRONMENT what else they want.
"""

import os
import subprocess
import sys
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
# The stand-in for PyTorch, and the package of the checkout.
PATH = [str(HERE), str(HERE / "standin"), str(HERE.parent.parent / "python")]
BUILD = Path(sys.argv[0]).absolute().parent
INSTALLED = sys.argv[0].endswith("_wheel")
SKIPPED = 77
os.environ.update(TEST_BUILD=str(BUILD), TEST_INSTALLED=str(int(INSTALLED)))
TEST_SECONDS = 60


def tests():
    sys.path[:0] = PATH
    sys.dont_write_bytecode = True
    for case in sorted(HERE.glob("test_*.py")):
        module = __import__(case.stem)
        for suite in unittest.defaultTestLoader.loadTestsFromModule(module):
            yield from suite


def interpreter():
    return str(BUILD / "venv-installed/bin/python3") if INSTALLED else sys.executable


def environment(case):
    kept = {
        k: v for k, v in os.environ.items() if not k.startswith(("STAYPUT_", "PYTORCH_"))
    }
    libraries = BUILD
    if INSTALLED:
        libraries = next((BUILD / "venv-installed/lib").glob("python3*"))
        libraries = libraries / "site-packages/stayput/lib"
    kept.update(
        LD_LIBRARY_PATH=str(BUILD / "fake"),
        PYTHONPATH=":".join(PATH[:2] if INSTALLED else PATH),
        PYTHONDONTWRITEBYTECODE="1",
    )
    kept.pop("LD_PRELOAD", None)
    if case.PRELOAD:
        kept["LD_PRELOAD"] = str(libraries / f"lib{case.PRELOAD}.so")
    kept.update(case.ENVIRONMENT)
    return kept


def run(case):
    done = subprocess.run(
        ["timeout", str(TEST_SECONDS), interpreter(), str(HERE / "one.py"), case.id()],
        env=environment(case),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
    )
    word = {0: "ok", SKIPPED: "skip"}.get(done.returncode, "FAIL")
    if word != "ok":
        print(done.stdout.decode(errors="replace"), end="")
    ended = f" (status {done.returncode})" if done.returncode not in (0, 1, SKIPPED) else ""
    print(f"{word} {case._testMethodName.replace('test_', '', 1)}{ended}", flush=True)
    return word != "FAIL"


def main():
    if INSTALLED and not (BUILD / "venv-installed/bin/python3").exists():
        print("skipped: no virtual environment could be made: see venv.log")
        print("skip tests_of_the_wheel")
        return 0
    wanted = sys.argv[1] if len(sys.argv) > 1 else None
    results = [
        run(case)
        for case in tests()
        if wanted in (None, case._testMethodName.replace("test_", "", 1))
    ]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
