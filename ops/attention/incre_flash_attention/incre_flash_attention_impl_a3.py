"""Decode attention over a paged cache, tuned for Atlas A3: every kv tile on its own, then one merge per query token."""

import pypto

from ..atoms import merge
from .incre_flash_attention_tile import TILE, attend_tile


@pypto.frontend.jit(
    runtime_options={"stitch_function_max_num": 128},
    pass_options={"cube_l1_reuse_setting": {-1: 8}},
)
def incre_flash_attention_split_kernel(
    q: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_BF16),
    k_cache: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_BF16),
    v_cache: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_BF16),
    block_table: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_INT32),
    kv_lens: pypto.Tensor([pypto.DYNAMIC], pypto.DT_INT32),
    o_parts: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_FP32),
    l_parts: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_FP32),
    m_parts: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_FP32),
    o: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_BF16),
    heads, q_len, block_size, scale,
):  # fmt: skip
    """q and o [batch * q_len * heads, head_dim], caches [blocks * block_size, kv_heads * head_dim], parts
    [kv tiles * batch * q_len * heads, head_dim or 1]; the others as `incre_flash_attention` has them."""
    pypto.experimental.set_operation_options(combine_axis=True)
    head_dim = q.shape[1]
    kv_heads = k_cache.shape[1] // head_dim
    group = heads // kv_heads
    batch = kv_lens.shape[0]
    pypto.set_vec_tile_shapes(16, TILE)
    for b in pypto.loop(batch, name="LOOP_batch", idx_name="b"):
        for t in pypto.loop(q_len, name="LOOP_token", idx_name="t"):
            visible = kv_lens[b] - (q_len - 1 - t)
            for h in range(kv_heads):
                for s in pypto.loop((visible + TILE - 1) // TILE, name="LOOP_kv", idx_name="s"):
                    row = (b * q_len + t) * heads + h * group
                    part_row = s * q.shape[0] + row
                    q_tile = pypto.view(q, [group, head_dim], [row, 0])
                    o_part, l_part, m_part = attend_tile(
                        q_tile, k_cache, v_cache, block_size, block_table, b, h, s, visible, scale
                    )
                    pypto.assemble(o_part, [part_row, 0], o_parts)
                    pypto.assemble(l_part, [part_row, 0], l_parts)
                    pypto.assemble(m_part, [part_row, 0], m_parts)
    for b in pypto.loop(batch, name="LOOP_merge_batch", idx_name="b"):
        for t in pypto.loop(q_len, name="LOOP_merge_token", idx_name="t"):
            visible = kv_lens[b] - (q_len - 1 - t)
            row = (b * q_len + t) * heads
            o_state = pypto.tensor([heads, head_dim], pypto.DT_FP32, "o_state")
            l_state = pypto.tensor([heads, 1], pypto.DT_FP32, "l_state")
            m_state = pypto.tensor([heads, 1], pypto.DT_FP32, "m_state")
            tiles = (visible + TILE - 1) // TILE
            for s in pypto.loop(tiles, name="LOOP_merge", idx_name="s", unroll_list=[4, 1]):
                pypto.set_vec_tile_shapes(64, head_dim)
                part_row = s * q.shape[0] + row
                o_part = pypto.view(o_parts, [heads, head_dim], [part_row, 0])
                l_part = pypto.view(l_parts, [heads, 1], [part_row, 0])
                m_part = pypto.view(m_parts, [heads, 1], [part_row, 0])
                if pypto.is_loop_begin(s):
                    o_state[:] = pypto.add(o_part, 0.0)
                    l_state[:] = pypto.add(l_part, 0.0)
                    m_state[:] = pypto.add(m_part, 0.0)
                else:
                    o_new, l_new, m_new = merge((o_state, l_state, m_state), (o_part, l_part, m_part))
                    o_state[:] = o_new
                    l_state[:] = l_new
                    m_state[:] = m_new
                if pypto.is_loop_end(s):
                    pypto.assemble(pypto.cast(pypto.div(o_state, l_state), o.dtype), [row, 0], o)


def launch(*, q, k_cache, v_cache, block_table, kv_lens, scale, o):
    batch, q_len, heads, head_dim = q.shape
    block_size = k_cache.shape[1]
    k_cache, v_cache = (cache.flatten(2).flatten(0, 1) for cache in (k_cache, v_cache))
    rows = batch * q_len * heads
    # Partial results, a row for each (kv tile, query token, head).
    tiles = -(-block_table.shape[1] * block_size // TILE)
    fp32 = q.new_empty(0).float().dtype
    parts = [q.new_empty(tiles * rows, width, dtype=fp32) for width in (head_dim, 1, 1)]
    incre_flash_attention_split_kernel(
        q.view(rows, head_dim), k_cache, v_cache, block_table, kv_lens, *parts, o.view(rows, head_dim),
        heads, q_len, block_size, scale,
    )  # fmt: skip
