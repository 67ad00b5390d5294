"""Multi-head attention over sequences of any length, with the softmax statistics that the backward pass needs."""

from __future__ import annotations

import torch

from pypto_gym.ops.attention import checks, estimates
from pypto_gym.ops.attention.flash_attention_mha import flash_attention_mha_golden as golden
from pypto_gym.tools.harness import Operator, Output, Work


def _work(inputs):
    q, k, v = inputs["q"], inputs["k"], inputs["v"]
    pairs = 0
    lengths = zip(inputs["cu_seqlens_q"].diff().tolist(), inputs["cu_seqlens_kv"].diff().tolist())
    for q_len, kv_len in lengths:
        seen = min(q_len, kv_len)  # rows that see a key, of which row r (from the end) sees kv_len - r
        pairs += seen * kv_len - seen * (seen - 1) // 2 if inputs["causal"] else q_len * kv_len
    statistics = 2 * 4 * q.shape[0] * q.shape[1]
    return Work(
        cube_flops=4 * pairs * q.shape[1] * q.shape[2],
        bytes=2 * (2 * q.numel() + k.numel() + v.numel()) + statistics,
    )


def _sim_executions(inputs, impl):
    q = inputs["q"]
    lengths = list(zip(inputs["cu_seqlens_q"].diff().tolist(), inputs["cu_seqlens_kv"].diff().tolist()))
    statistics = 2 * 4 * q.shape[0] * q.shape[1]
    return estimates.forward(lengths, q.shape[1], q.shape[2], (q, inputs["k"], inputs["v"]), (q, statistics), impl == "a3")


OPERATOR = Operator(
    file=__file__,
    summary="o, l, m of multi-head attention, varlen TND, BF16, causal option, GQA",
    params={
        "q_lens": list[int], "kv_lens": list[int], "heads": int, "kv_heads": int, "head_dim": int, "causal": bool,
    },  # fmt: skip
    golden=golden,
    impls={"general": "flash_attention_mha_impl", "a3": "flash_attention_mha_impl_a3"},
    outputs={
        "o": Output(rtol=2**-7, atol=1e-4, budget=1.5),
        "l": Output(rtol=1e-5, atol=1e-5, budget=1.5),
        "m": Output(rtol=1e-5, atol=1e-5, budget=1.5),
    },
    work=_work,
    sim_executions=_sim_executions,
    # A tile's products are summed in another order than the tensor graph's; now and then a weight near 1 then rounds to the
    # other BF16 neighbour, 2^-8 away, and its row of the running o moves by 2^-8 |v|. Measured at B2-Q64-KV1200-H1-D128-C:
    # of 8192 elements 75 are beyond 1e-3 (which admits 8), 28 beyond 2e-3 (16), 5 beyond 2^-8 (32); see DESIGN.md.
    pass_tolerance=2**-8,
)


def flash_attention_mha(q, k, v, cu_seqlens_q, cu_seqlens_kv, causal=False, scale=None, impl=None):
    """Attention of packed sequences (TND), forward only; `flash_attention` is the differentiable function.

    For every sequence and head: o = softmax(Q K^T * scale) V, m = rowmax(Q K^T * scale), l = rowsum exp(… - m).

    Args:
        q: BF16 [total_q, heads, head_dim].
        k, v: BF16 [total_kv, kv_heads, head_dim]; heads is a multiple of kv_heads (GQA).
        cu_seqlens_q, cu_seqlens_kv: INT32 [batch + 1], offsets of the sequences from 0 to total_q and total_kv.
        causal: query i of a sequence sees keys up to i + kv_len - q_len (aligned at the ends).
        scale: factor of the scores, a Python number; default head_dim ** -0.5.
        impl: "general" or "a3"; default: a3.

    Returns:
        o BF16 [total_q, heads, head_dim], l and m FP32 [total_q, heads, 1]. A query that sees no key has o = 0, l = 0
        and m = -inf.

    Raises:
        TypeError, ValueError: an argument of another kind; the message names it, what it is and what is taken.
    """
    checks.tnd(q=q, k=k, v=v, cu_seqlens_q=cu_seqlens_q, cu_seqlens_kv=cu_seqlens_kv)
    causal, scale = checks.flag("causal", causal), checks.scale(scale, q.shape[2])
    o = torch.empty_like(q)
    l, m = (q.new_empty(*q.shape[:2], 1, dtype=torch.float32) for _ in range(2))
    OPERATOR.launch(
        impl or "a3", q=q, k=k, v=v, cu_seqlens_q=cu_seqlens_q, cu_seqlens_kv=cu_seqlens_kv,
        causal=causal, scale=scale, o=o, l=l, m=m,
    )  # fmt: skip
    return o, l, m


if __name__ == "__main__":
    raise SystemExit(OPERATOR.main())
