"""Gradients of multi-head attention over sequences of any length, from the forward pass's o, l and m (SK-16)."""

from __future__ import annotations

import torch

from pypto_gym.ops.attention import checks
from pypto_gym.ops.attention.flash_attention_mha_grad import flash_attention_mha_grad_golden as golden
from pypto_gym.tools import runtime
from pypto_gym.tools.harness import Executions, Operator, Output, Work

HEAD_DIMS = (32, 64, 96, 128, 256)
IMPLS = {
    "general": "flash_attention_mha_grad_impl",
    "a3": "flash_attention_mha_grad_impl_a3",
    "two_pass": "flash_attention_mha_grad_impl_two_pass",
}


def _lengths(inputs):
    """(q_len, kv_len) of every sequence."""
    return list(zip(inputs["cu_seqlens_q"].diff().tolist(), inputs["cu_seqlens_kv"].diff().tolist()))


def _work(inputs):
    """Five matrix products for every query-key pair; inputs read once, gradients written once."""
    q, k = inputs["q"], inputs["k"]
    pairs = sum(q_len * kv_len for q_len, kv_len in _lengths(inputs))
    return Work(
        cube_flops=5 * 2 * pairs * q.shape[1] * q.shape[2],
        bytes=2 * 3 * q.numel() + 2 * 2 * k.numel() + 2 * 4 * inputs["l"].numel() + 4 * (q.numel() + 2 * k.numel()),
    )


def _sim_executions(inputs, impl):
    """One body a tile pair; an emulated atomic addition reads its gradient in one more and writes it in another."""
    from pypto_gym.ops.attention.flash_attention_mha_grad.flash_attention_mha_grad_tile import SIZES, fitting

    q, k = inputs["q"], inputs["k"]
    size = fitting(SIZES, _lengths(inputs))
    pairs, passes = 0, 0
    for q_len, kv_len in _lengths(inputs):
        q_tiles, kv_tiles = -(-q_len // size), -(-kv_len // size)
        pairs += q_tiles * kv_tiles * q.shape[1]
        passes += q_tiles * kv_tiles * q.shape[1] * (2 if kv_tiles > 1 else 1)
    dq, dk = 4 * q.numel(), 4 * k.numel()
    viewed = (q, inputs["o"], inputs["do"], k, inputs["v"], inputs["l"], inputs["m"])
    score, gradient = 4 * size * size, 4 * size * q.shape[2]
    tiles = 9 * score + 12 * gradient
    compiler = Executions(1, tiles={64: 0, 128: 40, 320: 100}[size] << 20)  # measured; larger tiles are larger graphs
    if impl == "two_pass":
        return [compiler, Executions(passes, viewed, (dq, dk, dk), tiles)]
    return [
        compiler,
        Executions(pairs, viewed, (), tiles),
        *(Executions(pairs, (gradients,), (), 3 * gradient) for gradients in (dq, dk, dk)),
        *(Executions(pairs, (), (gradients,), 2 * gradient) for gradients in (dq, dk, dk)),
    ]


OPERATOR = Operator(
    file=__file__,
    summary="dq, dk, dv of multi-head attention, varlen TND, BF16",
    params={"q_lens": list[int], "kv_lens": list[int], "heads": int, "head_dim": int},
    golden=golden,
    impls=IMPLS,
    # max_ulp: rounding P and dS to BF16 puts the worst of the golden's own 1.3 million dk at the default shape 4.03 off.
    outputs={n: Output(rtol=2**-7, atol=1e-4, budget=1.5, max_ulp=6, zeroed=True) for n in ("dq", "dk", "dv")},
    work=_work,
    sim_executions=_sim_executions,
    # The cost model of 0.2.0 crashes at the 512 that is right for the device.
    # A tile's products are summed in another order than the tensor graph's; now and then a weight then rounds to the other
    # BF16 neighbour, and a row of dK or dV moves with it. Measured at B8-Q64-KV64-H4-D128: 14 of 8192 elements of one tile
    # beyond 1e-3, the furthest by 0.0028; outputs equal the golden bit for bit all the same. 1e-3 admits 8 such elements.
    pass_tolerance=2e-3,
    sim_overrides={"a3": {"runtime_options": {"stitch_function_max_num": 128}}},
)


def flash_attention_mha_grad(q, k, v, o, do, l, m, cu_seqlens_q, cu_seqlens_kv, *, deterministic=False, impl=None):
    """Gradients of softmax(Q K^T / sqrt(head_dim)) V for packed sequences (TND).

    Args:
        q, o, do: BF16 [total_q, heads, head_dim]: queries, output of the forward pass, and the gradient that comes in.
        k, v: BF16 [total_kv, heads, head_dim].
        l, m: FP32 [total_q, heads, 1]: row sum of exp(S - m) and row maximum of S, S the scaled scores, as
            `flash_attention_mha` returns them. They are used as they are and never recomputed.
        cu_seqlens_q, cu_seqlens_kv: INT32 [batch + 1], offsets of the sequences from 0 to total_q and total_kv.
        deterministic: the same bits in every run; takes `two_pass`.
        impl: "general", "a3" or "two_pass"; default: `default_impl(deterministic)`.

    head_dim is 32, 64, 96, 128 or 256; lengths are not limited.

    Returns:
        dq FP32 [total_q, heads * head_dim], dk and dv FP32 [total_kv, heads * head_dim]. Rows of a sequence that has no
        queries or no keys are zero.

    Raises:
        TypeError, ValueError: an argument of another kind; the message names it, what it is and what is taken.
    """
    _check(q, k, v, o, do, l, m, cu_seqlens_q, cu_seqlens_kv, impl)
    dq, dk, dv = (x.new_zeros(x.shape[0], x.shape[1] * x.shape[2], dtype=torch.float32) for x in (q, k, v))
    OPERATOR.launch(
        impl or default_impl(checks.flag("deterministic", deterministic)), q=q, k=k, v=v, o=o, do=do, l=l, m=m,
        cu_seqlens_q=cu_seqlens_q, cu_seqlens_kv=cu_seqlens_kv, dq=dq, dk=dk, dv=dv,
    )  # fmt: skip
    return dq, dk, dv


def default_impl(deterministic: bool) -> str:
    """`two_pass` where the sums have to be deterministic or PyPTO has no atomic addition of its own; else the kernel of
    the architecture."""
    runtime.prepare()
    import pypto

    if deterministic or not pypto.atomic_add.__module__.startswith("pypto."):  # the polyfill's is a functools.partial
        return "two_pass"
    return "a3" if pypto.platform.npuarch == "DAV_2201" else "general"


def _check(q, k, v, o, do, l, m, cu_seqlens_q, cu_seqlens_kv, impl):
    checks.tnd(q=q, k=k, v=v, cu_seqlens_q=cu_seqlens_q, cu_seqlens_kv=cu_seqlens_kv)
    if q.shape[2] not in HEAD_DIMS:
        takes = ", ".join(map(str, HEAD_DIMS))
        raise ValueError(f"q: got head_dim {q.shape[2]}, takes one of {takes}: there are tiles for these")
    if k.shape[1] != q.shape[1]:
        raise ValueError(f"k: got {k.shape[1]} heads, takes as many as q, {q.shape[1]}")
    for name, x, dtype, shape in (
        ("o", o, torch.bfloat16, q.shape),
        ("do", do, torch.bfloat16, q.shape),
        ("l", l, torch.float32, (*q.shape[:2], 1)),
        ("m", m, torch.float32, (*q.shape[:2], 1)),
    ):
        checks.tensor(name, x, dtype, 3, q.device)
        if x.shape != shape:
            raise ValueError(f"{name}: got shape {list(x.shape)}, takes {list(shape)}")
    if impl is not None and impl not in IMPLS:
        raise ValueError(f"impl: got {impl!r}, takes {', '.join(IMPLS)}")


if __name__ == "__main__":
    raise SystemExit(OPERATOR.main())
