"""Inputs, golden and truth of incre_flash_attention: pure torch."""

from __future__ import annotations

import torch

from pypto_gym.ops.attention import reference

TILE = 1024
"""Keys that the kernels look at in one step. Weights are rounded relative to the maximum of a step, so it matters."""


def make_inputs(case, generator):
    """Arguments of `launch`. Block 0 is in no table, unused entries of a table are -1, and whatever no sequence owns is
    NaN in both caches, so that an element read by mistake is seen."""
    kv_lens, q_len, heads = case["kv_lens"], case["q_len"], case["heads"]
    kv_heads, head_dim, block_size = case["kv_heads"], case["head_dim"], case["block_size"]
    used = [-(-length // block_size) for length in kv_lens]
    blocks = iter((torch.randperm(sum(used), generator=generator) + 1).tolist())
    block_table = torch.full((len(kv_lens), max(used) or 1), -1, dtype=torch.int32)
    caches = [torch.full((sum(used) + 1, block_size, kv_heads, head_dim), torch.nan).bfloat16() for _ in range(2)]
    for b, length in enumerate(kv_lens):
        for j in range(used[b]):
            block_table[b, j] = block = next(blocks)
            rows = min(length - j * block_size, block_size)
            for cache in caches:
                cache[block, :rows] = torch.randn(rows, kv_heads, head_dim, generator=generator)
    q = torch.randn(len(kv_lens), q_len, heads, head_dim, generator=generator).bfloat16()
    return dict(q=q, k_cache=caches[0], v_cache=caches[1], block_table=block_table,
                kv_lens=torch.tensor(kv_lens, dtype=torch.int32), scale=head_dim**-0.5)  # fmt: skip


def golden(*, q, k_cache, v_cache, block_table, kv_lens, scale, drop=None):
    """With the kernel's conversions: BF16 operands, FP32 scores and softmax, BF16 weights, FP32 merge of tiles."""
    if drop == "block_table":  # the blocks as they lie in the cache
        block_table = torch.arange(block_table.numel()).view(block_table.shape) % len(k_cache)
    scale = 1.0 if drop == "scale" else scale

    def attend(q, k, v):
        return reference.split_flow(q, k, v, scale, TILE, use_decay=drop != "decay")

    return {"o": _by_query(attend, q, k_cache, v_cache, block_table, kv_lens, drop != "causal").to(q.dtype)}


def truth(*, q, k_cache, v_cache, block_table, kv_lens, scale):
    """The mathematics in FP64."""

    def attend(q, k, v):
        return reference.attention(q.double(), k.double(), v.double(), scale)[0]

    return {"o": _by_query(attend, q, k_cache, v_cache, block_table, kv_lens)}


def terms(case):
    """What `golden(drop=…)` can leave out: a single visible key has the weight 1 whatever its score."""
    longest = max(case["kv_lens"])
    result = ["block_table"]
    if longest > 1:
        result.append("scale")
    if longest > 1 and case["q_len"] > 1:
        result.append("causal")
    if longest > TILE:
        result.append("decay")
    return tuple(result)


def sequence(cache, blocks, length):
    """The first `length` tokens of the sequence that lies in these blocks of a cache, [kv_heads, length, head_dim]."""
    used = blocks[: -(-length // cache.shape[1])].long()
    return cache[used].flatten(0, 1)[:length].transpose(0, 1)


def _by_query(attend, q, k_cache, v_cache, block_table, kv_lens, causal=True):
    """`attend(q, k, v)` for every token of q over the keys that it sees, FP64; zeros where there are none."""
    batch, q_len = q.shape[:2]
    o = torch.zeros(q.shape, dtype=torch.float64)
    for b in range(batch):
        for t in range(q_len):
            visible = int(kv_lens[b]) - (q_len - 1 - t if causal else 0)
            if visible > 0:
                k, v = (sequence(cache, block_table[b], visible) for cache in (k_cache, v_cache))
                o[b, t] = attend(q[b, t][:, None], k, v)[:, 0]
    return o
