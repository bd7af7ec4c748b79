# SPDX-License-Identifier: Apache-2.0
"""The model of the examples, and what every process of theirs does with its regions."""

import stayput.torch
import torch
from support import GIB, VOCABULARY, card
from transformers import AutoModelForCausalLM, LlamaConfig
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

HEAD = 128  # elements of an attention head


def make_model(weight_bytes, seed, device, tokens=1024):
    """A Llama-shaped model of at least `weight_bytes`, made on the device in bf16."""
    width = 4096 if weight_bytes >= 4 * GIB else 1024
    heads = width // HEAD
    layer = 2 * width * (2 * width + 2 * width // 4 + 3 * width * 7 // 2)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=width,
        intermediate_size=width * 7 // 2,
        num_hidden_layers=max(1, -(-(weight_bytes - 4 * VOCABULARY * width) // layer)),
        num_attention_heads=heads,
        num_key_value_heads=heads // 4,
        max_position_embeddings=tokens,
        tie_word_embeddings=False,
        dtype=torch.bfloat16,
    )
    torch.manual_seed(seed)
    with torch.device(device):
        return AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)


def next_logits(model, cache, ids, positions, places):
    """Logits after the last of `ids` (sequences x new tokens), which stand at `positions`
    of the first slots of the cache, where their keys and values are written. `places`
    numbers those of a slot. Asks nothing of the host, so it can be captured."""
    llama = model.model
    x = llama.embed_tokens(ids)
    rotary = llama.rotary_emb(x, positions[None])
    later = places > positions[:, None]
    for layer, slots in zip(llama.layers, cache):
        normal = layer.input_layernorm(x)
        x = x + _attend(layer.self_attn, normal, slots, rotary, positions, later)
        x = x + layer.mlp(layer.post_attention_layernorm(x))
    return model.lm_head(llama.norm(x[:, -1]))


def _attend(attention, x, slots, rotary, positions, later):
    batch, new, _ = x.shape
    projections = (attention.q_proj, attention.k_proj, attention.v_proj)
    q, k, v = (p(x).view(batch, new, -1, HEAD).transpose(1, 2) for p in projections)
    q, k = apply_rotary_pos_emb(q, k, *rotary)
    keys, values = slots[0, :batch], slots[1, :batch]
    keys.index_copy_(2, positions, k)
    values.index_copy_(2, positions, v)
    q = q.reshape(batch, keys.shape[1], -1, HEAD)  # query heads that share a key head
    scores = (q @ keys.transpose(2, 3)).float() * HEAD**-0.5
    scores.unflatten(2, (-1, new)).masked_fill_(later, float("-inf"))
    x = scores.softmax(-1).to(values.dtype) @ values
    return attention.o_proj(x.view(batch, -1, new, HEAD).transpose(1, 2).flatten(2))


def digest(tensors):
    """A number that tells contents apart: the sum of their bits, taken as integers."""
    return int(sum(t.detach().reshape(-1).view(torch.int32).sum() for t in tensors))


class Sleeper:
    """What leaves the card and comes back: all regions of the process, or some."""

    def sleep(self, *tags):
        return stayput.torch.pause(*tags)

    def wake(self, *tags):
        return stayput.torch.resume(*tags)

    def reserve(self):
        """Begins to pin the host memory that a sleep will need."""
        stayput.host_reserve()

    def memory(self):
        """GiB of the card that all processes use, and of the host that is pinned here."""
        uuid = str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid)
        return card(uuid)[0], stayput.snapshot()["host_bytes"] / GIB
