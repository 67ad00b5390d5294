"""Gradients of attention over dense and packed layouts, with the options of flash_attention_score."""

from __future__ import annotations

import torch

from pypto_gym.ops.attention import checks, estimates, reference
from pypto_gym.ops.attention.flash_attention_score import flash_attention_score as forward
from pypto_gym.ops.attention.flash_attention_score_grad import flash_attention_score_grad_golden as golden
from pypto_gym.tools.harness import Operator, Output, Work


def _work(inputs):
    q, k, heads = inputs["q"], inputs["k"], inputs["head_num"]
    if inputs["layout"] == "TND":
        band = golden.forward.BANDS[inputs["sparse_mode"]](inputs["pre_tokens"], inputs["next_tokens"])
        lengths = zip(inputs["cu_seqlens_q"].diff().tolist(), inputs["cu_seqlens_kv"].diff().tolist())
        pairs, head_dim = sum(int(reference.band_mask(*pair, **band).sum()) for pair in lengths), q.shape[2]
    else:
        pairs = q.shape[0] * forward.visible_pairs(inputs)
        head_dim = q.shape[-1] if inputs["layout"] == "BNSD" else q.shape[-1] // heads
    return Work(
        cube_flops=10 * pairs * heads * head_dim,
        bytes=2 * (3 * q.numel() + 2 * k.numel()) + 4 * (q.numel() + 2 * k.numel()) + 8 * q.numel() // head_dim,
    )


def _sim_executions(inputs, impl):
    q, k, heads = inputs["q"], inputs["k"], inputs["head_num"]
    if inputs["layout"] == "TND":
        lengths = list(zip(inputs["cu_seqlens_q"].diff().tolist(), inputs["cu_seqlens_kv"].diff().tolist()))
    else:
        token = 2 if inputs["layout"] == "BNSD" else 1  # dimension of the length
        lengths = [(q.shape[token], k.shape[token])] * q.shape[0]
    head_dim = q.numel() // (heads * sum(q_len for q_len, _ in lengths))
    names = ("q", "k", "v", "o", "do", "l", "m", "bias", "keep")
    viewed = tuple(inputs[name] for name in names if inputs[name] is not None)
    return estimates.backward(lengths, heads, head_dim, viewed, (4 * q.numel(), 8 * k.numel()), impl == "single_pass")


OPERATOR = Operator(
    file=__file__,
    summary="dq, dk, dv of attention over BSH, BNSD and TND, sparse modes 0 to 4, bias, dropout mask, GQA",
    params={
        "batch": int, "q_lens": list[int], "kv_lens": list[int], "heads": int, "kv_heads": int, "head_dim": int,
        "layout": str, "sparse_mode": int, "pre_tokens": int, "next_tokens": int, "bias": bool, "keep_prob": float,
    },  # fmt: skip
    golden=golden,
    impls={
        "general": "flash_attention_score_grad_impl",
        "a3": "flash_attention_score_grad_impl_a3",
        "single_pass": "flash_attention_score_grad_impl_single_pass",
    },
    outputs={name: Output(rtol=2**-7, atol=1e-4, budget=1.5) for name in ("dq", "dk", "dv")},
    work=_work,
    sim_executions=_sim_executions,
)


def flash_attention_score_grad(
    q, k, v, o, do, l, m, head_num, layout="BSH", *, pse=None, atten_mask=None, drop_mask=None, keep_prob=1.0, scale=None,
    sparse_mode=0, pre_tokens=forward.NO_LIMIT, next_tokens=forward.NO_LIMIT, impl=None,
):  # fmt: skip
    """Gradients of `flash_attention_score` with respect to q, k and v.

    Args:
        q, k, v, head_num, layout and the options: as `flash_attention_score` took them.
        o, l, m: what it returned. do: gradient of o, BF16, shape of o.
        impl: "general", "a3" (default) or "single_pass", which adds dq atomically.

    Returns:
        dq, dk, dv, FP32, shapes of q, k and v. The bias gets no gradient.

    Raises:
        TypeError, ValueError: an argument of another kind; the message names it, what it is and what is taken.
    """
    inputs = forward.check(
        q, k, v, head_num, layout, pse, atten_mask, drop_mask, keep_prob, scale, sparse_mode, pre_tokens, next_tokens
    )
    for name, x in (("o", o), ("do", do)):
        checks.tensor(name, x, torch.bfloat16, q.dim(), q.device)
        if x.shape != q.shape:
            raise ValueError(f"{name}: got shape {list(x.shape)}, takes that of q, {list(q.shape)}")
    shape = [q.shape[0], head_num, q.shape[1 if layout == "BSH" else 2], 1]
    for name, x in (("l", l), ("m", m)):
        checks.tensor(name, x, torch.float32, 4, q.device)
        if list(x.shape) != shape:
            raise ValueError(f"{name}: got shape {list(x.shape)}, takes {shape}")
    gradients = {name: torch.empty_like(x, dtype=torch.float32) for name, x in (("dq", q), ("dk", k), ("dv", v))}
    OPERATOR.launch(
        impl or "a3", **inputs, o=o, do=do, l=l, m=m, cu_seqlens_q=None, cu_seqlens_kv=None, **gradients
    )
    return tuple(gradients.values())


if __name__ == "__main__":
    raise SystemExit(OPERATOR.main())
