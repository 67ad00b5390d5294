"""Inputs, golden and truth of flash_attention_score: pure torch, on the family's reference."""

from __future__ import annotations

import torch

from .. import reference

KV_TILE = 512  # of the kernels, see flash_attention_mha_golden.py

BANDS = {
    0: lambda pre, next: {},
    2: lambda pre, next: {"after": 0},
    3: lambda pre, next: {"after": 0, "at_end": True},
    4: lambda pre, next: {"before": pre, "after": next, "at_end": True},
}


def make_inputs(case, generator):
    """q, k, v ~ N(0, 1) in BF16; the bias falls with the distance, a slope per head (ALiBi); the mask keeps keep_prob."""
    b, n, d = case["batch"], case["heads"], case["head_dim"]
    s, t = case["q_len"], case["kv_len"]

    def normal(heads, length):
        x = torch.randn(b, heads, length, d, generator=generator).bfloat16()
        return to_layout(x, case["layout"]).contiguous()

    bias = keep = None
    if case["bias"]:
        distance = (torch.arange(t)[None, :] - torch.arange(s)[:, None]).abs().float()
        bias = -distance * 2.0 ** -torch.arange(1, n + 1).float().view(1, n, 1, 1)
    if case["keep_prob"] < 1:
        keep = (torch.rand(b, n, s, t, generator=generator) < case["keep_prob"]).to(torch.uint8)
    return {
        "q": normal(n, s),
        "k": normal(case["kv_heads"], t),
        "v": normal(case["kv_heads"], t),
        "head_num": n,
        "layout": case["layout"],
        "scale": d**-0.5,
        "sparse_mode": case["sparse_mode"],
        "pre_tokens": case["pre_tokens"],
        "next_tokens": case["next_tokens"],
        "bias": bias,
        "keep": keep,
        "keep_prob": case["keep_prob"],
    }


def golden(*, q, k, v, scale, drop=None, **inputs):
    """o, l, m with the kernel's dtype flow and tiles; `drop` forgets the scale, the mask, the bias or the dropout."""
    q, k, v, options = prepare(q, k, v, drop, **inputs)
    o, l, m = reference.attention_flow(q, k, v, 1.0 if drop == "scale" else scale, KV_TILE, **options)
    return {"o": to_layout(o, inputs["layout"]).contiguous(), "l": l, "m": m}


def truth(*, q, k, v, scale, **inputs):
    """o, l, m of plain attention in FP64."""
    q, k, v, options = prepare(q, k, v, None, **inputs)
    o, l, m = reference.attention(q.double(), k.double(), v.double(), scale, **options)
    return {"o": to_layout(o, inputs["layout"]).contiguous(), "l": l, "m": m}


def terms(case):
    """Terms whose loss must show."""
    return (
        ["scale"] + ["mask"] * (case["sparse_mode"] > 1) + ["bias"] * case["bias"] + ["keep"] * (case["keep_prob"] < 1)
    )


def prepare(q, k, v, drop, *, head_num, layout, sparse_mode, pre_tokens, next_tokens, bias, keep, keep_prob):
    """q, k, v as [B, N, S, D], and the options of the reference functions."""
    head_dim = q.shape[-1] if layout == "BNSD" else q.shape[-1] // head_num
    q, k, v = (from_layout(x, layout, head_dim) for x in (q, k, v))
    band = BANDS[sparse_mode](pre_tokens, next_tokens)
    return q, k, v, {
        "allowed": reference.band_mask(q.shape[-2], k.shape[-2], **band) if band and drop != "mask" else None,
        "bias": None if drop == "bias" else bias,
        "keep": None if keep is None or drop == "keep" else keep.float() / keep_prob,
    }  # fmt: skip


def to_layout(x, layout):
    """[B, N, S, D] in the operator's layout."""
    return x if layout == "BNSD" else x.transpose(1, 2).flatten(2)


def from_layout(x, layout, head_dim):
    """The operator's layout as [B, N, S, D]."""
    return x if layout == "BNSD" else x.unflatten(-1, (-1, head_dim)).transpose(1, 2)
