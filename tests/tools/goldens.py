"""Four small operators to prove the comparator on: golden, FP64 truth, and a kernel that sums in another order.

A kernel takes `fault`, which plants a defect inside its arithmetic: `bf16_accumulator` keeps every running sum in BF16,
`mask` moves the bound of a mask or of a sum by one, `truncating_cast` cuts instead of rounding where an intermediate
becomes BF16. Outputs come back before their store, in FP32, so that a test can also spoil the store.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from pypto_gym.ops.attention.flash_attention_mha_grad import flash_attention_mha_grad_golden as attention
from pypto_gym.tools.harness.records import Output

FAULTS = ("bf16_accumulator", "mask", "truncating_cast")


@dataclass(frozen=True)
class Example:
    """inputs(generator, *size) -> dict; golden, truth: inputs -> dict; kernel(inputs, fault) -> dict of FP32."""

    inputs: Callable
    golden: Callable
    truth: Callable
    kernel: Callable
    small: tuple
    large: tuple
    spec: Output


def truncated(x: torch.Tensor) -> torch.Tensor:
    """FP32 cut to BF16, still held in FP32."""
    return (x.float().view(torch.int32) & -65536).view(torch.float32)


def _bf16(x: torch.Tensor, fault: str | None) -> torch.Tensor:
    return truncated(x) if fault == "truncating_cast" else x.bfloat16().float()


def _sum(terms: list[torch.Tensor], fault: str | None) -> torch.Tensor:
    """A running sum from the last term to the first."""
    total = torch.zeros_like(terms[0])
    for term in reversed(terms):
        total = total + term
        if fault == "bf16_accumulator":
            total = total.bfloat16().float()
    return total


def _blocks(length: int, fault: str | None) -> list[slice]:
    """What is summed at once; an accumulator in low precision rounds after every element."""
    step = 1 if fault == "bf16_accumulator" else 16
    return [slice(i, min(i + step, length)) for i in range(0, max(length, 1), step)]


def _matmul(a: torch.Tensor, b: torch.Tensor, fault: str | None) -> torch.Tensor:
    return _sum([a[:, s] @ b[s] for s in _blocks(a.shape[1], fault)], fault)


def _row_sum(x: torch.Tensor, fault: str | None) -> torch.Tensor:
    return _sum([x[:, s].sum(-1, keepdim=True) for s in _blocks(x.shape[1], fault)], fault)


# softmax(x) over the keys that a causal query may see: row i sees columns 0 to i + cols - rows


def _softmax_inputs(gen, rows, cols):
    return {"x": torch.randn(rows, cols, generator=gen).bfloat16()}


def _visible(x, shift=0):
    rows, cols = x.shape
    return torch.arange(cols) <= torch.arange(rows)[:, None] + cols - rows + shift


def _softmax_golden(x):
    return {"p": torch.softmax(x.float().masked_fill(~_visible(x), -torch.inf), -1)}


def _softmax_truth(x):
    return {"p": torch.softmax(x.double().masked_fill(~_visible(x), -torch.inf), -1)}


def _softmax_kernel(x, fault=None):
    seen = _visible(x, -1 if fault == "mask" else 0)
    e = torch.exp(x.float() - x.float().amax(-1, keepdim=True)) * seen
    return {"p": e / _row_sum(e, fault)}


# c = a @ b


def _matmul_inputs(gen, m, k, n):
    return {"a": torch.randn(m, k, generator=gen).bfloat16(), "b": torch.randn(k, n, generator=gen).bfloat16()}


def _matmul_golden(a, b):
    return {"c": a.float() @ b.float()}


def _matmul_truth(a, b):
    return {"c": a.double() @ b.double()}


def _matmul_kernel(a, b, fault=None):
    k = a.shape[1] - (fault == "mask")
    return {"c": _matmul(a.float()[:, :k], b.float()[:k], fault)}


# y = x / sqrt(mean(x ** 2) + eps) * weight

EPS = 1e-6


def _rms_norm_inputs(gen, rows, cols):
    x = torch.randn(rows, cols, generator=gen).bfloat16()
    return {"x": x, "weight": (1 + 0.1 * torch.randn(cols, generator=gen)).bfloat16()}


def _rms_norm_golden(x, weight):
    x = x.float()
    return {"y": x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS) * weight.float()}


def _rms_norm_truth(x, weight):
    x = x.double()
    return {"y": x / (x.square().mean(-1, keepdim=True) + EPS).sqrt() * weight.double()}


def _rms_norm_kernel(x, weight, fault=None):
    x, cols = x.float(), x.shape[1]
    mean = _row_sum(x.square()[:, : cols - (fault == "mask")], fault) / cols
    return {"y": x * (1 / (mean + EPS).sqrt()) * weight.float()}


# Attention backward: the operator's own inputs, golden and truth


def _attention_inputs(gen, q_lens, kv_lens, heads, dim):
    return attention.make_inputs({"q_lens": q_lens, "kv_lens": kv_lens, "heads": heads, "head_dim": dim}, gen)


def _attention_kernel(q, k, v, o, do, l, m, cu_seqlens_q, cu_seqlens_kv, fault=None):
    """What is rounded to BF16 is summed as the golden sums it, unless there is a fault. Another order now and then rounds a P
    or dS to the other side, and a row of 64 elements moves: up to 10 of 35584 are then beyond the contract, in 27 of 300
    outputs (100 seeds), and in which ones depends on the CPU."""
    dq, dk, dv = (torch.zeros(x.shape) for x in (q, k, v))
    scale = q.shape[-1] ** -0.5

    def before_rounding(a, b):
        return _matmul(a, b, fault) if fault else a @ b

    for rows, columns in attention.sequences(cu_seqlens_q, cu_seqlens_kv):
        columns = slice(columns.start, columns.stop - (fault == "mask"))
        for head in range(q.shape[1]):
            q_h, o_h, do_h = (x[rows, head].float() for x in (q, o, do))
            k_h, v_h = k[columns, head].float(), v[columns, head].float()
            p = torch.exp(before_rounding(q_h, k_h.T) * scale - m[rows, head]) / l[rows, head]
            ds = _bf16(p * (before_rounding(do_h, v_h.T) - (do_h * o_h).sum(-1, keepdim=True)), fault)
            dv[columns, head] = _matmul(_bf16(p, fault).T, do_h, fault)
            dq[rows, head] = _matmul(ds, k_h, fault) * scale
            dk[columns, head] = _matmul(ds.T, q_h, fault) * scale
    return {"dq": dq.flatten(1), "dk": dk.flatten(1), "dv": dv.flatten(1)}


EXAMPLES = {
    "softmax": Example(
        _softmax_inputs, _softmax_golden, _softmax_truth, _softmax_kernel, (70, 100), (64, 1024), Output(budget=1.1)
    ),
    "matmul": Example(
        _matmul_inputs,
        _matmul_golden,
        _matmul_truth,
        _matmul_kernel,
        (70, 72, 100),
        (128, 1024, 128),
        Output(budget=1.5),
    ),
    "rms_norm": Example(
        _rms_norm_inputs, _rms_norm_golden, _rms_norm_truth, _rms_norm_kernel, (70, 96), (64, 2048), Output(budget=1.1)
    ),
    "attention_backward": Example(
        _attention_inputs,
        attention.golden,
        attention.truth,
        _attention_kernel,
        ([40, 25], [40, 33], 2, 32),
        ([128, 200], [150, 128], 2, 64),
        Output(budget=1.5),
    ),
}
