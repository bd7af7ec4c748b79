#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Programs with CuPy, Numba and JAX in a region: paused, memory seen free, resumed.

frameworks.py BUILD [NAME...]

BUILD holds libstayput-deep.so. Each program runs in a process of its own, which is paused
between two halves of its work. Contents have to be the same before and after, and results
those of a run without the library.
What cannot be imported is skipped. The last lines are a table; the exit status says whether
every row is right.
"""
import ctypes
import hashlib
import json
import os
import subprocess
import sys
import time

MIB = 1 << 20
TAG = "engine"
CHILD_SECONDS = 60

# Name, program, environment.
ROWS = [
    ("cupy", "cupy", {}),
    ("numba", "numba", {}),
    ("jax, preallocated", "jax", {"XLA_PYTHON_CLIENT_PREALLOCATE": "true"}),
    ("jax, growing", "jax", {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}),
    ("jax, platform", "jax", {"XLA_PYTHON_CLIENT_ALLOCATOR": "platform"}),
]
EVERYWHERE = {
    "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.06",
    # The same kernels in each process.
    "XLA_FLAGS": "--xla_gpu_autotune_level=0 --xla_gpu_deterministic_ops=true",
    "TF_CPP_MIN_LOG_LEVEL": "2",
}


def digest(array):
    return hashlib.sha256(array.tobytes()).hexdigest()[:16]


def run_cupy(pause):
    import cupy

    blocks = [cupy.arange(256 * MIB, dtype=cupy.uint32) * k for k in range(1, 5)]
    cupy.cuda.runtime.deviceSynchronize()
    pause(lambda: [digest(block.get()) for block in blocks])
    fresh = cupy.zeros_like(blocks[0])
    for block in blocks:
        fresh ^= block
    sums = [int(block.sum(dtype=cupy.uint64)) for block in blocks + [fresh]]
    return {"exact": sums, "near": []}


def run_numba(pause):
    import numpy

    # Which numpy 2.5 has no more, and Numba's compiler still asks for.
    if not hasattr(numpy, "row_stack"):
        numpy.row_stack = numpy.vstack
    from numba import cuda

    @cuda.jit
    def add(block, n):
        i = cuda.grid(1)
        if i < block.size:
            block[i] += i * n

    size = 256 * MIB
    blocks = [cuda.device_array(size, dtype=numpy.uint32) for _ in range(4)]
    launch = add[(size + 255) // 256, 256]
    for n, block in enumerate(blocks):
        block[:].copy_to_device(numpy.full(size, n, dtype=numpy.uint32))
        launch(block, n + 1)
    cuda.synchronize()
    pause(lambda: [digest(block.copy_to_host()) for block in blocks])
    for n, block in enumerate(blocks):
        launch(block, n + 2)
    return {"exact": [digest(block.copy_to_host()) for block in blocks], "near": []}


def run_jax(pause):
    import jax
    import jax.numpy as jnp
    import numpy

    width, batch = 11 * 1024, 256
    keys = jax.random.split(jax.random.PRNGKey(0), 4)

    def loss(params, x, y):
        hidden = jax.nn.relu(x @ params["in"])
        return jnp.mean((hidden @ params["out"] - y) ** 2)

    def step(params, momentum, x, y):
        value, gradient = jax.value_and_grad(loss)(params, x, y)
        momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, gradient)
        params = jax.tree.map(lambda p, m: p - 0.01 * m, params, momentum)
        return params, momentum, value

    train = jax.jit(step, donate_argnums=(0, 1))
    params = {
        "in": jax.random.normal(keys[0], (width, width)) * 0.01,
        "out": jax.random.normal(keys[1], (width, width)) * 0.01,
    }
    momentum = jax.tree.map(jnp.zeros_like, params)
    x = jax.random.normal(keys[2], (batch, width))
    y = jax.random.normal(keys[3], (batch, width))
    data = jnp.arange(512 * MIB, dtype=jnp.uint32)
    losses = []

    def contents():
        # Copies, since an array keeps what it has once given to the host.
        arrays = [data[:: 4096 + 1], *jax.tree.leaves((params, momentum))]
        return [digest(numpy.asarray(jnp.copy(array))) for array in arrays]

    for half in range(2):
        for _ in range(4):
            params, momentum, value = train(params, momentum, x, y)
            losses.append(float(value))
        jax.block_until_ready((params, momentum, data))
        if half == 0:
            pause(contents)
    return {
        "exact": [digest(numpy.asarray(data[:: 4096 + 1])), int(jnp.sum(data * 3))],
        "near": losses + [float(jnp.sum(jnp.abs(p))) for p in jax.tree.leaves(params)],
    }


RUNS = {"cupy": run_cupy, "numba": run_numba, "jax": run_jax}


def used_mib():
    environment = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}
    out = subprocess.run(
        ["nvidia-smi", "-i", "0", "--query-gpu=memory.used"]
        + ["--format=csv,noheader,nounits"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return int(out.split()[0])


def region(library):
    text = ctypes.create_string_buffer(1 << 16)
    library.stayput_snapshot_json(text, ctypes.c_size_t(len(text)))
    for row in json.loads(text.value)["regions"]:
        if row["tag"] == TAG:
            return row
    return {"bytes_device": 0, "mappings": 0}


def timed(library, name):
    start = time.monotonic()
    code = getattr(library, name)(TAG.encode())
    if code != 0:
        library.stayput_last_error.restype = ctypes.c_char_p
        sys.exit(f"{name}: {code}: {library.stayput_last_error().decode()}")
    return time.monotonic() - start


def child(program, managed):
    seen = {}

    def pause(contents):
        if not managed:
            return
        library = ctypes.CDLL(None)
        kept = contents()
        seen["region"] = region(library)
        seen["before"] = used_mib()
        seen["pause"] = timed(library, "stayput_pause")
        seen["while"] = used_mib()
        seen["left"] = region(library)["bytes_device"]
        seen["resume"] = timed(library, "stayput_resume")
        seen["after"] = used_mib()
        seen["same"] = contents() == kept

    seen["results"] = RUNS[program](pause)
    print(json.dumps(seen))


def start(program, environment, library=None):
    full = {**os.environ, **EVERYWHERE, **environment}
    if library:
        full.update(LD_PRELOAD=library, STAYPUT_DEFAULT=TAG)
    mode = "managed" if library else "plain"
    return subprocess.Popen(
        [sys.executable, os.path.abspath(__file__), "--child", program, mode],
        env=full,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process):
    """What the child has seen, or None and why."""
    try:
        out, err = process.communicate(timeout=CHILD_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        return None, f"no end after {CHILD_SECONDS} s\n{err[-2000:]}"
    if process.returncode:
        return None, f"status {process.returncode}\n{err[-3000:]}"
    if err.strip():
        print(err.strip()[-2000:], file=sys.stderr)
    return json.loads(out.splitlines()[-1]), ""


def can_import(program):
    return not subprocess.run(
        [sys.executable, "-c", f"import {program}"], capture_output=True
    ).returncode


def are_equal(a, b):
    """Sums of floating point numbers may be taken in another order."""
    near = all(abs(x - y) <= 1e-4 * abs(y) for x, y in zip(a["near"], b["near"]))
    return a["exact"] == b["exact"] and near


def judge(seen, plain):
    """"" when the row is right, else what is wrong."""
    size = seen["region"]["bytes_device"] / MIB
    if size < 3500:
        return f"only {size:.0f} MiB were in the region"
    if not seen["same"]:
        return "contents differ after the resume"
    if not are_equal(seen["results"], plain["results"]):
        return f"results differ: {seen['results']}, {plain['results']}"
    if seen["before"] - seen["while"] < 0.95 * size:
        return "memory is not free"
    if abs(seen["after"] - seen["before"]) > 0.05 * size:
        return "memory is not back"
    return ""


def row_of(name, seen, wrong):
    return (
        f"{name:18} {seen['region']['bytes_device'] / MIB:7.0f} "
        f"{seen['region']['mappings']:8} {seen['before']:7} {seen['while']:7} "
        f"{seen['after']:7} {seen['pause']:7.2f} {seen['resume']:7.2f}  "
        + (wrong or "right")
    )


def main():
    build, wanted = os.path.abspath(sys.argv[1]), sys.argv[2:]
    library = os.path.join(build, "libstayput-deep.so")
    rows = [row for row in ROWS if not wanted or row[1] in wanted or row[0] in wanted]
    programs = sorted({row[1] for row in rows})
    missing = [program for program in programs if not can_import(program)]
    begun = {p: start(p, {}) for p in programs if p not in missing}
    plain = {p: finish(process) for p, process in begun.items()}
    table, failed = [], False
    for name, program, environment in rows:
        if program in missing:
            table.append(f"{name:18} skipped: cannot be imported")
            continue
        seen, error = plain[program]
        if seen:
            seen, error = finish(start(program, environment, library))
        wrong = error or judge(seen, plain[program][0])
        failed = failed or bool(wrong)
        table.append(f"{name:18} {wrong}" if error else row_of(name, seen, wrong))
    print(
        "MiB                 region mappings  before   while   after   pause  resume  s"
    )
    print("\n".join(table))
    sys.exit(failed)


if __name__ == "__main__":
    if sys.argv[1] == "--child":
        child(sys.argv[2], sys.argv[3] == "managed")
    else:
        main()
