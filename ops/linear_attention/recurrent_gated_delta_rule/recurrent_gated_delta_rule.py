"""The gated delta rule when decoding: one token or a few per sequence, the state updated in place."""

from __future__ import annotations

import torch

from pypto_gym.ops.linear_attention import checks
from pypto_gym.ops.linear_attention.recurrent_gated_delta_rule import recurrent_gated_delta_rule_golden as golden
from pypto_gym.tools.harness import Executions, Operator, Output, Work


def _work(inputs):
    """The state is read and written once a sequence; there is no matrix product."""
    narrow = (2 * inputs["q"].numel() + 2 * inputs["v"].numel()) * inputs["q"].element_size()
    return Work(cube_flops=0, bytes=narrow + 4 * (2 * inputs["g"].numel() + 2 * inputs["state"].numel()))


def _sim_executions(inputs, impl):
    """One body a token and group of value heads."""
    from pypto_gym.ops.linear_attention.recurrent_gated_delta_rule import recurrent_gated_delta_rule_impl as general

    heads, key_dim, value_dim = inputs["state"].shape[1:]
    group = general.group(heads, 2 if impl == "a3" else 1)
    bodies = len(inputs["q"]) * heads // group
    viewed = tuple(inputs[name] for name in ("q", "k", "v", "g", "beta", "state"))
    return [Executions(bodies, viewed, (inputs["v"], inputs["state"]), 6 * group * 4 * key_dim * value_dim)]


OPERATOR = Operator(
    file=__file__,
    summary="gated delta rule, decode: state updated in place, GQA, FP32 and BF16",
    params={
        "tokens": list[int], "qk_heads": int, "value_heads": int, "key_dim": int, "value_dim": int,
        "dtype": str, "gate": float | None, "beta": float | None,
    },  # fmt: skip
    golden=golden,
    impls={"general": "recurrent_gated_delta_rule_impl", "a3": "recurrent_gated_delta_rule_impl_a3"},
    outputs={name: Output(rtol=2**-7, atol=1e-4, budget=1.5) for name in ("o", "state")},
    work=_work,
    sim_executions=_sim_executions,
)


def recurrent_gated_delta_rule(q, k, v, g, beta, state, cu_seqlens=None, impl=None):
    """S <- exp(g_t) S; S <- S + k_t (beta_t (v_t - k_t^T S))^T; o_t = Dk^-1/2 S^T q_t, with q_t and k_t normalised.

    What `chunked_gated_delta_rule` computes, token by token: for decoding, or for verifying a few draft tokens.
    Source: Yang et al., Gated Delta Networks (arXiv:2412.06464); `torch_recurrent_gated_delta_rule` of transformers
    (models/qwen3_next) computes the same with `use_qk_l2norm_in_kernel`.

    Args:
        q, k: FP32 or BF16 [T, Hqk, Dk]; Dk and Dv multiples of 16 up to 128. Their L2 norm is taken inside.
        v: of q's dtype [T, Hv, Dv], Hv a multiple of Hqk.
        g: FP32 [T, Hv], the logarithm of the decay, at most 0.
        beta: FP32 [T, Hv].
        state: FP32 [B, Hv, Dk, Dv]; replaced by the state after the last token. A sequence without tokens keeps its own.
        cu_seqlens: INT32 [B + 1], offsets of the sequences from 0 to T; default: one token each.
        impl: an implementation's name; default: the record's first.

    Returns:
        o in q's dtype [T, Hv, Dv].

    Raises:
        TypeError, ValueError: an argument of another kind; the message names it, what it is and what is taken.
    """
    checks.tensor("state", state, [None, None, None, None])
    if cu_seqlens is None:
        cu_seqlens = torch.arange(state.shape[0] + 1, dtype=torch.int32, device=state.device)
    checks.inputs(q, k, v, g, beta, state, cu_seqlens, state_name="state")
    o = torch.empty_like(v)
    OPERATOR.launch(
        impl or OPERATOR.default_impl, q=q, k=k, v=v, g=g, beta=beta, state=state, cu_seqlens=cu_seqlens, o=o
    )  # fmt: skip
    return o


if __name__ == "__main__":
    raise SystemExit(OPERATOR.main())
