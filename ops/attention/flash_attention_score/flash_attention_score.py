"""Attention over dense layouts, with the options of torch_npu's fusion attention: sparse modes, position bias, dropout."""

from __future__ import annotations

import torch

from pypto_gym.ops.attention import checks, estimates, reference
from pypto_gym.ops.attention.flash_attention_score import flash_attention_score_golden as golden
from pypto_gym.tools.harness import Operator, Output, Work

LAYOUTS = ("BSH", "BNSD")
NO_LIMIT = 2**31 - 1


def visible_pairs(inputs) -> int:
    """(query, key) pairs of one head that the band lets through."""
    q, k = inputs["q"], inputs["k"]
    q_len, kv_len = (q.shape[2], k.shape[2]) if inputs["layout"] == "BNSD" else (q.shape[1], k.shape[1])
    band = golden.BANDS[inputs["sparse_mode"]](inputs["pre_tokens"], inputs["next_tokens"])
    return int(reference.band_mask(q_len, kv_len, **band).sum())


def _work(inputs):
    q, k, head_num = inputs["q"], inputs["k"], inputs["head_num"]
    head_dim = q.shape[-1] if inputs["layout"] == "BNSD" else q.shape[-1] // head_num
    extras = sum(x.numel() * x.element_size() for x in (inputs["bias"], inputs["keep"]) if x is not None)
    return Work(
        cube_flops=4 * q.shape[0] * head_num * visible_pairs(inputs) * head_dim,
        bytes=4 * (q.numel() + k.numel()) + 8 * q.numel() // head_dim + extras,
    )


def _sim_executions(inputs, impl):
    q, k, heads = inputs["q"], inputs["k"], inputs["head_num"]
    token = 2 if inputs["layout"] == "BNSD" else 1  # dimension of the length
    head_dim = q.numel() // (q.shape[0] * heads * q.shape[token])
    lengths = [(q.shape[token], k.shape[token])] * q.shape[0]
    extras = tuple(x for x in (inputs["bias"], inputs["keep"]) if x is not None)
    statistics = 8 * q.numel() // head_dim
    return estimates.forward(lengths, heads, head_dim, (q, k, inputs["v"], *extras), (q, statistics), impl == "a3")


OPERATOR = Operator(
    file=__file__,
    summary="attention over BSH and BNSD, sparse modes 0 to 4, position bias, dropout mask, GQA",
    params={
        "batch": int, "q_len": int, "kv_len": int, "heads": int, "kv_heads": int, "head_dim": int, "layout": str,
        "sparse_mode": int, "pre_tokens": int, "next_tokens": int, "bias": bool, "keep_prob": float,
    },  # fmt: skip
    golden=golden,
    impls={"general": "flash_attention_score_impl", "a3": "flash_attention_score_impl_a3"},
    outputs={
        "o": Output(rtol=2**-7, atol=1e-4, budget=1.5),
        "l": Output(rtol=1e-5, atol=1e-5, budget=1.5),
        "m": Output(rtol=1e-5, atol=1e-5, budget=1.5),
    },
    work=_work,
    sim_executions=_sim_executions,
)


def flash_attention_score(
    q, k, v, head_num, layout="BSH", *, pse=None, atten_mask=None, drop_mask=None, keep_prob=1.0, scale=None,
    sparse_mode=0, pre_tokens=NO_LIMIT, next_tokens=NO_LIMIT, impl=None,
):  # fmt: skip
    """softmax(Q K^T * scale + pse, masked) V of every batch and head, with optional dropout of the weights.

    Args:
        q: BF16, [B, Sq, heads * head_dim] ("BSH") or [B, heads, Sq, head_dim] ("BNSD").
        k, v: BF16 in the same layout with kv length Skv and kv_heads, a divisor of heads (GQA).
        head_num: heads of q.
        pse: position bias added to the scaled scores, FP32 [B or 1, heads or 1, Sq, Skv].
        atten_mask: bool [B or 1, heads or 1, Sq, Skv] or [Sq, Skv]; True hides. Modes 0 (optional) and 1 (needed).
        drop_mask: UINT8 [B, heads, Sq, Skv], 1 keeps a weight (then divided by keep_prob), 0 drops it.
        keep_prob: in (0, 1]; below 1 needs drop_mask.
        scale: Python number; default head_dim ** -0.5.
        sparse_mode: as torch_npu's fusion attention numbers them.
            0 defaultMask: atten_mask if given, nothing else. 1 allMask: atten_mask. 2 leftUpCausal: key <= query.
            3 rightDownCausal: key <= query + Skv - Sq. 4 band: -pre_tokens <= key - (query + Skv - Sq) <= next_tokens.
        pre_tokens, next_tokens: of mode 4, not negative.
        impl: "general" or "a3"; default: a3.

    Returns:
        o in the layout of q, BF16; l and m (denominator and maximum of the softmax) FP32 [B, heads, Sq, 1]. A query that
        the band shows no key has o = 0, l = 0 and m = -inf.

    Raises:
        TypeError, ValueError: an argument of another kind; the message names it, what it is and what is taken.
    """
    inputs = check(
        q, k, v, head_num, layout, pse, atten_mask, drop_mask, keep_prob, scale, sparse_mode, pre_tokens, next_tokens
    )
    o = torch.empty_like(q)
    shape = (q.shape[0], head_num, q.shape[1 if layout == "BSH" else 2], 1)
    l, m = (q.new_empty(shape, dtype=torch.float32) for _ in range(2))
    OPERATOR.launch(impl or "a3", **inputs, o=o, l=l, m=m)
    return o, l, m


def check(q, k, v, head_num, layout, pse, atten_mask, drop_mask, keep_prob, scale, sparse_mode, pre_tokens, next_tokens):
    """The arguments of `launch` from those of `flash_attention_score`, or the error that they deserve."""
    if layout not in LAYOUTS:
        raise ValueError(f"layout: got {layout!r}, takes {' or '.join(LAYOUTS)}")
    if not isinstance(head_num, int) or head_num < 1:
        raise ValueError(f"head_num: got {head_num!r}, takes a positive int")
    rank = 3 if layout == "BSH" else 4
    checks.tensor("q", q, torch.bfloat16, rank)
    for name, x in (("k", k), ("v", v)):
        checks.tensor(name, x, torch.bfloat16, rank, q.device)
    if k.shape != v.shape:
        raise ValueError(f"v: got shape {list(v.shape)}, takes that of k, {list(k.shape)}")
    if k.shape[0] != q.shape[0]:
        raise ValueError(f"k: got batch {k.shape[0]}, takes that of q, {q.shape[0]}")
    if layout == "BNSD":
        if q.shape[1] != head_num:
            raise ValueError(f"head_num: got {head_num}, takes the heads of q, {q.shape[1]}")
        checks.heads("k", q.shape[1], k.shape[1], q.shape[3], k.shape[3])
        head_dim, q_len, kv_len = q.shape[3], q.shape[2], k.shape[2]
    else:
        if q.shape[2] % head_num:
            raise ValueError(f"head_num: got {head_num}, takes a divisor of q's last dimension, {q.shape[2]}")
        head_dim, q_len, kv_len = q.shape[2] // head_num, q.shape[1], k.shape[1]
        if k.shape[2] % head_dim:
            raise ValueError(f"k: got {k.shape[2]} columns, takes a multiple of head_dim, {head_dim}")
        checks.heads("k", head_num, k.shape[2] // head_dim, head_dim, head_dim)
    if 0 in (q.shape[0], q_len, kv_len):
        raise ValueError(f"q, k: got batch {q.shape[0]}, lengths {q_len} and {kv_len}, takes at least 1 of each")
    if sparse_mode not in range(5):
        raise ValueError(f"sparse_mode: got {sparse_mode!r}, takes 0 to 4 (5 to 8, prefix and varlen modes, are not built)")
    if sparse_mode == 4 and not 0 <= min(pre_tokens, next_tokens):
        raise ValueError(f"pre_tokens, next_tokens: got {pre_tokens} and {next_tokens}, takes numbers not below 0")
    full = [q.shape[0], head_num, q_len, kv_len]
    bias = _bias(pse, atten_mask, sparse_mode, full, q.device)
    if not isinstance(keep_prob, (int, float)) or not 0 < keep_prob <= 1:
        raise ValueError(f"keep_prob: got {keep_prob!r}, takes a number in (0, 1]")
    if (keep_prob < 1) != (drop_mask is not None):
        raise ValueError(f"drop_mask: got {'none' if drop_mask is None else 'one'} with keep_prob {keep_prob}")
    if drop_mask is not None:
        checks.tensor("drop_mask", drop_mask, torch.uint8, 4, q.device)
        if list(drop_mask.shape) != full:
            raise ValueError(f"drop_mask: got shape {list(drop_mask.shape)}, takes {full}")
    return {
        "q": q, "k": k, "v": v, "head_num": head_num, "layout": layout, "scale": checks.scale(scale, head_dim),
        "sparse_mode": sparse_mode, "pre_tokens": min(pre_tokens, kv_len), "next_tokens": min(next_tokens, q_len + kv_len),
        "bias": bias, "keep": drop_mask, "keep_prob": float(keep_prob),
    }  # fmt: skip


def _bias(pse, atten_mask, sparse_mode, full, device):
    """pse and atten_mask as one FP32 tensor that is added to the scores, or None."""
    if pse is not None:
        checks.tensor("pse", pse, torch.float32, 4, device)
        _broadcasts("pse", pse, full)
    if atten_mask is None:
        if sparse_mode == 1:
            raise ValueError("atten_mask: got None, sparse_mode 1 (allMask) takes a mask")
        return pse
    if sparse_mode > 1:
        raise ValueError(f"atten_mask: got one with sparse_mode {sparse_mode}, which makes its own mask")
    if atten_mask.dim() == 2:
        atten_mask = atten_mask[None, None]
    checks.tensor("atten_mask", atten_mask, torch.bool, 4, device)
    _broadcasts("atten_mask", atten_mask, full)
    if atten_mask.all(-1).any():
        raise ValueError("atten_mask: got a query that sees no key, takes at least one visible key for each")
    hidden = torch.zeros(atten_mask.shape, dtype=torch.float32, device=device).masked_fill_(atten_mask, reference.MASKED)
    return hidden if pse is None else pse + hidden


def _broadcasts(name, x, full):
    if list(x.shape[2:]) != full[2:] or x.shape[0] not in (1, full[0]) or x.shape[1] not in (1, full[1]):
        raise ValueError(f"{name}: got shape {list(x.shape)}, takes {full}, with 1 for batch or heads where shared")


if __name__ == "__main__":
    raise SystemExit(OPERATOR.main())
