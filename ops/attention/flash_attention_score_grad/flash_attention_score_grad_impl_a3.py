"""flash_attention_score_grad tuned for Atlas A3: the same two passes with larger tiles and merged tasks."""

import pypto

from ..atoms import dropout_factor, plane
from .flash_attention_score_grad_impl import Matrices, backward, run


@pypto.frontend.jit(
    runtime_options={"stitch_function_max_num": 128},
    pass_options={"vec_nbuffer_setting": {-1: 4}, "cube_l1_reuse_setting": {-1: 4}},
)
def dense_kernel(
    q: pypto.Tensor([pypto.STATIC, pypto.STATIC], pypto.DT_BF16),
    k: pypto.Tensor([pypto.STATIC, pypto.STATIC], pypto.DT_BF16),
    v: pypto.Tensor([pypto.STATIC, pypto.STATIC], pypto.DT_BF16),
    o: pypto.Tensor([pypto.STATIC, pypto.STATIC], pypto.DT_BF16),
    do: pypto.Tensor([pypto.STATIC, pypto.STATIC], pypto.DT_BF16),
    l: pypto.Tensor([pypto.STATIC, pypto.STATIC], pypto.DT_FP32),
    m: pypto.Tensor([pypto.STATIC, pypto.STATIC], pypto.DT_FP32),
    bias: pypto.Tensor([pypto.STATIC, pypto.STATIC], pypto.DT_FP32),
    keep: pypto.Tensor([pypto.STATIC, pypto.STATIC], pypto.DT_UINT8),
    upper: pypto.Tensor([pypto.STATIC, pypto.STATIC], pypto.DT_FP32),
    lower: pypto.Tensor([pypto.STATIC, pypto.STATIC], pypto.DT_FP32),
    dq: pypto.Tensor([pypto.STATIC, pypto.STATIC], pypto.DT_FP32),
    dk: pypto.Tensor([pypto.STATIC, pypto.STATIC], pypto.DT_FP32),
    dv: pypto.Tensor([pypto.STATIC, pypto.STATIC], pypto.DT_FP32),
    layout,
    scale,
    keep_prob,
    band,
    tiles,
    bias_shape,
    keep_shape,
):
    pypto.experimental.set_operation_options(combine_axis=True)
    biases = plane(bias, bias_shape, layout.q_len, tiles)
    keeps = plane(keep, keep_shape, layout.q_len, tiles, dropout_factor(keep_prob))
    x = Matrices(q, k, v, o, do, l, m, biases, keeps, (upper, lower))
    one_kv_tile = layout.kv_len <= tiles.kv
    backward(x, dq, dk, dv, layout, None, None, layout.batch, scale, band, tiles, one_kv_tile)


@pypto.frontend.jit(
    runtime_options={"stitch_function_max_num": 128, "ready_on_host_tensors": ["cu_seqlens_q", "cu_seqlens_kv"]},
    pass_options={"vec_nbuffer_setting": {-1: 4}, "cube_l1_reuse_setting": {-1: 4}},
)
def varlen_kernel(
    q: pypto.Tensor([pypto.DYNAMIC, pypto.STATIC], pypto.DT_BF16),
    k: pypto.Tensor([pypto.DYNAMIC, pypto.STATIC], pypto.DT_BF16),
    v: pypto.Tensor([pypto.DYNAMIC, pypto.STATIC], pypto.DT_BF16),
    o: pypto.Tensor([pypto.DYNAMIC, pypto.STATIC], pypto.DT_BF16),
    do: pypto.Tensor([pypto.DYNAMIC, pypto.STATIC], pypto.DT_BF16),
    l: pypto.Tensor([pypto.DYNAMIC, pypto.STATIC], pypto.DT_FP32),
    m: pypto.Tensor([pypto.DYNAMIC, pypto.STATIC], pypto.DT_FP32),
    cu_seqlens_q: pypto.Tensor([pypto.DYNAMIC], pypto.DT_INT32),
    cu_seqlens_kv: pypto.Tensor([pypto.DYNAMIC], pypto.DT_INT32),
    upper: pypto.Tensor([pypto.STATIC, pypto.STATIC], pypto.DT_FP32),
    lower: pypto.Tensor([pypto.STATIC, pypto.STATIC], pypto.DT_FP32),
    dq: pypto.Tensor([pypto.DYNAMIC, pypto.STATIC], pypto.DT_FP32),
    dk: pypto.Tensor([pypto.DYNAMIC, pypto.STATIC], pypto.DT_FP32),
    dv: pypto.Tensor([pypto.DYNAMIC, pypto.STATIC], pypto.DT_FP32),
    layout,
    scale,
    band,
    tiles,
    one_kv_tile,
):
    pypto.experimental.set_operation_options(combine_axis=True)
    none = plane(None, None, 0, tiles)
    x = Matrices(q, k, v, o, do, l, m, none, none, (upper, lower))
    batch = cu_seqlens_q.shape[0] - 1
    backward(x, dq, dk, dv, layout, cu_seqlens_q, cu_seqlens_kv, batch, scale, band, tiles, one_kv_tile)


def launch(**tensors):
    """Writes dq, dk and dv; arguments as in flash_attention_score_grad.py, contiguous."""
    run(dense_kernel, varlen_kernel, True, **tensors)
