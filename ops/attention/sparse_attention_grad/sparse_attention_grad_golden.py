"""Inputs, golden and truth of sparse_attention_grad: pure torch.

For one query, its heads of one kv head, and the rows K, V that it selected, with S = scale q K^T:
P = exp(S - m) / l; D = rowsum(o * do); dS = P * (do V^T - D); dq = scale dS K; dk[rows] += scale dS^T q;
dv[rows] += P^T do. Source: Dao et al., FlashAttention, arXiv:2205.14135, appendix B.4, per selected set.
"""

from __future__ import annotations

import torch

from pypto_gym.ops.attention import reference
from pypto_gym.ops.attention.sparse_attention import sparse_attention_golden as forward


def make_inputs(case, generator):
    """Arguments of `launch`: those of the forward pass, what it returned, and the gradient of o."""
    inputs = forward.make_inputs(case, generator)
    results = forward.golden(**inputs)
    do = torch.randn(inputs["q"].shape, generator=generator).bfloat16()
    return dict(inputs, o=results["o"], l=results["l"], m=results["m"], do=do)


def golden(*, q, k, v, rows, counts, scale, o, l, m, do, drop=None):
    """With the kernel's conversions: BF16 operands, FP32 products and softmax, BF16 P and dS, FP32 sums."""

    def gradients(q, k, v, o, do, l, m):
        q, k, v, o, do = (x.float() for x in (q, k, v, o, do))
        p = torch.exp(q @ k.T * (1.0 if drop == "scale" else scale) - (0.0 if drop == "max" else m))
        p = p if drop == "normaliser" else p / l
        row_sum = 0.0 if drop == "row_sum" else (o * do).sum(-1, keepdim=True)
        ds = (p * (do @ v.T - row_sum)).bfloat16().float()
        return ds @ k * scale, ds.T @ q * scale, p.bfloat16().float().T @ do

    return _by_query(gradients, torch.float32, k, v, rows, counts, q, o, do, l, m)


def truth(*, q, k, v, rows, counts, scale, do, **_):
    """The exact gradients at these q, k, v and do, in FP64; o, l and m are not looked at."""

    def gradients(q, k, v, do):
        q, k, v, do = (x.double()[:, None] for x in (q, k, v, do))  # [group, 1, d] and [n, 1, d]
        arguments = q.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1), do.transpose(0, 1)
        return [x[0] for x in reference.attention_grad(*arguments, scale)[:3]]

    return _by_query(gradients, torch.float64, k, v, rows, counts, q, do)


def terms(case):
    """What `golden(drop=…)` can leave out."""
    return ("scale", "row_sum", "max", "normaliser")


def _by_query(gradients, dtype, k, v, rows, counts, q, *of_q):
    """Sums `gradients(q, k, v, *of_q)` of every (query, kv head) over its selected rows into dq, dk and dv."""
    kv_heads = k.shape[1]
    group = q.shape[1] // kv_heads
    dq, dk, dv = (torch.zeros(x.shape, dtype=dtype) for x in (q, k, v))
    for i in range(len(q)):
        for h in range(kv_heads):
            keys = rows[i, h, : counts[i, h]].long()
            if len(keys):
                own = slice(h * group, (h + 1) * group)
                selected = (x.flatten(0, 1)[keys] for x in (k, v))
                dq_, dk_, dv_ = gradients(q[i, own], *selected, *(x[i, own] for x in of_q))
                dq[i, own] = dq_
                dk.flatten(0, 1).index_add_(0, keys, dk_)
                dv.flatten(0, 1).index_add_(0, keys, dv_)
    return {"dq": dq, "dk": dk, "dv": dv}
