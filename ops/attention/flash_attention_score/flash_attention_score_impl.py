"""flash_attention_score for any architecture: skeleton SK-01 over dense layouts, with bands, bias and dropout mask."""

import pypto

from ..atoms import Layout, attend, dropout_factor, edges, forward_tiles, plane, plane_shape, sparse_band

RUNTIME = {"stitch_function_max_num": 128}


def forward(
    q: pypto.Tensor([pypto.STATIC, pypto.STATIC], pypto.DT_BF16),
    k: pypto.Tensor([pypto.STATIC, pypto.STATIC], pypto.DT_BF16),
    v: pypto.Tensor([pypto.STATIC, pypto.STATIC], pypto.DT_BF16),
    bias: pypto.Tensor([pypto.STATIC, pypto.STATIC], pypto.DT_FP32),
    keep: pypto.Tensor([pypto.STATIC, pypto.STATIC], pypto.DT_UINT8),
    upper: pypto.Tensor([pypto.STATIC, pypto.STATIC], pypto.DT_FP32),
    lower: pypto.Tensor([pypto.STATIC, pypto.STATIC], pypto.DT_FP32),
    o: pypto.Tensor([pypto.STATIC, pypto.STATIC], pypto.DT_BF16),
    l: pypto.Tensor([pypto.STATIC, pypto.STATIC], pypto.DT_FP32),
    m: pypto.Tensor([pypto.STATIC, pypto.STATIC], pypto.DT_FP32),
    layout,
    scale,
    keep_prob,
    band,
    tiles,
    bias_shape,
    keep_shape,
):
    """Every (batch, head) pair; upper and lower are those of `edges`, bias and keep planes as `plane` takes them."""
    pypto.experimental.set_operation_options(combine_axis=True)
    biases = plane(bias, bias_shape, layout.q_len, tiles)
    keeps = plane(keep, keep_shape, layout.q_len, tiles, dropout_factor(keep_prob))
    for b in pypto.loop(layout.batch, name="LOOP_b", idx_name="b"):
        for h in pypto.loop(layout.heads, name="LOOP_h", idx_name="h"):
            attend(
                q, k, v, o, l, m, layout.place(b, h), layout.head_dim, scale, band, tiles,
                edge_masks=(upper, lower), bias=biases(b, h), keep=keeps(b, h),
            )  # fmt: skip


kernel = pypto.frontend.jit(runtime_options=RUNTIME)(forward)


def run(
    kernel, large, *, q, k, v, head_num, layout, scale, sparse_mode, pre_tokens, next_tokens, bias, keep, keep_prob,
    o, l, m,
):  # fmt: skip
    """Launches `kernel` on matrix views of the tensors."""
    layout = Layout.of(layout, q, k, head_num)
    band = sparse_band(sparse_mode, pre_tokens, next_tokens)
    if band.rows(layout.q_len, layout.kv_len) != (0, layout.q_len):  # the kernel writes no rows that see nothing
        o.zero_(), l.zero_(), m.fill_(-float("inf"))
    tiles = forward_tiles(layout.q_len, layout.kv_len, layout.head_dim, large)
    unused = l.new_zeros((1, 1))
    kernel(
        *map(layout.matrix, (q, k, v)),
        unused if bias is None else bias.flatten(0, 2), unused.byte() if keep is None else keep.flatten(0, 2),
        *edges(band, tiles, l), layout.matrix(o), layout.statistic(l), layout.statistic(m),
        layout, scale, keep_prob, band, tiles, plane_shape(bias), plane_shape(keep),
    )  # fmt: skip


def launch(**tensors):
    """Writes o, l and m; arguments as in flash_attention_score.py, BF16 and contiguous."""
    run(kernel, False, **tensors)
