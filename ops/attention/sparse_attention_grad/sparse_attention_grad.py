"""Gradients of attention to selected keys, from the forward pass's o, l and m."""

from __future__ import annotations

import torch

from pypto_gym.ops.attention import checks, selection
from pypto_gym.ops.attention.sparse_attention.sparse_attention_golden import selected_rows
from pypto_gym.ops.attention.sparse_attention_grad import sparse_attention_grad_golden as golden
from pypto_gym.tools.harness import Executions, Operator, Output, Work


DENSE = 8
"""a3 is taken where a query may select this share, 1 / DENSE, of the longest sequence; see DESIGN.md."""


def _work(inputs):
    q, pairs = inputs["q"], int(inputs["counts"].sum())
    group, head_dim = q.shape[1] // inputs["k"].shape[1], q.shape[2]
    moved = 2 * 3 * q.numel() + 4 * q.numel() + pairs * head_dim * (2 * 2 + 2 * 2 * 4)
    return Work(cube_flops=10 * pairs * group * head_dim, bytes=moved)


def _executions(inputs, impl):
    if impl == "a3":
        return _visits(inputs)
    q, k, rows = inputs["q"], inputs["k"], inputs["rows"]
    tile = min(rows.shape[-1], 512)
    steps, pairs = int((-(-inputs["counts"] // tile)).sum()), int(inputs["counts"].sum())
    wide = 2 * k.nbytes  # dk, dv are FP32
    step_tiles = 2 * 4 * tile * q.shape[2]
    by_query = Executions(steps, (q, q, q, k, k, rows), (), 4 * step_tiles)
    return [by_query, Executions(2 * pairs, (wide, step_tiles), (wide,), 4 * q.shape[2])]


def _visits(inputs):
    """As many as there are pairs of tiles: those that nobody selected anything in are counted, too."""
    from pypto_gym.ops.attention.sparse_attention_grad.sparse_attention_grad_impl_a3 import choose_tiles

    q, k = inputs["q"], inputs["k"]
    tiles = choose_tiles(len(q), len(k), q.shape[2])
    kv_tiles, q_tiles = -(-len(k) // tiles.kv), -(-len(q) // tiles.q)
    passes = 2 if kv_tiles > 1 else 1
    visits, score = passes * q_tiles * kv_tiles * q.shape[1], 4 * tiles.q * tiles.kv
    masks = q_tiles * kv_tiles * k.shape[1] * score
    return [Executions(visits, (q, q, q, k, k, masks), (2 * q.nbytes, 4 * k.nbytes), 40 * score)]


OPERATOR = Operator(
    file=__file__,
    summary="dq, dk, dv of attention to selected tokens or blocks, varlen TND, BF16, GQA",
    params={
        "q_lens": list[int], "kv_lens": list[int], "heads": int, "kv_heads": int, "head_dim": int, "topk": int,
        "block_size": int,
    },  # fmt: skip
    golden=golden,
    impls={"general": "sparse_attention_grad_impl", "a3": "sparse_attention_grad_impl_a3"},
    outputs={name: Output(rtol=2**-7, atol=1e-4, budget=1.5, zeroed=True) for name in ("dq", "dk", "dv")},
    work=_work,
    sim_executions=_executions,
)


def sparse_attention_grad(
    q, k, v, indices, counts, cu_seqlens_q, cu_seqlens_kv, o, l, m, do, block_size=1, scale=None, impl=None
):
    """Gradients of `sparse_attention` with respect to q, k and v, for the gradient `do` of its o.

    Args:
        q, k, v, indices, counts, cu_seqlens_q, cu_seqlens_kv, block_size, scale: as `sparse_attention` got them.
        o, l, m: what it returned: BF16 [total_q, heads, head_dim], and FP32 [total_q, heads, 1].
        do: BF16 [total_q, heads, head_dim].
        impl: "general" (atomic additions, row by row) or "a3" (pairs of tiles under a mask, a fixed order of sums);
            default: a3 where a query may select an eighth of the longest sequence or more, else general.

    Returns:
        dq FP32 [total_q, heads, head_dim]; dk, dv FP32 [total_kv, kv_heads, head_dim]. In "general" the order of
        additions to dk and dv is not fixed on a device: they may differ in the last bits from run to run.

    Raises:
        TypeError, ValueError: an argument of another kind; an index outside its sequence, or given twice.
    """
    checks.tnd(q=q, k=k, v=v, cu_seqlens_q=cu_seqlens_q, cu_seqlens_kv=cu_seqlens_kv)
    selection.blocks(indices, counts, k.shape[1], cu_seqlens_q, cu_seqlens_kv, block_size, q.device)
    scale = checks.scale(scale, q.shape[2])
    statistics = (*q.shape[:2], 1)
    for name, x, dtype, shape in (
        ("o", o, torch.bfloat16, q.shape), ("do", do, torch.bfloat16, q.shape),
        ("l", l, torch.float32, statistics), ("m", m, torch.float32, statistics),
    ):  # fmt: skip
        checks.tensor(name, x, dtype, 3, q.device)
        if x.shape != shape:
            raise ValueError(f"{name}: got shape {list(x.shape)}, takes {list(shape)}")
    dq, dk, dv = (torch.zeros(x.shape, dtype=torch.float32, device=q.device) for x in (q, k, v))
    if not counts.any():
        return dq, dk, dv
    rows, counts = selected_rows(indices, counts, cu_seqlens_q, cu_seqlens_kv, block_size)
    longest = int(cu_seqlens_kv.diff().max())
    impl = impl or ("a3" if indices.shape[2] * block_size * DENSE >= longest else "general")
    OPERATOR.launch(
        impl, q=q, k=k, v=v, rows=rows, counts=counts, scale=scale, o=o, l=l, m=m, do=do, dq=dq, dk=dk, dv=dv
    )
    return dq, dk, dv


if __name__ == "__main__":
    raise SystemExit(OPERATOR.main())
