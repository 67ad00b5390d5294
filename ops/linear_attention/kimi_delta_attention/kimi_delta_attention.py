"""Kimi delta attention: the gated delta rule with a gate for every key channel, chunked forward pass."""

from __future__ import annotations

import torch

from pypto_gym.ops.linear_attention import checks
from pypto_gym.ops.linear_attention.kimi_delta_attention import kimi_delta_attention_golden as golden
from pypto_gym.tools.harness import Executions, Operator, Output, Work


def _work(inputs):
    """The products of the chunked algorithm: pairs counted once, the triangular inverse as a forward substitution."""
    q, v, c = inputs["q"], inputs["v"], inputs["chunk_size"]
    (_, _, dk), (_, heads, dv) = q.shape, v.shape
    flops = 0
    for n in inputs["cu_seqlens"].diff().tolist():
        for m in [c] * (n // c) + [n % c] * (n % c > 0):
            pairs, states = 2 * m * m, 2 * m * dk * dv
            # A and att (their lower halves), T, W, U, att V'; W S, Q S and the state
            flops += heads * (pairs * (dk + m / 6 + dk + 2 * dv) + 3 * states)
    narrow = (2 * q.numel() + 2 * v.numel()) * q.element_size()
    wide = 4 * (inputs["g"].numel() + inputs["beta"].numel() + 2 * inputs["initial_state"].numel())
    return Work(cube_flops=flops, bytes=narrow + wide, dtype=torch.float32)


def _executions(inputs, impl):
    """One entry a step; scratch as `sizes` of the kernel has it, in bytes."""
    q, v, c, batch = inputs["q"], inputs["v"], inputs["chunk_size"], inputs["initial_state"].shape[0]
    (tokens, qk_heads, dk), (_, heads, dv) = q.shape, v.shape
    cells, chunks = tokens // c + 2 * batch, sum(-(-n // c) for n in inputs["cu_seqlens"].diff().tolist())
    prepared = 4 * cells * c * (2 * qk_heads * dk + heads * (dk + dv + 1))
    query, transfer, states = (4 * cells * heads * n for n in (c * (dk + dv), dk * (dk + dv), dk * dv))
    tile, raw = 4 * c * max(c, dk, dv), [inputs[name] for name in ("q", "k", "v", "g", "beta")]
    return [
        Executions(chunks, viewed=raw, assembled=(prepared,), tiles=8 * heads * tile),
        Executions(chunks, viewed=(prepared,), assembled=(query, transfer), tiles=100 * heads * tile),
        Executions(heads * (chunks + batch), viewed=(transfer,), assembled=(states,), tiles=4 * 4 * dk * dv),
        Executions(chunks, viewed=(query, states), assembled=(v,), tiles=4 * heads * tile),
    ]


OPERATOR = Operator(
    file=__file__,
    summary="delta rule with a gate per key channel, chunked forward, varlen, GQA, FP32 and BF16",
    params={
        "lengths": list[int], "qk_heads": int, "value_heads": int, "key_dim": int, "value_dim": int,
        "chunk_size": int, "dtype": str, "gate": float | None, "beta": float | None,
    },  # fmt: skip
    golden=golden,
    impls={"general": "kimi_delta_attention_impl", "a3": "kimi_delta_attention_impl_a3"},
    outputs={name: Output(rtol=2**-7, atol=1e-4, budget=1.5) for name in ("o", "final_state")},
    work=_work,
    sim_executions=_executions,
)


def kimi_delta_attention(q, k, v, g, beta, initial_state, cu_seqlens, chunk_size=128, impl=None):
    """S <- diag(exp g_t) S; S <- S + k_t (beta_t (v_t - k_t^T S))^T; o_t = Dk^-1/2 S^T q_t, with q_t and k_t normalised.

    Args:
        q, k: FP32 or BF16 [T, Hqk, Dk]; Dk and Dv multiples of 16 up to 128. Their L2 norm is taken inside.
        v: of q's dtype [T, Hv, Dv], Hv a multiple of Hqk.
        g: FP32 [T, Hv, Dk], the logarithm of the decay of each key channel, at most 0.
        beta: FP32 [T, Hv].
        initial_state: FP32 [B, Hv, Dk, Dv].
        cu_seqlens: INT32 [B + 1], offsets of the sequences from 0 to T. Any lengths, 0 included.
        chunk_size: 16, 32, 64 or 128 tokens. Changes rounding and speed, nothing else.
        impl: an implementation's name; default: the record's first.

    Returns:
        o in q's dtype [T, Hv, Dv], and the final state, FP32 [B, Hv, Dk, Dv].

    Raises:
        TypeError, ValueError: an argument of another kind; the message names it, what it is and what is taken.
    """
    checks.inputs(q, k, v, g, beta, initial_state, cu_seqlens, chunk_size, channel_gate=True)
    o, final_state = torch.empty_like(v), torch.empty_like(initial_state)
    OPERATOR.launch(
        impl or OPERATOR.default_impl, q=q, k=k, v=v, g=g, beta=beta, initial_state=initial_state,
        cu_seqlens=cu_seqlens, chunk_size=chunk_size, o=o, final_state=final_state,
    )  # fmt: skip
    return o, final_state


if __name__ == "__main__":
    raise SystemExit(OPERATOR.main())
