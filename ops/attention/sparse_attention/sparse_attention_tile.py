"""The body of the sparse_attention kernels: every (query, kv head) collects its selected keys tile by tile."""

import pypto
from pypto.experimental import gather_in_l1

from ..atoms import MASKED, merge, partial_attention

TILE = 1024
"""Keys of one step."""
ONE_PAGE = 2**30
"""Page size for `gather_in_l1`: it reads rows through a page table, and here all rows lie in page 0."""


def gathered(x, rows, table, transposed):
    """The rows of `x` that `rows` [1, n] names, in L1 as the right operand of a matmul.

    The view of `rows` must be a whole tile: 0.2.0 cannot execute the operation on a part of one after InferDynShape.
    Entries that do not count name a row, too.
    """
    return gather_in_l1(x, rows, table, ONE_PAGE, x.shape[1], is_b_matrix=True, is_trans=transposed)


def tail_mask(rows, like):
    """[1, 2 * tile]: zeros, then MASKED. A view of it from tile - keys on hides what lies behind `keys` of a tile."""
    tile = min(rows.shape[-1], TILE)
    mask = like.new_zeros(1, 2 * tile)
    mask[:, tile:] = MASKED
    return mask


def sparse_attention(q, k, v, rows, counts, table, mask, o, l, m, *, group, scale):
    """q, o [queries * kv_heads * group, head_dim]; k, v [total_kv * kv_heads, head_dim]; l, m [q's rows, 1];
    rows [queries * kv_heads, n]; counts [queries * kv_heads]; table: zeros [1, 8]; mask: `tail_mask`."""
    head_dim, n = q.shape[1], rows.shape[1]
    tile = min(n, TILE)
    side = min(tile, 128)
    cube_rows = [-(-group // 16) * 16] * 2
    deep = [min(128, head_dim), head_dim]
    for i in pypto.loop(counts.shape[0], name="LOOP_query_head", idx_name="i"):
        count = counts[i]
        o_state = pypto.tensor([group, head_dim], pypto.DT_FP32, "o_state")
        l_state = pypto.tensor([group, 1], pypto.DT_FP32, "l_state")
        m_state = pypto.tensor([group, 1], pypto.DT_FP32, "m_state")
        for s in pypto.loop((count + tile - 1) // tile, name="LOOP_selected", idx_name="s"):
            keys = (count - s * tile).min(tile)
            q_tile = pypto.view(q, [group, head_dim], [i * group, 0])
            names = pypto.view(rows, [1, tile], [i, s * tile])
            pages = pypto.view(table, [1, 8], [0, 0])
            pypto.set_cube_tile_shapes(cube_rows, deep, [side, side])
            k_tile = gathered(k, names, pages, True)
            scores = pypto.matmul(q_tile, k_tile, pypto.DT_FP32, b_trans=True)
            # A tail is masked and not left out by a valid shape, which a tile that is spilled out of UB loses.
            scores = pypto.view(scores, [group, tile], [0, 0], valid_shape=[group, tile])
            hidden = pypto.view(mask, [1, tile], [0, tile - keys])
            cube_pv = cube_rows, [side, side * min(4, -(-tile // side))], deep
            pypto.set_cube_tile_shapes(*cube_pv)
            v_tile = gathered(v, names, pages, False)
            pypto.set_vec_tile_shapes(16, tile)
            part = partial_attention(pypto.add(pypto.mul(scores, scale), hidden), v_tile, cube_pv)
            pypto.set_vec_tile_shapes(min(cube_rows[0], 32), head_dim)
            if pypto.cond(pypto.is_loop_begin(s)):
                keep_or_write(part, s, (o_state, l_state, m_state), (o, l, m), i * group)
            else:
                joint = merge((o_state, l_state, m_state), part)
                keep_or_write(joint, s, (o_state, l_state, m_state), (o, l, m), i * group)


def keep_or_write(part, s, state, outputs, row):
    """Keeps (o, l, m) for the next step, or, in the last one, divides and writes it."""
    if pypto.cond(pypto.is_loop_end(s)):
        (o_new, l_new, m_new), (o, l, m) = part, outputs
        pypto.assemble(pypto.cast(pypto.div(o_new, l_new), o.dtype), [row, 0], o)
        pypto.assemble(pypto.add(l_new, 0.0), [row, 0], l)
        pypto.assemble(pypto.add(m_new, 0.0), [row, 0], m)
    else:
        for kept, new in zip(state, part):
            kept[:] = new
