"""Inputs, golden and truth of scatter_pa_kv_cache: pure torch. A copy, so golden and truth are one."""

from __future__ import annotations

import torch


def make_inputs(case, generator):
    """Arguments of `launch`; the caches hold something already, and the slots are in no order."""
    tokens, width = case["tokens"], (case["kv_heads"], case["head_dim"])
    k, v = (torch.randn(tokens, *width, generator=generator).bfloat16() for _ in range(2))
    caches = [torch.randn(case["blocks"], case["block_size"], *width, generator=generator).bfloat16() for _ in range(2)]
    slots = torch.randperm(case["blocks"] * case["block_size"], generator=generator)[:tokens].to(torch.int32)
    return dict(k=k, v=v, slot_mapping=slots, k_cache=caches[0], v_cache=caches[1])


def golden(*, k, v, slot_mapping, k_cache, v_cache, drop=None):
    """The caches with row slot_mapping[i] replaced by token i."""
    slots = torch.arange(len(k)) if drop == "slot_mapping" else slot_mapping.long()
    result = {}
    for name, rows, cache in (("k_cache", k, k_cache), ("v_cache", v, v_cache)):
        cache = cache.clone()
        cache.flatten(0, 1)[slots] = rows
        result[name] = cache
    return result


def truth(**inputs):
    return {name: x.double() for name, x in golden(**inputs).items()}


def terms(case):
    return ("slot_mapping",)
