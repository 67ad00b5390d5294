"""flash_attention_mha_grad for Atlas A3: the single pass of the general kernel with the options of skeleton SK-16."""

import pypto

from .flash_attention_mha_grad_impl import TILES, single_pass
from .flash_attention_mha_grad_tile import choose


single_pass_kernel = pypto.frontend.jit(
    runtime_options={
        "stitch_function_max_num": 512,
        "device_sched_mode": 3,
        "ready_on_host_tensors": ["cu_seqlens_q", "cu_seqlens_kv"],
        "max_workspace_kb": 25170624,
    },
    pass_options={"cube_l1_reuse_setting": {-1: 1, 0: 4}},
)(single_pass)


def launch(*, q, k, v, o, do, l, m, cu_seqlens_q, cu_seqlens_kv, dq, dk, dv):
    """Adds to dq, dk and dv, which come zeroed."""
    tiles = choose(TILES[q.shape[2]], cu_seqlens_q, cu_seqlens_kv)
    single_pass_kernel(q, k, v, o, do, l, m, cu_seqlens_q, cu_seqlens_kv, dq, dk, dv, tiles)
