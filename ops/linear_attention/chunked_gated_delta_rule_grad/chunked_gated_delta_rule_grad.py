"""Gradients of the chunked gated delta rule with respect to q, k, v, g, beta and the initial state."""

from __future__ import annotations

import torch

from pypto_gym.ops.linear_attention import checks
from pypto_gym.ops.linear_attention.chunked_gated_delta_rule_grad import chunked_gated_delta_rule_grad_golden as golden
from pypto_gym.tools.harness import Executions, Operator, Output, Work


def _work(inputs):
    """The products of the chunked algorithm (the triangular inverse as a forward substitution), inputs and outputs once."""
    q, v, c = inputs["q"], inputs["v"], inputs["chunk_size"]
    (_, qk_heads, dk), (_, heads, dv) = q.shape, v.shape
    flops = 0
    for n in inputs["cu_seqlens"].diff().tolist():
        for m in [c] * (n // c) + [n % c] * (n % c > 0):
            pairs, states, squares = 2 * m * m, 2 * m * dk * dv, 2 * m * dk * dk
            local = heads * (pairs * (m / 6 + 2 * dk + dv) + 2 * states + squares) + qk_heads * pairs * 2 * dk
            carry = heads * 2 * 2 * dk * dk * dv
            gradients = heads * (pairs * (4 * dk + 4 * dv) + 5 * states)
            flops += local + carry + gradients
    qkv = 2 * q.numel() + v.numel()
    narrow = (2 * qkv + v.numel()) * q.element_size()
    wide = 4 * (4 * inputs["g"].numel() + 3 * inputs["initial_state"].numel())
    return Work(cube_flops=flops, bytes=narrow + wide, dtype=torch.float32)


def _executions(inputs, impl):
    """One entry a step; scratch as `sizes` of the kernel has it, in bytes."""
    q, v, c, batch = inputs["q"], inputs["v"], inputs["chunk_size"], inputs["initial_state"].shape[0]
    (tokens, qk_heads, dk), (_, heads, dv) = q.shape, v.shape
    cells, chunks = tokens // c + 2 * batch, sum(-(-n // c) for n in inputs["cu_seqlens"].diff().tolist())
    prepared = 4 * cells * c * (2 * qk_heads * dk + 2 * heads * dv + 4 * heads)
    local = 4 * cells * c * heads * (dk + dv + 3 * c)
    transfer, states = 4 * cells * dk * heads * (dk + 2 * dv), 4 * cells * dk * heads * 2 * dv
    tile, raw = 4 * c * max(c, dk, dv), [inputs[name] for name in ("q", "k", "v", "g", "beta", "do")]
    return [
        Executions(chunks, viewed=raw, assembled=(prepared,), tiles=8 * heads * tile),
        Executions(chunks, viewed=(prepared,), assembled=(local, transfer), tiles=50 * heads * tile),
        Executions(heads * (chunks + batch), viewed=(transfer,), assembled=(states,), tiles=8 * 4 * dk * dv),
        Executions(chunks, viewed=(*raw, prepared, local, states), assembled=raw, tiles=50 * heads * tile),
    ]


OPERATOR = Operator(
    file=__file__,
    summary="dq, dk, dv, dg, dbeta and the state's gradient of the chunked gated delta rule, varlen, GQA, FP32 and BF16",
    params={
        "lengths": list[int], "qk_heads": int, "value_heads": int, "key_dim": int, "value_dim": int,
        "chunk_size": int, "dtype": str, "gate": float | None, "beta": float | None,
    },  # fmt: skip
    golden=golden,
    impls={"general": "chunked_gated_delta_rule_grad_impl", "a3": "chunked_gated_delta_rule_grad_impl_a3"},
    outputs={
        **{name: Output(rtol=2**-7, atol=1e-4, budget=1.5) for name in ("dq", "dk", "dv", "dbeta", "dinitial_state")},
        # A difference of three sums that nearly cancel: two orders of summation differ by as much as each from truth.
        "dg": Output(rtol=2**-7, atol=1e-4, budget=3.0, worst_tile=4.0, max_ulp=8.0),
    },
    work=_work,
    sim_executions=_executions,
)


def chunked_gated_delta_rule_grad(
    q, k, v, g, beta, initial_state, cu_seqlens, do, d_final_state, chunk_size=128, impl=None
):
    """Backward pass of `chunked_gated_delta_rule`; L2 norm of q and k and the scale Dk^-1/2 are inside, as there.

    Args:
        q, k: FP32 or BF16 [T, Hqk, Dk]; Dk and Dv multiples of 16 up to 128.
        v, do: of q's dtype [T, Hv, Dv], Hv a multiple of Hqk; do is the gradient of o.
        g, beta: FP32 [T, Hv]; g is the logarithm of the decay, at most 0.
        initial_state, d_final_state: FP32 [B, Hv, Dk, Dv]; d_final_state is the gradient of the final state.
        cu_seqlens: INT32 [B + 1], offsets of the sequences from 0 to T. Any lengths, 0 included.
        chunk_size: 16, 32, 64 or 128 tokens. Changes rounding and speed, nothing else.
        impl: an implementation's name; default: the record's first.

    Returns:
        dq, dk, dv in q's dtype and FP32 dg, dbeta, d_initial_state, each of the shape of what it is the gradient of.

    Raises:
        TypeError, ValueError: an argument of another kind; the message names it, what it is and what is taken.
    """
    checks.inputs(q, k, v, g, beta, initial_state, cu_seqlens, chunk_size)
    checks.tensor("do", do, list(v.shape), (q.dtype,), q.device)
    checks.tensor("d_final_state", d_final_state, list(initial_state.shape), device=q.device)
    inputs = dict(q=q, k=k, v=v, g=g, beta=beta, initial_state=initial_state)
    outputs = {f"d{name}": torch.empty_like(x) for name, x in inputs.items()}
    OPERATOR.launch(
        impl or OPERATOR.default_impl, **inputs, cu_seqlens=cu_seqlens, do=do, d_final_state=d_final_state,
        chunk_size=chunk_size, **outputs,
    )  # fmt: skip
    return tuple(outputs.values())


if __name__ == "__main__":
    raise SystemExit(OPERATOR.main())
