"""Attention and its gradients in plain torch: what the goldens of the attention family are made of. Never pypto.

Tensors are head-major here, `[..., heads, length, head_dim]`, whatever layout an operator has. Two kinds of functions:

* the mathematics (`attention`, `attention_grad`), in the dtype of their arguments: call them with FP64 for a truth;
* the flow (`attention_flow`), which repeats the dtype conversions and the kv tiling of the online softmax kernels.
"""

from __future__ import annotations

from itertools import pairwise

import torch

MASKED = -1e30  # of the kernels, see atoms.py


def band_mask(q_len, kv_len, before=None, after=None, at_end=False):
    """Boolean [q_len, kv_len]: True where -before <= column - row - shift <= after; None is no limit.

    shift is 0, or kv_len - q_len with `at_end`. Causal: after=0.
    """
    distance = torch.arange(kv_len)[None, :] - torch.arange(q_len)[:, None] - (kv_len - q_len if at_end else 0)
    mask = torch.ones(q_len, kv_len, dtype=torch.bool)
    if after is not None:
        mask &= distance <= after
    if before is not None:
        mask &= distance >= -before
    return mask


def repeat_heads(x, heads):
    """[..., kv_heads, length, head_dim] -> [..., heads, length, head_dim]: query head h reads kv head h // group."""
    return x.repeat_interleave(heads // x.shape[-3], dim=-3)


def sum_heads(x, kv_heads):
    """The reverse of `repeat_heads` for gradients: sums the query heads of each kv head."""
    return x.unflatten(-3, (kv_heads, x.shape[-3] // kv_heads)).sum(-3)


def scores(q, k, scale, allowed=None, bias=None):
    """Scaled scores Q K^T * scale + bias, -inf where `allowed` is False. k may have fewer heads than q."""
    s = q @ repeat_heads(k, q.shape[-3]).mT * scale
    if bias is not None:
        s = s + bias
    return s if allowed is None else s.masked_fill(~allowed, -torch.inf)


def statistics(s):
    """Denominator l and maximum m of the rows of `s`, [..., 1]; a row that sees nothing has l = 0 and m = -inf."""
    if s.shape[-1] == 0:
        return s.new_zeros(*s.shape[:-1], 1), s.new_full((*s.shape[:-1], 1), -torch.inf)
    m = s.amax(-1, keepdim=True)
    l = (s - m.masked_fill(m.isinf(), 0)).exp().sum(-1, keepdim=True)
    return l, m


def attention(q, k, v, scale, allowed=None, bias=None, keep=None):
    """softmax(Q K^T * scale + bias) V over the allowed columns.

    q [..., heads, q_len, d], k and v [..., kv_heads, kv_len, d]; `allowed`, `bias` and `keep` broadcast to
    [..., heads, q_len, kv_len]; `keep` multiplies the weights after the softmax (dropout).
    Returns o [..., heads, q_len, d], l and m [..., heads, q_len, 1]. A row that sees nothing gives o = 0.
    """
    s = scores(q, k, scale, allowed, bias)
    l, m = statistics(s)
    p = (s - m.masked_fill(m.isinf(), 0)).exp() / l.masked_fill(l == 0, 1)
    if keep is not None:
        p = p * keep
    return p @ repeat_heads(v, q.shape[-3]), l, m


def attention_grad(q, k, v, grad_o, scale, allowed=None, bias=None, keep=None, o=None):
    """Gradients (dq, dk, dv, ds) of `attention` for the upstream gradient `grad_o`, in the dtype of the arguments.

    With P the weights: dV = P^T dO; dP = dO V^T; dS = P (dP - rowsum(P dP)); dQ = dS K scale; dK = dS^T Q scale.
    ds is the gradient of the scores before scaling's factor, that is of the bias, [..., heads, q_len, kv_len].
    Where `o` is given, rowsum(P dP) is taken as rowsum(o dO), which it is up to the rounding of that o.
    """
    heads, kv_heads = q.shape[-3], k.shape[-3]
    s = scores(q, k, scale, allowed, bias)
    l, m = statistics(s)
    p = (s - m.masked_fill(m.isinf(), 0)).exp() / l.masked_fill(l == 0, 1)
    dp = grad_o @ repeat_heads(v, heads).mT
    kept = p
    if keep is not None:
        kept, dp = p * keep, dp * keep
    row_sum = (p * dp if o is None else o * grad_o).sum(-1, keepdim=True)
    ds = p * (dp - row_sum)
    dq = ds @ repeat_heads(k, heads) * scale
    dk = sum_heads(ds.mT @ q * scale, kv_heads)
    dv = sum_heads(kept.mT @ grad_o, kv_heads)
    return dq, dk, dv, ds


def attention_flow(q, k, v, scale, kv_tile, allowed=None, bias=None, keep=None, use_decay=True):
    """`attention` with the dtype flow of the online softmax kernels, one kv tile after the other.

    q, k, v in BF16 (or FP16); scores, weights and running o, l, m in FP32; the weights are rounded to the dtype of v
    before they meet it; o is rounded to the dtype of q at the end. The tiles matter: weights are rounded relative to
    the maximum so far. `use_decay=False` forgets to rescale o and l when the maximum grows (for sensitivity tests).
    """
    heads, kv_len = q.shape[-3], k.shape[-2]
    q32, k32, v32 = q.float(), repeat_heads(k, heads).float(), repeat_heads(v, heads).float()
    o, (l, m) = torch.zeros_like(q32), statistics(q32[..., :0])
    for start in range(0, kv_len, kv_tile):
        c = slice(start, min(start + kv_tile, kv_len))
        s = scores(q32, k32[..., c, :], scale, _columns(allowed, c), _columns(bias, c))
        m_new = torch.maximum(m, s.amax(-1, keepdim=True))
        reference = m_new.masked_fill(m_new.isinf(), 0)
        p = (s - reference).exp()
        decay = (m - reference).exp() if use_decay else torch.where(m.isinf(), 0.0, 1.0)
        l = l * decay + p.sum(-1, keepdim=True)
        if keep is not None:
            p = p * _columns(keep, c)
        o = o * decay + p.to(v.dtype).float() @ v32[..., c, :]
        m = m_new
    return (o / l.masked_fill(l == 0, 1)).to(q.dtype), l, m


def split_flow(q, k, v, scale, kv_tile, use_decay=True):
    """`attention_flow` of the kernels that look at each kv tile alone and merge the results: the weights of a tile are
    rounded relative to the maximum of that tile. Returns o in the dtype of q. No keys give o = 0.
    """
    heads = q.shape[-3]
    q32, k32, v32 = q.float(), repeat_heads(k, heads).float(), repeat_heads(v, heads).float()
    parts = []
    for columns in torch.arange(k.shape[-2]).split(kv_tile):
        s = scores(q32, k32[..., columns, :], scale)
        m = s.amax(-1, keepdim=True)
        p = (s - m).exp()
        parts.append((p.to(v.dtype).float() @ v32[..., columns, :], p.sum(-1, keepdim=True), m))
    if not parts:
        return torch.zeros_like(q)
    o, l, m = (torch.stack(part) for part in zip(*parts))
    decay = (m - m.amax(0)).exp() if use_decay else torch.ones_like(m)
    return ((o * decay).sum(0) / (l * decay).sum(0)).to(q.dtype)


def _columns(x, c):
    """Columns `c` of a mask or bias whose last dimension may be broadcast."""
    return x if x is None or x.shape[-1] == 1 else x[..., c]


def varlen(function, cu_seqlens_q, cu_seqlens_kv, q_tensors, kv_tensors):
    """Applies `function` to every sequence of packed TND tensors and packs its results again.

    q_tensors [total_q, heads, d] and kv_tensors [total_kv, kv_heads, d] reach it as [heads, length, d], after the
    index of the sequence: `function(b, *q_tensors, *kv_tensors)`. It returns a tuple of [heads, length, d'].
    """
    parts = []
    bounds = zip(pairwise(cu_seqlens_q.tolist()), pairwise(cu_seqlens_kv.tolist()))
    for b, ((q0, q1), (k0, k1)) in enumerate(bounds):
        arguments = [x[q0:q1].transpose(0, 1) for x in q_tensors] + [x[k0:k1].transpose(0, 1) for x in kv_tensors]
        parts.append([y.transpose(0, 1) for y in function(b, *arguments)])
    return tuple(torch.cat(column).contiguous() for column in zip(*parts))


def cu_seqlens(lengths):
    """Cumulative lengths, INT32 [batch + 1], as the varlen operators take them."""
    return torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
