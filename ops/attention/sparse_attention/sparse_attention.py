"""Attention of each query to the keys that were selected for it, tokens or blocks."""

from __future__ import annotations

import torch

from pypto_gym.ops.attention import checks, selection
from pypto_gym.ops.attention.sparse_attention import sparse_attention_golden as golden
from pypto_gym.tools.harness import Executions, Operator, Output, Work


def _work(inputs):
    q, pairs = inputs["q"], int(inputs["counts"].sum())
    group, head_dim = q.shape[1] // inputs["k"].shape[1], q.shape[2]
    statistics = 2 * 4 * q.shape[0] * q.shape[1]
    return Work(cube_flops=4 * pairs * group * head_dim, bytes=2 * (2 * q.numel() + 2 * pairs * head_dim) + statistics)


def _executions(inputs, impl):
    q, k, v, rows = (inputs[name] for name in ("q", "k", "v", "rows"))
    tile = min(rows.shape[-1], golden.TILE)
    group = q.shape[1] // k.shape[1]
    steps = int((-(-inputs["counts"] // tile)).sum())
    return [Executions(steps, (q, k, v, rows), (q,), 4 * tile * q.shape[2] + 20 * group * tile)]


OPERATOR = Operator(
    file=__file__,
    summary="o, l, m of attention to selected tokens or blocks, varlen TND, BF16, GQA",
    params={
        "q_lens": list[int], "kv_lens": list[int], "heads": int, "kv_heads": int, "head_dim": int, "topk": int,
        "block_size": int,
    },  # fmt: skip
    golden=golden,
    impls={"general": "sparse_attention_impl", "a3": "sparse_attention_impl_a3"},
    # Zeroed: a query that selects nothing is not visited, and its o, l and m are 0.
    outputs={
        "o": Output(rtol=2**-7, atol=1e-4, budget=1.5, zeroed=True),
        "l": Output(rtol=1e-5, atol=1e-5, budget=1.5, zeroed=True),
        "m": Output(rtol=1e-5, atol=1e-5, budget=1.5, zeroed=True),
    },
    work=_work,
    sim_executions=_executions,
)


def sparse_attention(
    q, k, v, indices, counts, cu_seqlens_q, cu_seqlens_kv, block_size=1, scale=None, impl=None
):
    """softmax(q K^T * scale) V over the keys that `indices` selects for each query, packed sequences (TND).

    Args:
        q: BF16 [total_q, heads, head_dim].
        k, v: BF16 [total_kv, kv_heads, head_dim]; heads is a multiple of kv_heads (GQA).
        indices: INT32 [total_q, kv_heads, topk]: blocks of the query's own sequence, block j being its tokens
            j * block_size and on (the last may be shorter); each at most once. Causality is the caller's: a block that
            is selected is seen.
        counts: INT32 [total_q], how many of a query's indices count, 0 to topk; the others are not looked at.
        cu_seqlens_q, cu_seqlens_kv: INT32 [batch + 1], offsets of the sequences from 0 to total_q and total_kv.
        block_size: tokens of a block, from 1 (tokens) on.
        scale: factor of the scores, a Python number; default head_dim ** -0.5.
        impl: "general" or "a3"; default: a3.

    Returns:
        o BF16 [total_q, heads, head_dim]; l and m FP32 [total_q, heads, 1], the sum and the maximum of the softmax, as
        `sparse_attention_grad` takes them. All three are 0 for a query with count 0.

    Raises:
        TypeError, ValueError: an argument of another kind; an index outside its sequence, or given twice. The indices
            are read back to the host for that.
    """
    checks.tnd(q=q, k=k, v=v, cu_seqlens_q=cu_seqlens_q, cu_seqlens_kv=cu_seqlens_kv)
    selection.blocks(indices, counts, k.shape[1], cu_seqlens_q, cu_seqlens_kv, block_size, q.device)
    scale = checks.scale(scale, q.shape[2])
    o = torch.zeros_like(q)
    l, m = (q.new_zeros(*q.shape[:2], 1, dtype=torch.float32) for _ in range(2))
    if not counts.any():
        return o, l, m
    rows, counts = golden.selected_rows(indices, counts, cu_seqlens_q, cu_seqlens_kv, block_size)
    OPERATOR.launch(impl or "a3", q=q, k=k, v=v, rows=rows, counts=counts, scale=scale, o=o, l=l, m=m)
    return o, l, m


if __name__ == "__main__":
    raise SystemExit(OPERATOR.main())
