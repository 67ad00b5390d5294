"""Inputs, golden and truth of gather_pa_kv_cache: pure torch. A copy, so golden and truth are one."""

from __future__ import annotations

import torch

from pypto_gym.ops.attention import reference
from pypto_gym.ops.attention.incre_flash_attention import incre_flash_attention_golden as paged


def make_inputs(case, generator):
    """Arguments of `launch`: a cache as incre_flash_attention's, NaN wherever no sequence is."""
    inputs = paged.make_inputs({**case, "q_len": 1, "heads": case["kv_heads"]}, generator)
    return dict(k_cache=inputs["k_cache"], v_cache=inputs["v_cache"], block_table=inputs["block_table"],
                cu_seqlens_kv=reference.cu_seqlens(case["kv_lens"]))  # fmt: skip


def golden(*, k_cache, v_cache, block_table, cu_seqlens_kv, drop=None):
    """The sequences one after the other, [total_kv, kv_heads, head_dim]."""
    if drop == "block_table":  # the blocks as they lie in the cache
        block_table = torch.arange(block_table.numel()).view(block_table.shape) % len(k_cache)

    def packed(cache):
        lengths = cu_seqlens_kv.diff().tolist()
        return torch.cat([paged.sequence(cache, row, n).transpose(0, 1) for row, n in zip(block_table, lengths)])

    return {"k": packed(k_cache), "v": packed(v_cache)}


def truth(**inputs):
    return {name: x.double() for name, x in golden(**inputs).items()}


def terms(case):
    return ("block_table",)
