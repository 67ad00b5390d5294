"""Decode attention over a paged cache, for any architecture: one chain over the kv tiles of a query token and kv head."""

import pypto

from ..atoms import merge
from .incre_flash_attention_tile import TILE, attend_tile


@pypto.frontend.jit(runtime_options={"stitch_function_max_num": 128})
def incre_flash_attention_kernel(
    q: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_BF16),
    k_cache: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_BF16),
    v_cache: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_BF16),
    block_table: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_INT32),
    kv_lens: pypto.Tensor([pypto.DYNAMIC], pypto.DT_INT32),
    o: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_BF16),
    heads, q_len, block_size, scale,
):  # fmt: skip
    """q and o [batch * q_len * heads, head_dim], caches [blocks * block_size, kv_heads * head_dim]; the others as `incre_flash_attention` has them."""
    head_dim = q.shape[1]
    kv_heads = k_cache.shape[1] // head_dim
    group = heads // kv_heads
    for b in pypto.loop(kv_lens.shape[0], name="LOOP_batch", idx_name="b"):
        for t in pypto.loop(q_len, name="LOOP_token", idx_name="t"):
            visible = kv_lens[b] - (q_len - 1 - t)
            for h in pypto.loop(kv_heads, name="LOOP_head", idx_name="h"):
                row = (b * q_len + t) * heads + h * group
                o_state = pypto.tensor([group, head_dim], pypto.DT_FP32, "o_state")
                l_state = pypto.tensor([group, 1], pypto.DT_FP32, "l_state")
                m_state = pypto.tensor([group, 1], pypto.DT_FP32, "m_state")
                for s in pypto.loop((visible + TILE - 1) // TILE, name="LOOP_kv", idx_name="s"):
                    q_tile = pypto.view(q, [group, head_dim], [row, 0])
                    part = attend_tile(q_tile, k_cache, v_cache, block_size, block_table, b, h, s, visible, scale)
                    pypto.set_vec_tile_shapes(16, head_dim)
                    if pypto.is_loop_begin(s):
                        o_new, l_new, m_new = part
                    else:
                        o_new, l_new, m_new = merge((o_state, l_state, m_state), part)
                    if pypto.is_loop_end(s):
                        pypto.assemble(pypto.cast(pypto.div(o_new, l_new), o.dtype), [row, 0], o)
                    else:
                        o_state[:] = o_new
                        l_state[:] = l_new
                        m_state[:] = m_new


def launch(*, q, k_cache, v_cache, block_table, kv_lens, scale, o):
    batch, q_len, heads, head_dim = q.shape
    block_size = k_cache.shape[1]
    k_cache, v_cache = (cache.flatten(2).flatten(0, 1) for cache in (k_cache, v_cache))
    rows = (batch * q_len * heads, head_dim)
    incre_flash_attention_kernel(
        q.view(rows), k_cache, v_cache, block_table, kv_lens, o.view(rows), heads, q_len, block_size, scale
    )
