"""Inputs, golden and truth of flash_attention_mha: pure torch, on the family's reference."""

from __future__ import annotations

import torch

from .. import reference

KV_TILE = 512
"""Kv tile of the kernels wherever a sequence has more than one: weights are rounded to BF16 relative to the maximum of
the tiles so far, so that the golden has to walk the same tiles."""


def make_inputs(case, generator):
    """q, k, v as after a projection of normalised activations: N(0, 1) in BF16."""

    def normal(tokens, heads):
        return torch.randn(tokens, heads, case["head_dim"], generator=generator).bfloat16()

    q_lens, kv_lens = case["q_lens"], case["kv_lens"]
    return {
        "q": normal(sum(q_lens), case["heads"]),
        "k": normal(sum(kv_lens), case["kv_heads"]),
        "v": normal(sum(kv_lens), case["kv_heads"]),
        "cu_seqlens_q": reference.cu_seqlens(q_lens),
        "cu_seqlens_kv": reference.cu_seqlens(kv_lens),
        "causal": case["causal"],
        "scale": case["head_dim"] ** -0.5,
    }


def golden(*, q, k, v, cu_seqlens_q, cu_seqlens_kv, causal, scale, drop=None):
    """o, l, m with the kernel's dtype flow and tiles; `drop` forgets the scale, the mask or the decay."""

    def flow(_, q, k, v):
        return reference.attention_flow(
            q, k, v, 1.0 if drop == "scale" else scale, KV_TILE,
            allowed=_allowed(q, k, causal and drop != "mask"), use_decay=drop != "decay",
        )  # fmt: skip

    o, l, m = reference.varlen(flow, cu_seqlens_q, cu_seqlens_kv, [q], [k, v])
    return {"o": o, "l": l, "m": m}


def truth(*, q, k, v, cu_seqlens_q, cu_seqlens_kv, causal, scale):
    """o, l, m of plain attention in FP64."""

    def exact(_, q, k, v):
        return reference.attention(q.double(), k.double(), v.double(), scale, allowed=_allowed(q, k, causal))

    o, l, m = reference.varlen(exact, cu_seqlens_q, cu_seqlens_kv, [q], [k, v])
    return {"o": o, "l": l, "m": m}


def terms(case):
    """Terms whose loss must show: the scale always, the mask if there is one, the decay if there are several tiles.

    The decay of a row is 1 unless its maximum lies behind the first tile, which a few keys there need not do.
    """
    pairs = [(q, kv) for q, kv in zip(case["q_lens"], case["kv_lens"]) if q and kv]
    if not pairs:
        return []
    masked = case["causal"] and any(q > 1 and kv > 1 for q, kv in pairs)
    return ["scale"] + ["mask"] * masked + ["decay"] * any(kv > 1.1 * KV_TILE for _, kv in pairs)


def _allowed(q, k, causal):
    return reference.band_mask(q.shape[-2], k.shape[-2], after=0, at_end=True) if causal else None
