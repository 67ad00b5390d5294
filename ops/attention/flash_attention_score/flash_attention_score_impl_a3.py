"""flash_attention_score tuned for Atlas A3: the same loops with larger tiles and merged vector and cube tasks."""

import pypto

from ..atoms import dropout_factor, plane
from .flash_attention_score_impl import forward, run


@pypto.frontend.jit(
    runtime_options={"stitch_function_max_num": 128},
    pass_options={"vec_nbuffer_setting": {-1: 8}, "cube_l1_reuse_setting": {-1: 8}},
)
def kernel(
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
    pypto.experimental.set_operation_options(combine_axis=True)
    biases = plane(bias, bias_shape, layout.q_len, tiles)
    keeps = plane(keep, keep_shape, layout.q_len, tiles, dropout_factor(keep_prob))
    forward(q, k, v, biases, keeps, (upper, lower), o, l, m, layout, scale, band, tiles)


def launch(**tensors):
    """Writes o, l and m; arguments as in flash_attention_score.py, BF16 and contiguous."""
    run(kernel, True, **tensors)
