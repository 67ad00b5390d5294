"""Gradients of attention to selected keys, for any architecture: one pass over the queries, atomic additions.

The rows that a query selected lie anywhere, so each takes an addition of its own.
"""

import pypto

from ..sparse_attention.sparse_attention_tile import gathered

TILE = 512
"""Keys of one step."""


@pypto.frontend.jit(runtime_options={"stitch_function_max_num": 128})
def sparse_attention_grad_kernel(
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
    dq: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_FP32),
    dk: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_FP32),
    dv: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_FP32),
    group, scale,
):  # fmt: skip
    """q, o, do, dq [queries * kv_heads * group, head_dim]; k, v, dk, dv [total_kv * kv_heads, head_dim]; l, m [q's
    rows, 1]; rows [queries * kv_heads, n]; counts [queries * kv_heads]; table: zeros [1, 8]. dq, dk, dv hold zeros."""
    head_dim, n = q.shape[1], rows.shape[1]
    tile = min(n, TILE)
    side = min(tile, 128)
    cube_rows = [-(-group // 16) * 16] * 2
    deep = [min(128, head_dim), head_dim]
    for i in pypto.loop(counts.shape[0], name="LOOP_query_head", idx_name="i"):
        row = i * group
        for s in pypto.loop((counts[i] + tile - 1) // tile, name="LOOP_selected", idx_name="s"):
            keys = (counts[i] - s * tile).min(tile)
            dk_rows = pypto.tensor([tile, head_dim], pypto.DT_FP32, "dk_rows")
            dv_rows = pypto.tensor([tile, head_dim], pypto.DT_FP32, "dv_rows")
            dq_tile = pypto.tensor([group, head_dim], pypto.DT_FP32, "dq_tile")
            for _ in pypto.loop(1, name="LOOP_products", idx_name="products"):
                q_tile = pypto.view(q, [group, head_dim], [row, 0])
                do_tile = pypto.view(do, [group, head_dim], [row, 0])
                names = pypto.view(rows, [1, tile], [i, s * tile])
                pages = pypto.view(table, [1, 8], [0, 0])

                # C1: scores, and the gradient of the weights
                pypto.set_cube_tile_shapes(cube_rows, deep, [side, side])
                k_right = gathered(k, names, pages, True)
                scores = pypto.matmul(q_tile, k_right, pypto.DT_FP32, b_trans=True)
                v_right = gathered(v, names, pages, True)
                dp = pypto.matmul(do_tile, v_right, pypto.DT_FP32, b_trans=True)

                # V1: P and dS
                scores = pypto.view(scores, [group, tile], [0, 0], valid_shape=[group, keys])
                dp = pypto.view(dp, [group, tile], [0, 0], valid_shape=[group, keys])
                pypto.set_vec_tile_shapes(16, head_dim)
                o_tile = pypto.cast(pypto.view(o, [group, head_dim], [row, 0]), pypto.DT_FP32)
                do_wide = pypto.cast(pypto.view(do, [group, head_dim], [row, 0]), pypto.DT_FP32)
                row_sum = pypto.sum(pypto.mul(o_tile, do_wide), -1, True)
                pypto.set_vec_tile_shapes(16, tile)
                m_tile = pypto.view(m, [group, 1], [row, 0])
                l_tile = pypto.view(l, [group, 1], [row, 0])
                p = pypto.div(pypto.exp(pypto.sub(pypto.mul(scores, scale), m_tile)), l_tile)
                ds = pypto.cast(pypto.mul(pypto.mul(p, pypto.sub(dp, row_sum)), scale), pypto.DT_BF16)
                p = pypto.cast(p, pypto.DT_BF16)

                # C2: the gradients
                pypto.set_cube_tile_shapes(cube_rows, [side, side], deep)
                k_left = gathered(k, names, pages, False)
                k_left = pypto.view(k_left, [tile, head_dim], [0, 0], valid_shape=[keys, head_dim])
                dq_product = pypto.matmul(ds, k_left, pypto.DT_FP32)
                # L1 holds at least `side` of K: where a product has as many columns as fit L1, here the selected keys of
                # dS K, the 0.2.0 interpreter wants as many rows, and the gathered tile's valid shape is lost by then.
                pypto.set_cube_tile_shapes([side, side], [cube_rows[0], -(-side // cube_rows[0]) * cube_rows[0]], deep)
                dk_product = pypto.matmul(ds, q_tile, pypto.DT_FP32, a_trans=True)
                dv_product = pypto.matmul(p, do_tile, pypto.DT_FP32, a_trans=True)
                pypto.set_vec_tile_shapes(64, head_dim)
                dq_tile[:] = pypto.add(dq_product, 0.0)
                dk_rows[:] = pypto.add(dk_product, 0.0)
                dv_rows[:] = pypto.add(dv_product, 0.0)
            pypto.set_vec_tile_shapes(64, head_dim)
            pypto.atomic_add(dq_tile, [row, 0], dq)
            for r in pypto.loop(keys, name="LOOP_rows", idx_name="r"):
                target = rows[i, s * tile + r]
                dk_row = pypto.view(dk_rows, [1, head_dim], [r, 0])
                pypto.atomic_add(dk_row, [target, 0], dk)
                dv_row = pypto.view(dv_rows, [1, head_dim], [r, 0])
                pypto.atomic_add(dv_row, [target, 0], dv)


def launch(*, q, k, v, rows, counts, scale, o, l, m, do, dq, dk, dv):
    group = q.shape[1] // k.shape[1]
    q, k, v, o, do, l, m, dq, dk, dv = (x.flatten(0, 1) for x in (q, k, v, o, do, l, m, dq, dk, dv))
    rows = rows.flatten(0, 1)
    sparse_attention_grad_kernel(
        q, k, v, rows, counts.flatten(), rows.new_zeros(1, 8), o, do, l, m, dq, dk, dv, group, scale
    )
