"""Writes new keys and values into their slots of a paged cache, in place."""

from __future__ import annotations

import torch

from pypto_gym.ops.attention import checks, paging
from pypto_gym.ops.attention.scatter_pa_kv_cache import scatter_pa_kv_cache_golden as golden
from pypto_gym.tools.harness import Executions, Operator, Output, Work

def _executions(inputs, impl):
    k, v = inputs["k"], inputs["v"]
    rows = {"general": 8, "a3": 32}[impl]
    return [Executions(-(-len(k) // rows), (k, v, inputs["k_cache"], inputs["v_cache"]), (), rows * k[0].nbytes * 2)]


OPERATOR = Operator(
    file=__file__,
    summary="new keys and values into their slots of a paged KV cache, BF16, in place",
    params={"tokens": int, "kv_heads": int, "head_dim": int, "blocks": int, "block_size": int},
    golden=golden,
    impls={"general": "scatter_pa_kv_cache_impl", "a3": "scatter_pa_kv_cache_impl_a3"},
    outputs={"k_cache": Output(exact=True), "v_cache": Output(exact=True)},
    work=lambda inputs: Work(cube_flops=0, bytes=2 * (inputs["k"].nbytes + inputs["v"].nbytes)),
    sim_executions=_executions,
)


def scatter_pa_kv_cache(k, v, slot_mapping, k_cache, v_cache, impl=None):
    """k_cache[slot // block_size, slot % block_size] = k[i] with slot = slot_mapping[i], for every token i; v likewise.

    Args:
        k, v: BF16 [tokens, kv_heads, head_dim].
        slot_mapping: INT32 [tokens], each slot at most once, 0 to blocks * block_size - 1.
        k_cache, v_cache: BF16 [blocks, block_size, kv_heads, head_dim], changed in place; block_size a power of two
            from 16 to 1024.
        impl: "general" or "a3"; default: a3.

    Raises:
        TypeError, ValueError: an argument of another kind; a slot outside the cache, or given twice. The slots are read
            back to the host for that.
    """
    checks.tensor("k", k, torch.bfloat16, 3)
    checks.tensor("v", v, torch.bfloat16, 3, k.device)
    if k.shape != v.shape:
        raise ValueError(f"v: got shape {list(v.shape)}, takes that of k, {list(k.shape)}")
    paging.caches(k_cache, v_cache, k.device)
    if k.shape[1:] != k_cache.shape[2:]:
        raise ValueError(
            f"k: got {k.shape[1]} heads of {k.shape[2]}, takes those of the cache, {k_cache.shape[2]} of {k_cache.shape[3]}"
        )
    paging.row_width(k_cache)
    paging.slots(slot_mapping, len(k), k_cache, k.device)
    if len(k):
        OPERATOR.launch(impl or "a3", k=k, v=v, slot_mapping=slot_mapping, k_cache=k_cache, v_cache=v_cache)


if __name__ == "__main__":
    raise SystemExit(OPERATOR.main())
