"""Attention of each query to its selected keys, for any architecture."""

import pypto

from .sparse_attention_tile import sparse_attention, tail_mask

RUNTIME = {"stitch_function_max_num": 128}


def forward(
    q: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_BF16),
    k: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_BF16),
    v: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_BF16),
    rows: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_INT32),
    counts: pypto.Tensor([pypto.DYNAMIC], pypto.DT_INT32),
    table: pypto.Tensor([], pypto.DT_INT32),
    mask: pypto.Tensor([], pypto.DT_FP32),
    o: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_BF16),
    l: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_FP32),
    m: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_FP32),
    group, scale,
):  # fmt: skip
    """Matrices as `sparse_attention` of sparse_attention_tile.py has them."""
    pypto.experimental.set_operation_options(combine_axis=True)
    sparse_attention(q, k, v, rows, counts, table, mask, o, l, m, group=group, scale=scale)


kernel = pypto.frontend.jit(runtime_options=RUNTIME)(forward)


def run(kernel, *, q, k, v, rows, counts, scale, o, l, m):
    """Launches `kernel` on flat views of the tensors."""
    group = q.shape[1] // k.shape[1]
    q, k, v, o, l, m = (x.flatten(0, 1) for x in (q, k, v, o, l, m))
    rows = rows.flatten(0, 1)
    kernel(q, k, v, rows, counts.flatten(), rows.new_zeros(1, 8), tail_mask(rows, l), o, l, m, group, scale)


def launch(**tensors):
    """Writes o, l and m, which come zeroed; arguments as in sparse_attention_golden.py."""
    run(kernel, **tensors)
