# SPDX-License-Identifier: Apache-2.0
"""Three models on one GPU that has room for one: asleep with a backup, woken per request.

Each model is an engine (engine.py) in a process of its own. They are loaded one after
another and put to sleep: weights in pinned host memory, nothing on the card but a CUDA
context each. A request for a model that sleeps puts the one that is awake to sleep, whose
weights have not changed and are not copied again, and wakes the other at the speed of the
link.

    python3 examples/switch.py --gib 16 --requests 9

One sees for each request how long sleep and wake took and when its first token was there,
and whether the tokens are those from before the first sleep. Host memory for all weights
is needed: three times --gib.
"""

import argparse
import random
import sys

from support import VOCABULARY, Group, card, timed

MODELS = ("ada", "bob", "cyd")
PROMPT, ANSWER = 16, 32
BATCHES = (1, 4)  # each needs a graph of its own at the start
CACHE_GIB = 1


def load(gib):
    """The three engines asleep, and what each answered before."""
    engines = {name: Group("engine", "Engine") for name in MODELS}
    source = random.Random(3)
    prompt = [[source.randrange(VOCABULARY) for _ in range(PROMPT)]]
    expected = {}
    for seed, (name, engine) in enumerate(engines.items()):
        options = {
            "gib": gib + CACHE_GIB,
            "weights_gib": gib,
            "seed": seed,
            "batches": BATCHES,
        }
        _, seconds = timed(engine.start, [options])
        engine.all("reserve")
        expected[name] = engine.all("generate", prompt, ANSWER)[0][0]
        _, first = timed(engine.all, "sleep")  # waits for host memory to be pinned
        _, woke = timed(engine.all, "wake")
        _, again = timed(engine.all, "sleep")
        weights = engine.all("weight_gib")[0]
        print(
            f"{name}: {weights:.1f} GiB of weights, loaded in {seconds:.1f} s, asleep in "
            f"{first:.2f} s, awake in {woke:.2f} s, asleep again in {again:.2f} s: "
            f"{card()[0]:.1f} GiB in use",
            flush=True,
        )
    return engines, prompt, expected, weights


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--gib",
        type=float,
        help="weights of each model (default 16, at most half the card)",
    )
    parser.add_argument("--requests", type=int, default=9, help="default 9")
    args = parser.parse_args()
    engines, prompt, expected, weights = load(args.gib or min(16, card()[1] / 2))
    awake, wakes, firsts, right = None, [], [], True
    source = random.Random(4)
    for number in range(1, args.requests + 1):
        name = source.choice([other for other in MODELS if other != awake])
        slept = timed(engines[awake].all, "sleep")[1] if awake else 0.0
        _, woke = timed(engines[name].all, "wake")
        tokens, first, seconds = engines[name].all("generate", prompt, ANSWER)[0]
        same = tokens == expected[name]
        print(
            f"request {number}: {name}{f' after {awake}' if awake else ''}, asleep in "
            f"{slept:.3f} s, awake in {woke:.3f} s, first token after "
            f"{slept + woke + first:.3f} s, {ANSWER / seconds:.0f} tokens/s, "
            f"{card()[0]:.1f} GiB in use, tokens {'the same' if same else 'DIFFER'}",
            flush=True,
        )
        wakes.append(woke)
        firsts.append(slept + woke + first)
        awake, right = name, right and same
    print(
        f"switch: {args.requests} requests, {weights:.1f} GiB awake in {max(wakes):.3f} s "
        f"at most, first token after {max(firsts):.3f} s at most, tokens "
        f"{'the same' if right else 'DIFFER'}"
    )
    for engine in engines.values():
        engine.end()
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
