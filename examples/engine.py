# SPDX-License-Identifier: Apache-2.0
"""A small engine: its weights, KV cache and CUDA graphs leave the card and come back.

A Llama-shaped model with random weights generates greedily, with decode steps captured in
CUDA graphs for several batch sizes. Then the engine sleeps: weights go to host memory, the
KV cache and the graphs' memory are dropped. It wakes with everything at the same addresses,
replays the graphs that were captured before, and has to generate the same tokens.

    python3 examples/engine.py --gib 12 --cycles 3

One sees how much of the card is in use, how long sleep and wake took, and tokens per second
before and after. The first sleep also pins host memory; weights that have not changed since
are not copied again.
"""

import argparse
import pickle
import random
import sys
import time

from support import GIB, VOCABULARY, preload, timed

if __name__ == "__main__":
    preload()  # before PyTorch, which takes seconds to load

import stayput.torch
import torch
from model import HEAD, Sleeper, digest, make_model, next_logits
from stayput.torch import region

TOKENS = 1024  # places in the KV cache for each sequence
BATCHES = (1, 4, 16, 64, 256)
PROMPT, ANSWER = 16, 48


class Engine(Sleeper):
    def __init__(
        self,
        gib=12,
        weights_gib=None,
        weights="host",
        seed=0,
        device="cuda:0",
        batches=BATCHES,
    ):
        """`gib` in regions, of which `weights_gib` (default two thirds) are weights, with
        policy `weights` over a sleep."""
        torch.cuda.set_device(device)
        with region("weights", weights):
            weight_bytes = int((weights_gib or gib * 2 / 3) * GIB)
            self.model = make_model(weight_bytes, seed, device, TOKENS).requires_grad_(
                False
            )
        # What no weight update brings back has to be kept, whatever becomes of the weights.
        with region("tables", "host"):
            for module in self.model.modules():
                for name, buffer in module.named_buffers(recurse=False):
                    module._buffers[name] = buffer.clone()
        config = self.model.config
        place = 2 * config.num_key_value_heads * TOKENS * HEAD * 2
        spare = int(gib * GIB) - sum(p.nbytes for p in self.model.parameters())
        slots = max(1, spare // (place * config.num_hidden_layers))
        shape = (2, slots, config.num_key_value_heads, TOKENS, HEAD)
        with region("kv_cache", "discard"):
            self.cache = [
                torch.empty(shape, dtype=torch.bfloat16, device=device)
                for _ in range(config.num_hidden_layers)
            ]
        self.sizes = [n for n in batches if n <= slots]
        # What is handed to a graph and taken from it; small, and left on the card.
        self.next = torch.zeros(self.sizes[-1], dtype=torch.int64, device=device)
        self.position = torch.zeros(1, dtype=torch.int64, device=device)
        self.out = torch.zeros(self.sizes[-1], TOKENS, dtype=torch.int64, device=device)
        self.places = torch.arange(TOKENS, device=device)
        self._capture()

    @torch.no_grad()
    def _capture(self):
        self.graphs = {}
        pool = torch.cuda.graph_pool_handle()  # one for all: only one runs at a time
        side = torch.cuda.Stream()
        torch.cuda.synchronize()
        for size in reversed(self.sizes):
            with torch.cuda.stream(side):
                self._decode(size)  # libraries make their handles now, not in the capture
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with stayput.torch.graph(graph, tag="cuda_graph", policy="discard", pool=pool):
                self._decode(size)
            self.graphs[size] = graph

    def _decode(self, size):
        """One more token for the first `size` slots."""
        logits = self._logits(self.next[:size, None], self.position)
        self.next[:size].copy_(logits.argmax(-1))
        self.position.add_(1)
        self.out[:size].index_copy_(1, self.position, self.next[:size, None])

    def _logits(self, ids, positions):
        return next_logits(self.model, self.cache, ids, positions, self.places)

    @torch.no_grad()
    def generate(self, prompts, count):
        """`count` tokens after each prompt (lists of one length); seconds until the first
        tokens were there, and until all were."""
        start = time.perf_counter()
        size = next(n for n in self.sizes if n >= len(prompts))
        length = len(prompts[0])
        rows = list(prompts) + [prompts[0]] * (size - len(prompts))
        # Attention reads all of a slot, and after a wake anything may be there: 0 * NaN.
        for cache in self.cache:
            cache[:, :size].zero_()
        ids = torch.tensor(rows).to(self.next.device)
        logits = self._logits(ids, self.places[:length])
        self.next[:size].copy_(logits.argmax(-1))
        self.position.fill_(length)
        self.out[:size, length].copy_(self.next[:size])
        torch.cuda.synchronize()
        first = time.perf_counter() - start
        for _ in range(count - 1):
            self.graphs[size].replay()
        tokens = self.out[: len(prompts), length : length + count].tolist()
        return tokens, first, time.perf_counter() - start

    @torch.no_grad()
    def load(self, parcel):
        """Copies weights that another process shares, and closes them again: until then
        its pause could not release them."""
        weights = dict(self.model.named_parameters())
        shared = [(name, rebuild(*args)) for name, (rebuild, args) in pickle.loads(parcel)]
        for name, tensor in shared:
            weights[name].copy_(tensor)
        torch.cuda.synchronize()

    def digest(self):
        return digest(self.model.parameters())

    def most(self):
        """The most prompts at a time."""
        return self.sizes[-1]

    def weight_gib(self):
        return sum(p.nbytes for p in self.model.parameters()) / GIB


def random_prompts(count, seed=1):
    source = random.Random(seed)
    return [[source.randrange(VOCABULARY) for _ in range(PROMPT)] for _ in range(count)]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--gib", type=float, default=12, help="memory in regions (default 12)"
    )
    parser.add_argument(
        "--cycles", type=int, default=3, help="sleeps and wakes (default 3)"
    )
    args = parser.parse_args()

    engine, seconds = timed(lambda: Engine(args.gib))
    print(
        f"started in {seconds:.1f} s; {len(engine.cache)} layers, "
        f"{engine.cache[0].shape[1]} slots of {TOKENS} tokens, graphs for batches of "
        f"{', '.join(map(str, engine.sizes))}"
    )
    for held in stayput.regions():
        print(f"  {held}")
    prompts = {size: random_prompts(size) for size in engine.sizes}
    largest = engine.most()

    def answers():
        result = {size: engine.generate(prompts[size], ANSWER) for size in engine.sizes}
        speed = largest * (ANSWER - 1) / (result[largest][2] - result[largest][1])
        return {size: answer[0] for size, answer in result.items()}, speed

    expected, speed = answers()
    print(f"awake: {engine.memory()[0]:.1f} GiB in use, {speed:.0f} tokens/s")
    right = True
    for cycle in range(1, args.cycles + 1):
        _, slept = timed(engine.sleep)
        asleep, host = engine.memory()
        _, woke = timed(engine.wake)
        awake, _ = engine.memory()
        tokens, speed = answers()
        right = right and tokens == expected
        print(
            f"cycle {cycle}: asleep in {slept:.2f} s: {asleep:.1f} GiB in use, "
            f"host {host:.1f} GiB; awake in {woke:.2f} s: {awake:.1f} GiB, "
            f"{speed:.0f} tokens/s, tokens {'the same' if tokens == expected else 'DIFFER'}"
        )
    print(f"engine: {args.cycles} cycles, tokens {'the same' if right else 'DIFFER'}")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
