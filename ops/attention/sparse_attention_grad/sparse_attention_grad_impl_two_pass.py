"""Gradients of attention to selected keys in two passes without atomic additions: the order of every sum is fixed.

The first pass goes over the queries for dq, as the single pass does. The second goes over tiles of keys for dk and dv and
looks at every query, selected or not, under a mask: total_q x total_kv work, whatever the selection.
"""

import pypto

from ..atoms import MASKED, revisit, tail, tail_view
from ..sparse_attention.sparse_attention_tile import gathered

TILE = 512
"""Selected keys of one step of the first pass."""
Q_TILE, KV_TILE = 128, 128
"""Queries and keys of one step of the second pass."""
CUBE = [128, 128]


@pypto.frontend.jit(
    runtime_options={"stitch_function_max_num": 128},
    pass_options={"cube_l1_reuse_setting": {-1: 4}, "vec_nbuffer_setting": {-1: 4}},
)
def sparse_attention_grad_two_pass_kernel(
    q: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_BF16),
    k: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_BF16),
    v: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_BF16),
    rows: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_INT32),
    counts: pypto.Tensor([pypto.DYNAMIC], pypto.DT_INT32),
    table: pypto.Tensor([], pypto.DT_INT32),
    o: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_BF16),
    do: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_BF16),
    l: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_FP32),
    m: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_FP32),
    q_by_head: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_BF16),
    k_by_head: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_BF16),
    v_by_head: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_BF16),
    o_by_head: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_BF16),
    do_by_head: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_BF16),
    l_by_head: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_FP32),
    m_by_head: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_FP32),
    mask: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_FP32),
    dq: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_FP32),
    dk: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_FP32),
    dv: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_FP32),
    group, head_dim, scale,
):  # fmt: skip
    """First pass: q, o, do, dq [queries * kv_heads * group, head_dim], k, v [total_kv * kv_heads, head_dim], l, m [q's
    rows, 1], rows [queries * kv_heads, n], counts [queries * kv_heads], table zeros [1, 8].
    Second pass: the same tensors as [tokens, heads * head_dim] and [tokens, heads], dk and dv among them; mask
    [kv_heads * total_q, total_kv], 0 where a query selected a key and `MASKED` elsewhere."""
    n = rows.shape[1]
    tile = min(n, TILE)
    side = min(tile, 128)
    cube_rows = [-(-group // 16) * 16] * 2
    deep = [min(128, head_dim), head_dim]
    for i in pypto.loop(counts.shape[0], name="LOOP_query_head", idx_name="i"):
        row = i * group
        dq_state = pypto.tensor([group, head_dim], pypto.DT_FP32, "dq_state")
        for s in pypto.loop((counts[i] + tile - 1) // tile, name="LOOP_selected", idx_name="s"):
            keys = (counts[i] - s * tile).min(tile)
            q_tile = pypto.view(q, [group, head_dim], [row, 0])
            do_tile = pypto.view(do, [group, head_dim], [row, 0])
            names = pypto.view(rows, [1, tile], [i, s * tile])
            pages = pypto.view(table, [1, 8], [0, 0])
            pypto.set_cube_tile_shapes(cube_rows, deep, [side, side])
            scores = pypto.matmul(q_tile, gathered(k, names, pages, True), pypto.DT_FP32, b_trans=True)
            dp = pypto.matmul(do_tile, gathered(v, names, pages, True), pypto.DT_FP32, b_trans=True)
            scores = pypto.view(scores, [group, tile], [0, 0], valid_shape=[group, keys])
            dp = pypto.view(dp, [group, tile], [0, 0], valid_shape=[group, keys])
            pypto.set_vec_tile_shapes(16, head_dim)
            o_wide = pypto.cast(pypto.view(o, [group, head_dim], [row, 0]), pypto.DT_FP32)
            do_wide = pypto.cast(pypto.view(do, [group, head_dim], [row, 0]), pypto.DT_FP32)
            row_sum = pypto.sum(pypto.mul(o_wide, do_wide), -1, True)
            pypto.set_vec_tile_shapes(16, tile)
            m_tile = pypto.view(m, [group, 1], [row, 0])
            l_tile = pypto.view(l, [group, 1], [row, 0])
            p = pypto.div(pypto.exp(pypto.sub(pypto.mul(scores, scale), m_tile)), l_tile)
            ds = pypto.cast(pypto.mul(p, pypto.sub(dp, row_sum)), pypto.DT_BF16)
            pypto.set_cube_tile_shapes(cube_rows, [side, side], deep)
            k_left = gathered(k, names, pages, False)
            k_left = pypto.view(k_left, [tile, head_dim], [0, 0], valid_shape=[keys, head_dim])
            product = pypto.matmul(ds, k_left, pypto.DT_FP32)
            pypto.set_vec_tile_shapes(16, head_dim)
            part = pypto.mul(product, scale)
            if pypto.is_loop_begin(s):
                total = part
            else:
                total = pypto.add(dq_state, part)
            if pypto.is_loop_end(s):
                pypto.assemble(total, [row, 0], dq)
            else:
                dq_state[:] = total

    total_q, total_kv = q_by_head.shape[0], k_by_head.shape[0]
    q_tiles = (total_q + Q_TILE - 1) // Q_TILE
    for h in pypto.loop(k_by_head.shape[1] // head_dim, name="LOOP_kv_head", idx_name="h"):
        for j in pypto.loop((total_kv + KV_TILE - 1) // KV_TILE, name="LOOP_kv", idx_name="j"):
            columns = tail(total_kv, j, KV_TILE)
            dk_state = pypto.tensor([KV_TILE, head_dim], pypto.DT_FP32, "dk_state")
            dv_state = pypto.tensor([KV_TILE, head_dim], pypto.DT_FP32, "dv_state")
            for t in pypto.loop(group * q_tiles, name="LOOP_q", idx_name="t"):
                head, first = h * group + t // q_tiles, (t % q_tiles) * Q_TILE
                lines = (total_q - first).min(Q_TILE)
                wide, narrow = [Q_TILE, head_dim], [Q_TILE, 1]
                place, valid = [first, head * head_dim], [lines, head_dim]
                key_place, key_valid = [j * KV_TILE, h * head_dim], [columns, head_dim]
                q_tile = tail_view(q_by_head, wide, place, valid)
                do_tile = tail_view(do_by_head, wide, place, valid)
                k_tile = tail_view(k_by_head, [KV_TILE, head_dim], key_place, key_valid)
                v_tile = tail_view(v_by_head, [KV_TILE, head_dim], key_place, key_valid)
                pypto.set_cube_tile_shapes(CUBE, deep, CUBE)
                scores = pypto.matmul(q_tile, k_tile, pypto.DT_FP32, b_trans=True)
                dp = pypto.matmul(do_tile, v_tile, pypto.DT_FP32, b_trans=True)
                pypto.set_vec_tile_shapes(64, head_dim)
                o_wide = pypto.cast(tail_view(o_by_head, wide, place, valid), pypto.DT_FP32)
                do_wide = pypto.cast(tail_view(do_by_head, wide, place, valid), pypto.DT_FP32)
                row_sum = pypto.sum(pypto.mul(o_wide, do_wide), -1, True)
                pypto.set_vec_tile_shapes(64, KV_TILE)
                m_tile = tail_view(m_by_head, narrow, [first, head], [lines, 1])
                l_tile = tail_view(l_by_head, narrow, [first, head], [lines, 1])
                unseen = tail_view(mask, [Q_TILE, KV_TILE], [h * total_q + first, j * KV_TILE], [lines, columns])
                scores = pypto.add(pypto.mul(scores, scale), unseen)
                p = pypto.div(pypto.exp(pypto.sub(scores, m_tile)), l_tile)
                ds = pypto.cast(pypto.mul(p, pypto.sub(dp, row_sum)), pypto.DT_BF16)
                p = pypto.cast(p, pypto.DT_BF16)
                pypto.set_cube_tile_shapes(CUBE, CUBE, deep)
                dk_product = pypto.matmul(ds, tail_view(q_by_head, wide, place, valid), pypto.DT_FP32, a_trans=True)
                dv_product = pypto.matmul(p, tail_view(do_by_head, wide, place, valid), pypto.DT_FP32, a_trans=True)
                pypto.set_vec_tile_shapes(64, head_dim)
                dk_part = pypto.mul(dk_product, scale)
                if pypto.is_loop_begin(t):
                    dk_total, dv_total = dk_part, pypto.add(dv_product, 0.0)
                else:
                    dk_total = pypto.add(revisit(dk_state, key_valid), dk_part)
                    dv_total = pypto.add(revisit(dv_state, key_valid), dv_product)
                if pypto.is_loop_end(t):
                    pypto.assemble(dk_total, key_place, dk)
                    pypto.assemble(dv_total, key_place, dv)
                else:
                    dk_state[:] = dk_total
                    dv_state[:] = dv_total


def launch(*, q, k, v, rows, counts, scale, o, l, m, do, dq, dk, dv):
    (total_kv, kv_heads, head_dim), group = k.shape, q.shape[1] // k.shape[1]
    l = l.masked_fill(l == 0, 1.0)  # of queries that selected nothing: their weights are 0, and 0 / 0 would not be
    used = rows.new_ones(rows.shape[-1]).cumsum(0) <= counts[..., None]
    keys = (rows // kv_heads).masked_fill(~used, total_kv).transpose(0, 1).long()
    mask = l.new_full((*keys.shape[:2], total_kv + 1), MASKED).scatter_(2, keys, 0.0)[..., :total_kv].flatten(0, 1)
    by_row = [x.flatten(0, 1) for x in (q, k, v, rows, counts[..., None], o, do, l, m, dq)]
    q_, k_, v_, rows_, counts_, o_, do_, l_, m_, dq_ = by_row
    by_head = [x.flatten(1) for x in (q, k, v, o, do, l, m)]
    sparse_attention_grad_two_pass_kernel(
        q_, k_, v_, rows_, counts_.flatten(), rows.new_zeros(1, 8), o_, do_, l_, m_,
        *by_head, mask.contiguous(), dq_, dk.flatten(1), dv.flatten(1), group, head_dim, scale,
    )  # fmt: skip
