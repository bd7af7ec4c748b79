# SPDX-License-Identifier: Apache-2.0
"""What the examples share and that needs no PyTorch: preloading, objects that live in
processes of their own, what the card holds, and the text that is taught.

The Python package of stayput has to be importable: `pip install ./python`, or in a checkout
after `make`, `export PYTHONPATH=python`.
"""

import importlib
import multiprocessing
import os
import random
import subprocess
import sys
import time
import traceback

import stayput

GIB = 1 << 30
VOCABULARY = 32000
# The toy task: after each of these tokens comes the next one.
CYCLE = random.Random(0).sample(range(VOCABULARY), 64)


def taught(start, length):
    """`length` tokens of the text that is taught, from place `start` of the cycle."""
    return [CYCLE[(start + i) % len(CYCLE)] for i in range(length)]


def preload():
    """Starts this program again with the library in it, unless it is there."""
    if stayput.is_active():
        return
    environment = stayput.preload_env()
    if environment["LD_PRELOAD"] == os.environ.get("LD_PRELOAD"):
        sys.exit(f"LD_PRELOAD={environment['LD_PRELOAD']} has no effect")
    # Graphs must not hold what NCCL knows of memory that goes: docs/registrations.md.
    environment.setdefault("NCCL_GRAPH_REGISTER", "0")
    sys.stdout.flush()
    os.execve(sys.executable, sys.orig_argv, environment)


def timed(function, *args):
    """The result, and how many seconds it took."""
    start = time.perf_counter()
    result = function(*args)
    return result, time.perf_counter() - start


def card(uuid=""):
    """GiB in use by all processes together, and in all, of a card: by nvidia-smi."""
    rows = subprocess.run(
        [
            "nvidia-smi",
            "--query-gpu=uuid,memory.used,memory.total",
            "--format=csv,noheader,nounits",
        ],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    row = next((row for row in rows if uuid in row), rows[0])
    used, total = row.split(",")[1:]
    return int(used) / 1024, int(total) / 1024


class Group:
    """Objects of one class, each in a preloaded process of its own. The processes import
    the module at once, side by side; start() makes the objects, from options for each."""

    def __init__(self, module, name, count=1):
        context = multiprocessing.get_context("spawn")
        before = os.environ.get("LD_PRELOAD", "")
        os.environ["LD_PRELOAD"] = stayput.preload_env()["LD_PRELOAD"]
        self.members = []
        for _ in range(count):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_serve, args=(theirs, module, name), daemon=True
            )
            process.start()
            theirs.close()
            self.members.append((process, ours))
        os.environ["LD_PRELOAD"] = before

    def start(self, options):
        return self._ask([("", (), each) for each in options])

    def all(self, method, *args):
        """Calls a method of every object at the same time: their answers."""
        return self._ask([(method, args, {})] * len(self.members))

    def each(self, method, values):
        """The same with an argument of its own for every object."""
        return self._ask([(method, (value,), {}) for value in values])

    def end(self):
        for process, pipe in self.members:
            pipe.close()
            process.join()

    def _ask(self, messages):
        for (_, pipe), message in zip(self.members, messages):
            pipe.send(message)
        return [_answer(process, pipe) for process, pipe in self.members]


def _answer(process, pipe):
    try:
        fine, value = pipe.recv()
    except EOFError:
        process.join()
        sys.exit(f"a process ended with status {process.exitcode}")
    if not fine:
        sys.exit(value)
    return value


def _serve(pipe, module, name):
    make = getattr(importlib.import_module(module), name)
    thing = None
    while True:
        try:
            method, args, options = pipe.recv()
        except (EOFError, OSError):
            return
        try:
            if method:
                value = getattr(thing, method)(*args)
            else:
                thing, value = make(**options), None
            pipe.send((True, value))
        except Exception:
            pipe.send((False, traceback.format_exc()))
