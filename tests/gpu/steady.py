# SPDX-License-Identifier: Apache-2.0
"""steady.py GIB - PyTorch, knowing nothing of stayput: a model of that size, whose answer to
the same question is compared for every line on standard input: "right" or "wrong"."""
import sys

import torch

gib = int(sys.argv[1])
torch.manual_seed(1)
layers = torch.nn.ModuleList(
    torch.nn.Linear(8192, 8192, device="cuda", dtype=torch.bfloat16)
    for _ in range(gib * 8)
)
question = torch.randn(64, 8192, device="cuda", dtype=torch.bfloat16)


@torch.no_grad()
def answer():
    x = question
    for layer in layers:
        x = torch.nn.functional.layer_norm(layer(x), x.shape[-1:])
    return x.cpu()


first = answer()
torch.cuda.synchronize()
print("ready", flush=True)
for _ in sys.stdin:
    print("right" if torch.equal(answer(), first) else "wrong", flush=True)
