"""Attention of each query to its selected keys, tuned for Atlas A3."""

import pypto

from .sparse_attention_tile import sparse_attention


@pypto.frontend.jit(
    runtime_options={"stitch_function_max_num": 128},
    pass_options={"cube_l1_reuse_setting": {-1: 8}, "vec_nbuffer_setting": {-1: 4}},
)
def sparse_attention_a3_kernel(
    q: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_BF16),
    k: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_BF16),
    v: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_BF16),
    rows: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_INT32),
    counts: pypto.Tensor([pypto.DYNAMIC], pypto.DT_INT32),
    table: pypto.Tensor([], pypto.DT_INT32),
    o: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_BF16),
    l: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_FP32),
    m: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_FP32),
    group, scale,
):  # fmt: skip
    pypto.experimental.set_operation_options(combine_axis=True)
    sparse_attention(q, k, v, rows, counts, table, o, l, m, group=group, scale=scale)


def launch(*, q, k, v, rows, counts, scale, o, l, m):
    group = q.shape[1] // k.shape[1]
    q, k, v, o, l, m = (x.flatten(0, 1) for x in (q, k, v, o, l, m))
    rows = rows.flatten(0, 1)
    sparse_attention_a3_kernel(q, k, v, rows, counts.flatten(), rows.new_zeros(1, 8), o, l, m, group, scale)
