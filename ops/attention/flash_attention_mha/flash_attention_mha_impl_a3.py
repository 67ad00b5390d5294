"""flash_attention_mha tuned for Atlas A3: the same loops with larger tiles and merged vector and cube tasks."""

import pypto

from .flash_attention_mha_impl import forward, run


@pypto.frontend.jit(
    runtime_options={"stitch_function_max_num": 128, "ready_on_host_tensors": ["cu_seqlens_q", "cu_seqlens_kv"]},
    pass_options={"vec_nbuffer_setting": {-1: 8}, "cube_l1_reuse_setting": {-1: 8}},
)
def kernel(
    q: pypto.Tensor([pypto.DYNAMIC, pypto.STATIC], pypto.DT_BF16),
    k: pypto.Tensor([pypto.DYNAMIC, pypto.STATIC], pypto.DT_BF16),
    v: pypto.Tensor([pypto.DYNAMIC, pypto.STATIC], pypto.DT_BF16),
    cu_seqlens_q: pypto.Tensor([pypto.DYNAMIC], pypto.DT_INT32),
    cu_seqlens_kv: pypto.Tensor([pypto.DYNAMIC], pypto.DT_INT32),
    upper: pypto.Tensor([pypto.STATIC, pypto.STATIC], pypto.DT_FP32),
    lower: pypto.Tensor([pypto.STATIC, pypto.STATIC], pypto.DT_FP32),
    o: pypto.Tensor([pypto.DYNAMIC, pypto.STATIC], pypto.DT_BF16),
    l: pypto.Tensor([pypto.DYNAMIC, pypto.STATIC], pypto.DT_FP32),
    m: pypto.Tensor([pypto.DYNAMIC, pypto.STATIC], pypto.DT_FP32),
    layout,
    scale,
    band,
    tiles,
):
    pypto.experimental.set_operation_options(combine_axis=True)
    forward(q, k, v, cu_seqlens_q, cu_seqlens_kv, (upper, lower), o, l, m, layout, scale, band, tiles)


def launch(**tensors):
    """Writes o, l and m; arguments as in flash_attention_mha.py."""
    run(kernel, True, **tensors)
