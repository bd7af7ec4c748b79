# SPDX-License-Identifier: Apache-2.0
"""The trainer of the colocation examples: weights, gradients and Adam's states, each in a
region of its own, and real optimisation steps on a toy task. Not a program of its own."""

import os
import pickle

import torch
from model import Sleeper, digest, make_model
from stayput.torch import region
from support import GIB, taught
from torch import distributed
from torch.multiprocessing.reductions import reduce_tensor

ROWS, LENGTH = 4, 64
PARCEL = 2 * GIB  # weights that are shared at a time


class Trainer(Sleeper):
    def __init__(self, weights_gib, device="cuda:0", rank=0, world=0, init_method=None):
        """`weights_gib` of weights in bf16, and four times as much in all. With `world`,
        gradients are averaged over so many ranks, by NCCL."""
        torch.cuda.set_device(device)
        self.world = world
        if world:
            # NCCL's own buffers stay where they are over a pause; registrations of region
            # memory, which it makes for collectives in graphs, would not.
            os.environ.setdefault("NCCL_GRAPH_REGISTER", "0")
            distributed.init_process_group(
                "nccl",
                init_method=init_method,
                rank=rank,
                world_size=world,
                device_id=torch.device(device),
            )
        with region("weights", "host"):
            self.model = make_model(int(weights_gib * GIB), 0, device)
        self.weights = dict(self.model.named_parameters())
        # Made here, since what autograd's threads allocate would be outside of the region.
        with region("gradients", "discard"):
            for weight in self.weights.values():
                weight.grad = torch.zeros_like(weight)
        self.optimizer = torch.optim.AdamW(
            self.weights.values(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0, fused=True
        )
        # Its first step makes the states; with gradients of zero it changes no weight.
        with region("optimizer", "host"):
            self.optimizer.step()
        places = range(rank * ROWS, (rank + 1) * ROWS)
        rows = [taught(place * 5, LENGTH) for place in places]
        self.ids = torch.tensor(rows, device=device)
        self.parcels = self._parcels()

    def train(self, steps):
        """The loss before each of `steps` steps on the same few lines of text."""
        losses = []
        for _ in range(steps):
            self.optimizer.zero_grad(set_to_none=False)
            logits = self.model(input_ids=self.ids, use_cache=False).logits
            loss = torch.nn.functional.cross_entropy(
                logits[:, :-1].flatten(0, 1).float(), self.ids[:, 1:].flatten()
            )
            loss.backward()
            if self.world:
                for weight in self.weights.values():
                    distributed.all_reduce(weight.grad, distributed.ReduceOp.AVG)
            self.optimizer.step()
            losses.append(loss.item())
        return losses

    def _parcels(self):
        parcels = [[]]
        size = 0
        for name, weight in self.weights.items():
            if size and size + weight.nbytes > PARCEL:
                parcels.append([])
                size = 0
            parcels[-1].append(name)
            size += weight.nbytes
        return parcels

    def parcel_count(self):
        return len(self.parcels)

    def share(self, number):
        """CUDA IPC handles of one parcel of weights, for Engine.load()."""
        torch.cuda.synchronize()
        return pickle.dumps(
            [
                (name, reduce_tensor(self.weights[name].detach()))
                for name in self.parcels[number]
            ]
        )

    def digests(self):
        """Of the weights, and of the optimizer's states."""
        states = [t for state in self.optimizer.state.values() for t in state.values()]
        return digest(self.weights.values()), digest(states)

    def close(self):
        if self.world:
            distributed.destroy_process_group()
