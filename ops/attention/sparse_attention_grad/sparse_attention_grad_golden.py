"""Inputs, golden and truth of sparse_attention_grad: pure torch.

For one query, its heads of one kv head, and the rows K, V that it selected, with S = scale q K^T:
P = exp(S - m) / l; D = rowsum(o * do); dS = P * (do V^T - D); dq = scale dS K; dk[rows] += scale dS^T q;
dv[rows] += P^T do. Source: Dao et al., FlashAttention, arXiv:2205.14135, appendix B.4, per selected set.

The truth takes o, l and m as they come, like the kernels. The golden is then at most 2.9 ULP off (seven cases, 300
seeds each; 11 where a query has one key, so that dS is 0 but for noise). Against the gradient of the exact forward
pass the BF16 rounding of o would put its dq up to 260 and its dk up to 190 ULP off: in rows where dP - D cancels,
because one weight is near 1 or because a key has one query. With an exact o that, too, is at most 2.8.
"""

from __future__ import annotations

import torch

from pypto_gym.ops.attention.sparse_attention import sparse_attention_golden as forward


def make_inputs(case, generator):
    """Arguments of `launch`: those of the forward pass, what it returned, and the gradient of o."""
    inputs = forward.make_inputs(case, generator)
    results = forward.golden(**inputs)
    do = torch.randn(inputs["q"].shape, generator=generator).bfloat16()
    return dict(inputs, o=results["o"], l=results["l"], m=results["m"], do=do)


def golden(*, q, k, v, rows, counts, scale, o, l, m, do, drop=None):
    """With the kernel's conversions: BF16 operands, FP32 products and softmax, BF16 P and scale dS, FP32 sums."""

    def gradients(q, k, v, o, do, l, m):
        q, k, v, o, do = (x.float() for x in (q, k, v, o, do))
        p = torch.exp(q @ k.T * (1.0 if drop == "scale" else scale) - (0.0 if drop == "max" else m))
        p = p if drop == "normaliser" else p / l
        row_sum = 0.0 if drop == "row_sum" else (o * do).sum(-1, keepdim=True)
        ds = (p * (do @ v.T - row_sum) * (1.0 if drop == "scale" else scale)).bfloat16().float()
        return ds @ k, ds.T @ q, p.bfloat16().float().T @ do

    return _by_query(gradients, torch.float32, k, v, rows, counts, q, o, do, l, m)


def truth(*, q, k, v, rows, counts, scale, o, l, m, do):
    """The formulas in FP64, at these inputs."""

    def gradients(q, k, v, o, do, l, m):
        p = torch.exp(q @ k.T * scale - m) / l
        ds = p * (do @ v.T - (o * do).sum(-1, keepdim=True))
        return ds @ k * scale, ds.T @ q * scale, p.T @ do

    q, k, v, o, do, l, m = (x.double() for x in (q, k, v, o, do, l, m))
    return _by_query(gradients, torch.float64, k, v, rows, counts, q, o, do, l, m)


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
