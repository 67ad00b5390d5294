"""Inputs, golden and truth of flash_attention_mha_grad: pure torch.

For one head with S = Q K^T:   P = exp(scale S - m) / l      D = rowsum(O * dO)      dP = dO V^T      dS = P * (dP - D)
                               dV = P^T dO                   dQ = scale dS K         dK = scale dS^T Q
Source: Dao et al., FlashAttention, arXiv:2205.14135, appendix B.4.
"""

from __future__ import annotations

import torch


def make_inputs(case, generator):
    """Arguments of `launch`. o, l and m come from a forward pass over q, k, v, as the backward pass gets them.

    A query row of a sequence without keys has o = 0, m = -inf and l = 0.
    """
    q_lens, kv_lens, heads, head_dim = case["q_lens"], case["kv_lens"], case["heads"], case["head_dim"]

    def normal(tokens):
        return torch.randn(tokens, heads, head_dim, generator=generator).bfloat16()

    q, do = normal(sum(q_lens)), normal(sum(q_lens))
    k, v = normal(sum(kv_lens)), normal(sum(kv_lens))
    o = torch.zeros_like(q)
    l, m = torch.zeros(sum(q_lens), heads, 1), torch.full((sum(q_lens), heads, 1), -torch.inf)
    cu_seqlens_q, cu_seqlens_kv = cumulative(q_lens), cumulative(kv_lens)
    for rows, columns in sequences(cu_seqlens_q, cu_seqlens_kv):
        for head in range(heads):
            scores = q[rows, head].float() @ k[columns, head].float().T * head_dim**-0.5
            m[rows, head] = scores.amax(-1, keepdim=True)
            weights = scores.sub_(m[rows, head]).exp_()
            l[rows, head] = weights.sum(-1, keepdim=True)
            o[rows, head] = (weights @ v[columns, head].float() / l[rows, head]).bfloat16()
    return dict(q=q, k=k, v=v, o=o, do=do, l=l, m=m, cu_seqlens_q=cu_seqlens_q, cu_seqlens_kv=cu_seqlens_kv)


def golden(*, q, k, v, o, do, l, m, cu_seqlens_q, cu_seqlens_kv, drop=None):
    """The gradients with the kernel's own conversions: BF16 operands, FP32 products and softmax, BF16 P and dS."""
    scale = q.shape[-1] ** -0.5

    def gradients(q, k, v, o, do, l, m):
        q, k, v, o, do = (x.float() for x in (q, k, v, o, do))
        scores = q @ k.T * (1.0 if drop == "scale" else scale)
        p = torch.exp(scores if drop == "max" else scores - m)
        p = p if drop == "normaliser" else p / l
        row_sum = 0.0 if drop == "row_sum" else (o * do).sum(-1, keepdim=True)
        ds = (p * (do @ v.T - row_sum)).bfloat16().float()
        p = p.bfloat16().float()
        return ds @ k * scale, ds.T @ q * scale, p.T @ do

    return _by_head(gradients, cu_seqlens_q, cu_seqlens_kv, torch.float32, q, k, v, o, do, l, m)


def output_shapes(*, q, k, **_):
    """Shape and dtype of each output."""
    of_q, of_kv = ((x.shape[0], x.shape[1] * x.shape[2]) for x in (q, k))
    return {"dq": (of_q, torch.float32), "dk": (of_kv, torch.float32), "dv": (of_kv, torch.float32)}


def truth(*, q, k, v, o, do, l, m, cu_seqlens_q, cu_seqlens_kv):
    """The same formula in FP64 throughout, from the inputs as they are: with exact o, l and m, the exact gradients."""
    scale = q.shape[-1] ** -0.5

    def gradients(*inputs):
        q, k, v, o, do, l, m = (x.double() for x in inputs)
        p = torch.exp(q @ k.T * scale - m) / l
        ds = p * (do @ v.T - (o * do).sum(-1, keepdim=True))
        return ds @ k * scale, ds.T @ q * scale, p.T @ do

    return _by_head(gradients, cu_seqlens_q, cu_seqlens_kv, torch.float64, q, k, v, o, do, l, m)


def terms(case):
    """What `golden(drop=…)` can leave out. With one key P is 1 and dS is 0 whatever the scores are."""
    if max(kv for q, kv in zip(case["q_lens"], case["kv_lens"]) if q) == 1:
        return ("row_sum", "max")
    return ("scale", "row_sum", "max", "normaliser")


def cumulative(lens):
    """Offsets of sequences of these lengths: [0, lens[0], lens[0] + lens[1], …], INT32."""
    return torch.tensor([0, *lens], dtype=torch.int32).cumsum(0, dtype=torch.int32)


def sequences(cu_seqlens_q, cu_seqlens_kv):
    """(query rows, key rows) of every sequence that has both, as slices."""
    q, kv = cu_seqlens_q.tolist(), cu_seqlens_kv.tolist()
    pairs = [(slice(*a), slice(*b)) for a, b in zip(zip(q, q[1:]), zip(kv, kv[1:]))]
    return [(rows, columns) for rows, columns in pairs if rows.start < rows.stop and columns.start < columns.stop]


def _by_head(gradients, cu_seqlens_q, cu_seqlens_kv, dtype, q, k, v, *of_q):
    """dq, dk, dv of `gradients(q, k, v, *of_q)` for each sequence and head, laid out as the operator returns them."""
    dq, dk, dv = (torch.zeros(x.shape, dtype=dtype) for x in (q, k, v))
    for rows, columns in sequences(cu_seqlens_q, cu_seqlens_kv):
        for head in range(q.shape[1]):
            inputs = [q[rows, head], k[columns, head], v[columns, head], *(x[rows, head] for x in of_q)]
            dq[rows, head], dk[columns, head], dv[columns, head] = gradients(*inputs)
    return {"dq": dq.flatten(1), "dk": dk.flatten(1), "dv": dv.flatten(1)}
