# SPDX-License-Identifier: Apache-2.0
"""rl_colocate.py on several GPUs, under torchrun: every rank is a trainer and starts the
engine that shares its GPU.

    torchrun --nproc-per-node=2 examples/torchrun_colocate.py --gib 100

The trainers average their gradients by NCCL, in a process group that is made once: it lives
through the pauses, since NCCL's own buffers are in no region. Nothing else is distributed.
Rank 0 says of its GPU what rl_colocate.py says, and the exit status is right on every rank.
"""

import os
import sys

from support import Group, card, preload

if __name__ == "__main__":
    preload()  # before PyTorch, which takes seconds to load

from rl_colocate import arguments, prepare


class Here:
    """The trainer in this process, as a group of one."""

    def start(self, options):
        from trainer import Trainer

        self.trainer = Trainer(**options[0])

    def all(self, method, *args):
        return [getattr(self.trainer, method)(*args)]


def main():
    args = arguments(__doc__).parse_args()
    if "RANK" not in os.environ:
        sys.exit("start this with torchrun")
    rank = {
        "rank": int(os.environ["RANK"]),
        "world": int(os.environ["WORLD_SIZE"]),
        "init_method": "env://",
    }
    say = print if rank["rank"] == 0 else (lambda *_, **__: None)
    engines, trainers = Group("engine", "Engine"), Here()
    turns = prepare(
        engines,
        trainers,
        args.gib or 0.75 * card()[1],
        ranks=[rank],
        device=f"cuda:{os.environ['LOCAL_RANK']}",
        say=say,
    )
    for number in range(1, args.rounds + 1):
        turns.round(number, args.steps)
    status = turns.finish("torchrun_colocate")
    trainers.all("close")
    engines.end()
    return status


if __name__ == "__main__":
    sys.exit(main())
