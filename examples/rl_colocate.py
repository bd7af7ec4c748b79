# SPDX-License-Identifier: Apache-2.0
"""Engine and trainer take turns on one GPU: two processes that would not fit side by side.

In each round the trainer wakes, takes a few optimisation steps and puts its gradients and
Adam's states to sleep. The engine's weights wake, are overwritten with the trainer's by
CUDA IPC, and the trainer's go to sleep too. The engine gets its KV cache back, generates
with the graphs that it captured at the start, and sleeps.

    python3 examples/rl_colocate.py --gib 100 --rounds 2

Of what a phase holds on the card, the trainer keeps three quarters in host memory while it
sleeps (weights and optimizer; gradients are discarded), the engine nothing: its weights are
sent again, its cache is filled again. One sees how much of the card is in use in each turn,
seconds to sleep and wake, and the loss. Right is: weights and states are the same after a
sleep, the engine's weights are the trainer's, the loss goes down.
"""

import argparse
import sys
import time

from support import Group, card, taught, timed

PROMPT, ANSWER = 16, 64


class Turns:
    """What the rounds need of the trainers and engines, one of each for every GPU: groups
    with all(method, *args) and each(method, values)."""

    def __init__(self, trainers, engines, say=print):
        self.trainers, self.engines, self.say = trainers, engines, say
        self.kept = trainers.all("digests")
        self.right, self.held, self.longest, self.losses = True, [], 0.0, []

    def round(self, number, steps):
        start = time.perf_counter()
        self.train(number, steps)
        self.update()
        self.generate()
        seconds = time.perf_counter() - start
        self.longest = max(self.longest, seconds)
        self.say(f"round {number}: {seconds:.1f} s", flush=True)

    def train(self, number, steps):
        trainers = self.trainers
        _, woke = timed(trainers.all, "wake")
        same = trainers.all("digests") == self.kept
        losses, seconds = timed(trainers.all, "train", steps)
        used, host = trainers.all("memory")[0]
        self.kept = trainers.all("digests")
        _, slept = timed(trainers.all, "sleep", "gradients", "optimizer")
        self.losses += losses[0]
        self.right = self.right and same
        self.held.append(used)
        self.say(
            f"round {number}: trainer awake in {woke:.2f} s, {used:.1f} GiB in use, "
            f"states {'the same' if same else 'DIFFER'}; loss {losses[0][0]:.2f} to "
            f"{losses[0][-1]:.2f} in {seconds:.2f} s; all but weights asleep in "
            f"{slept:.2f} s, host {host:.1f} GiB"
        )

    def update(self):
        """The trainer's weights into the engine's memory."""
        trainers, engines = self.trainers, self.engines
        _, woke = timed(engines.all, "wake", "weights", "tables")
        start = time.perf_counter()
        for number in range(trainers.all("parcel_count")[0]):
            engines.each("load", trainers.all("share", number))
        seconds = time.perf_counter() - start
        used, _ = engines.all("memory")[0]
        same = engines.all("digest") == [weights for weights, _ in self.kept]
        reports, slept = timed(trainers.all, "sleep", "weights")
        # What the engine still had open would not have been released.
        held = any(getattr(report.total, "bytes_held", 0) for report in reports)
        self.right = self.right and same and not held
        self.say(
            f"  weights: engine's awake in {woke:.2f} s, sent in {seconds:.2f} s and "
            f"{'the same' if same else 'DIFFERENT'}, {used:.1f} GiB in use, trainer's "
            f"{'NOT all ' if held else ''}asleep in {slept:.2f} s"
        )

    def generate(self):
        engines = self.engines
        _, woke = timed(engines.all, "wake")
        count = min(64, engines.all("most")[0])
        prompts = [taught(place, PROMPT) for place in range(count)]
        answers, seconds = timed(engines.all, "generate", prompts, ANSWER)
        used, host = engines.all("memory")[0]
        _, slept = timed(engines.all, "sleep")
        wanted = [taught(place + PROMPT, ANSWER) for place in range(count)]
        pairs = [p for rows in zip(answers[0][0], wanted) for p in zip(*rows)]
        learned = sum(got == want for got, want in pairs) / len(pairs)
        self.held.append(used)
        self.say(
            f"  engine: awake in {woke:.2f} s, {used:.1f} GiB in use, "
            f"{count * ANSWER / seconds:.0f} tokens/s, {learned:.0%} of them as taught; "
            f"asleep in {slept:.2f} s, host {host:.1f} GiB"
        )

    def finish(self, name):
        """Prints the result line. The exit status."""
        right = self.right and self.losses[-1] < self.losses[0]
        self.say(
            f"{name}: at least {min(self.held):.1f} GiB in use in every phase, longest "
            f"round {self.longest:.1f} s, loss {self.losses[0]:.2f} to "
            f"{self.losses[-1]:.2f}, contents {'right' if right else 'WRONG'}"
        )
        return 0 if right else 1


def arguments(text):
    parser = argparse.ArgumentParser(
        description=text, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--gib",
        type=float,
        help="memory in regions in each phase (default 75%% of the card)",
    )
    parser.add_argument("--rounds", type=int, default=2, help="default 2")
    parser.add_argument(
        "--steps", type=int, default=4, help="optimisation steps in a round (default 4)"
    )
    return parser


def prepare(engines, trainers, gib, ranks=({},), device="cuda:0", say=print):
    """Makes both sides, with `gib` in regions in each phase, and puts them to sleep."""
    start = time.perf_counter()
    engine = {"gib": gib, "weights_gib": gib / 4, "weights": "discard", "device": device}
    engines.start([engine] * len(ranks))
    engines.all("sleep")
    trainers.start([{"weights_gib": gib / 4, "device": device, **rank} for rank in ranks])
    trainers.all("reserve")
    turns = Turns(trainers, engines, say)
    trainers.all("sleep")
    say(
        f"ready in {time.perf_counter() - start:.1f} s, both asleep: "
        f"{trainers.all('memory')[0][0]:.1f} GiB in use",
        flush=True,
    )
    return turns


def main():
    args = arguments(__doc__).parse_args()
    engines, trainers = Group("engine", "Engine"), Group("trainer", "Trainer")
    turns = prepare(engines, trainers, args.gib or 0.75 * card()[1])
    for number in range(1, args.rounds + 1):
        turns.round(number, args.steps)
    status = turns.finish("rl_colocate")
    trainers.end()
    engines.end()
    return status


if __name__ == "__main__":
    sys.exit(main())
