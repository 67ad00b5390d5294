"""Inputs, golden and truth of flash_attention_score_grad: pure torch, on the family's reference."""

from __future__ import annotations

import torch

from .. import reference
from ..flash_attention_score import flash_attention_score_golden as forward


def make_inputs(case, generator):
    """q, k, v ~ N(0, 1), dO ~ N(0, 1) / 8 in BF16; o, l and m come from a real forward pass with the same options."""
    if case["layout"] == "TND":
        inputs = _packed(case, generator)
        inputs |= {"bias": None, "keep": None, "keep_prob": 1.0}
    else:
        inputs = forward.make_inputs({**case, "q_len": case["q_lens"][0], "kv_len": case["kv_lens"][0]}, generator)
        inputs |= {"cu_seqlens_q": None, "cu_seqlens_kv": None}
    inputs["do"] = (torch.randn(inputs["q"].shape, generator=generator) / 8).bfloat16()
    o, l, m = _per_sequence(_flow, **inputs)
    return inputs | {"o": o, "l": l, "m": m}


def golden(*, drop=None, **inputs):
    """dq, dk, dv with the kernel's conversions: BF16 operands and P and scaled dS, the rest FP32.

    `drop` forgets the scale, the mask, the bias, the dropout or the row sum D.
    """
    dq, dk, dv = _per_sequence(_grad_flow, drop=drop, statistics=True, **inputs)
    return {"dq": dq.float(), "dk": dk.float(), "dv": dv.float()}


def truth(**inputs):
    """Exact gradients in FP64 at these inputs, of which o is rounded; l and m are not used."""
    dq, dk, dv = _per_sequence(_exact, statistics=True, **inputs)
    return {"dq": dq, "dk": dk, "dv": dv}


def output_shapes(*, q, k, v, **_):
    """Shape and dtype of each output."""
    return {name: (tuple(x.shape), torch.float32) for name, x in (("dq", q), ("dk", k), ("dv", v))}


def terms(case):
    """Terms whose loss must show."""
    masked = case["sparse_mode"] > 1
    return (
        ["scale", "row_sum"] + ["mask"] * masked + ["bias"] * case["bias"] + ["keep"] * (case["keep_prob"] < 1)
    )


def _packed(case, generator):
    def normal(lengths, heads):
        return torch.randn(sum(lengths), heads, case["head_dim"], generator=generator).bfloat16()

    return {
        "q": normal(case["q_lens"], case["heads"]),
        "k": normal(case["kv_lens"], case["kv_heads"]),
        "v": normal(case["kv_lens"], case["kv_heads"]),
        "head_num": case["heads"],
        "layout": "TND",
        "scale": case["head_dim"] ** -0.5,
        "sparse_mode": case["sparse_mode"],
        "pre_tokens": case["pre_tokens"],
        "next_tokens": case["next_tokens"],
        "cu_seqlens_q": reference.cu_seqlens(case["q_lens"]),
        "cu_seqlens_kv": reference.cu_seqlens(case["kv_lens"]),
    }


def _per_sequence(function, *, q, k, v, do, head_num, layout, cu_seqlens_q, cu_seqlens_kv, scale, drop=None,
                  o=None, l=None, m=None, statistics=False, **mask):  # fmt: skip
    """Applies `function(scale, options, q, k, v, do[, o, l, m])` to [..., heads, length, d], back into the layout."""
    scale = 1.0 if drop == "scale" else scale
    if layout != "TND":
        q4, k4, v4, options = forward.prepare(q, k, v, drop, head_num=head_num, layout=layout, **mask)
        do4 = forward.from_layout(do, layout, q4.shape[-1])
        extra = (forward.from_layout(o, layout, q4.shape[-1]), l, m, drop) if statistics else ()
        results = function(scale, options, q4, k4, v4, do4, *extra)
        # l and m, which end in a 1, have one layout.
        return tuple(y if y.shape[-1] == 1 else forward.to_layout(y, layout).contiguous() for y in results)

    def one(_, q, do, *rest):
        *of_q, k, v = rest
        band = forward.BANDS[mask["sparse_mode"]](mask["pre_tokens"], mask["next_tokens"])
        allowed = reference.band_mask(q.shape[-2], k.shape[-2], **band) if band and drop != "mask" else None
        return function(scale, {"allowed": allowed}, q, k, v, do, *of_q, *([drop] if of_q else []))

    of_q = [q, do, o, l, m] if statistics else [q, do]
    if function is _flow:
        return reference.varlen(one, cu_seqlens_q, cu_seqlens_kv, of_q, [k, v])
    dq, dk, dv = torch.zeros_like(q, dtype=torch.float64), *(torch.zeros_like(x, dtype=torch.float64) for x in (k, v))
    q_bounds, kv_bounds = cu_seqlens_q.tolist(), cu_seqlens_kv.tolist()
    for rows, columns in zip(map(slice, q_bounds, q_bounds[1:]), map(slice, kv_bounds, kv_bounds[1:])):
        if rows.start < rows.stop and columns.start < columns.stop:
            arguments = [x[rows].transpose(0, 1) for x in of_q] + [x[columns].transpose(0, 1) for x in (k, v)]
            for target, part, gradient in zip((dq, dk, dv), (rows, columns, columns), one(None, *arguments)):
                target[part] = gradient.transpose(0, 1).double()
    return dq, dk, dv


def _flow(scale, options, q, k, v, do):
    return reference.attention_flow(q, k, v, scale, forward.KV_TILE, **options)


def _exact(scale, options, q, k, v, do, o, l, m, drop):
    options = {name: x if x is None or x.dtype == torch.bool else x.double() for name, x in options.items()}
    q, k, v, do, o = (x.double() for x in (q, k, v, do, o))
    return reference.attention_grad(q, k, v, do, scale, o=o, **options)[:3]


def _grad_flow(scale, options, q, k, v, do, o, l, m, drop):
    heads, kv_heads = q.shape[-3], k.shape[-3]
    q, do, o = q.float(), do.float(), o.float()
    k, v = (reference.repeat_heads(x, heads).float() for x in (k, v))
    s = reference.scores(q, k, scale, options["allowed"], options.get("bias"))
    p = (s - m.masked_fill(m.isinf(), 0)).exp() / l.masked_fill(l == 0, 1)
    row_sum = 0.0 if drop == "row_sum" else (o * do).sum(-1, keepdim=True)
    dp, kept, keep = do @ v.mT, p, options.get("keep")
    if keep is not None:
        kept, dp = p * keep, dp * keep
    ds = (p * (dp - row_sum) * scale).bfloat16().float()
    dk, dv = ds.mT @ q, kept.bfloat16().float().mT @ do
    return ds @ k, reference.sum_heads(dk, kv_heads), reference.sum_heads(dv, kv_heads)
