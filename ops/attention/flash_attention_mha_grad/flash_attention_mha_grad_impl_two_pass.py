"""flash_attention_mha_grad in two passes: no atomics, each output tile written once, the same bits in every run.

dQ sums over keys and dK, dV sum over queries, so each pass has its own outer loop. Where one kv tile holds the whole
sequence, dQ needs no sum over tiles: the second pass writes it as well and the first has nothing to do.
"""

import pypto

from .flash_attention_mha_grad_tile import SIZES, Matrices, TilePair, choose, flatten, softmax_gradient, square


TILES = {head_dim: {size: square(size, head_dim) for size in SIZES} for head_dim in (32, 64, 96, 128, 256)}
"""By head_dim and size."""


@pypto.frontend.jit(
    runtime_options={
        "stitch_function_max_num": 128,
        "ready_on_host_tensors": ["cu_seqlens_q", "cu_seqlens_kv"],
    },
    pass_options={"vec_nbuffer_setting": {-1: 2}, "cube_l1_reuse_setting": {-1: 4}},
)
def two_pass_kernel(
    q: pypto.Tensor([pypto.DYNAMIC, pypto.STATIC, pypto.STATIC], pypto.DT_BF16),
    k: pypto.Tensor([pypto.DYNAMIC, pypto.STATIC, pypto.STATIC], pypto.DT_BF16),
    v: pypto.Tensor([pypto.DYNAMIC, pypto.STATIC, pypto.STATIC], pypto.DT_BF16),
    o: pypto.Tensor([pypto.DYNAMIC, pypto.STATIC, pypto.STATIC], pypto.DT_BF16),
    do: pypto.Tensor([pypto.DYNAMIC, pypto.STATIC, pypto.STATIC], pypto.DT_BF16),
    l: pypto.Tensor([pypto.DYNAMIC, pypto.STATIC, 1], pypto.DT_FP32),
    m: pypto.Tensor([pypto.DYNAMIC, pypto.STATIC, 1], pypto.DT_FP32),
    cu_seqlens_q: pypto.Tensor([pypto.DYNAMIC], pypto.DT_INT32),
    cu_seqlens_kv: pypto.Tensor([pypto.DYNAMIC], pypto.DT_INT32),
    dq: pypto.Tensor([pypto.DYNAMIC, pypto.STATIC], pypto.DT_FP32),
    dk: pypto.Tensor([pypto.DYNAMIC, pypto.STATIC], pypto.DT_FP32),
    dv: pypto.Tensor([pypto.DYNAMIC, pypto.STATIC], pypto.DT_FP32),
    tiles,
):
    pypto.experimental.set_operation_options(combine_axis=True)
    heads, head_dim = q.shape[1], q.shape[2]
    scale = head_dim**-0.5
    x = Matrices(flatten(q), flatten(k), flatten(v), flatten(o), flatten(do), flatten(l), flatten(m))
    pypto.set_cube_tile_shapes(*tiles.cube_s)
    pypto.set_vec_tile_shapes(*tiles.vec_s)

    for b in pypto.loop(cu_seqlens_q.shape[0] - 1, name="LOOP_b", idx_name="b"):
        q_start = cu_seqlens_q[b]
        q_len = cu_seqlens_q[b + 1] - q_start
        kv_start = cu_seqlens_kv[b]
        kv_len = cu_seqlens_kv[b + 1] - kv_start
        q_tiles = (q_len + tiles.q - 1) // tiles.q
        kv_tiles = (kv_len + tiles.kv - 1) // tiles.kv
        for n in pypto.loop(heads, name="LOOP_n", idx_name="n"):
            column = n * head_dim
            for i in pypto.loop(q_tiles * (kv_tiles - 1).min(1), name="LOOP_dq_q", idx_name="i"):
                row = q_start + i * tiles.q
                rows = (q_len - i * tiles.q).min(tiles.q)
                dq_sum = pypto.tensor([tiles.q, head_dim], pypto.DT_FP32, "dq_sum")
                for j in pypto.loop(kv_tiles, name="LOOP_dq_kv", idx_name="j", unroll_list=list(tiles.unroll)):
                    columns = (kv_len - j * tiles.kv).min(tiles.kv)
                    pair = TilePair(x, tiles, head_dim, n, row, rows, kv_start + j * tiles.kv, columns)
                    p, ds = _scores_and_gradients(pair, tiles, scale)
                    dq_tile = _dq(ds, pair, tiles)
                    if pypto.is_loop_begin(j):
                        dq_sum[:] = dq_tile
                    else:
                        dq_tile = pypto.add(_revisit(dq_sum, rows), dq_tile)
                        if pypto.is_loop_end(j):
                            pypto.assemble(pypto.mul(dq_tile, scale), [row, column], dq)
                        else:
                            dq_sum[:] = dq_tile

            for j in pypto.loop(kv_tiles, name="LOOP_dkv_kv", idx_name="j_dkv"):
                row = kv_start + j * tiles.kv
                columns = (kv_len - j * tiles.kv).min(tiles.kv)
                dk_sum = pypto.tensor([tiles.kv, head_dim], pypto.DT_FP32, "dk_sum")
                dv_sum = pypto.tensor([tiles.kv, head_dim], pypto.DT_FP32, "dv_sum")
                for i in pypto.loop(q_tiles, name="LOOP_dkv_q", idx_name="i_dkv", unroll_list=list(tiles.unroll)):
                    q_row = q_start + i * tiles.q
                    rows = (q_len - i * tiles.q).min(tiles.q)
                    pair = TilePair(x, tiles, head_dim, n, q_row, rows, row, columns)
                    p, ds = _scores_and_gradients(pair, tiles, scale)
                    if kv_tiles == 1:
                        pypto.assemble(pypto.mul(_dq(ds, pair, tiles), scale), [q_row, column], dq)
                    pypto.set_cube_tile_shapes(*tiles.cube_dkv)
                    dv_tile = pypto.matmul(p, pair.do, pypto.DT_FP32, a_trans=True)
                    dk_tile = pypto.matmul(ds, pair.q, pypto.DT_FP32, a_trans=True)
                    pypto.set_vec_tile_shapes(*tiles.vec_d)
                    if pypto.is_loop_begin(i):
                        if pypto.is_loop_end(i):
                            pypto.assemble(pypto.mul(dk_tile, scale), [row, column], dk)
                            pypto.assemble(dv_tile, [row, column], dv)
                        else:
                            dk_sum[:] = dk_tile
                            dv_sum[:] = dv_tile
                    else:
                        dk_tile = pypto.add(_revisit(dk_sum, columns), dk_tile)
                        dv_tile = pypto.add(_revisit(dv_sum, columns), dv_tile)
                        if pypto.is_loop_end(i):
                            pypto.assemble(pypto.mul(dk_tile, scale), [row, column], dk)
                            pypto.assemble(dv_tile, [row, column], dv)
                        else:
                            dk_sum[:] = dk_tile
                            dv_sum[:] = dv_tile


def _revisit(state, rows):
    """`state`, of which `rows` rows are valid: a valid shape is lost where a tensor crosses a loop boundary."""
    return pypto.view(state, state.shape, [0, 0], valid_shape=[rows, state.shape[1]])


def _scores_and_gradients(pair, tiles, scale):
    """C1 and V1: P and dS of a tile pair, BF16."""
    pypto.set_cube_tile_shapes(*tiles.cube_s)
    s = pypto.matmul(pair.q, pair.k, pypto.DT_FP32, b_trans=True)
    dp = pypto.matmul(pair.do, pair.v, pypto.DT_FP32, b_trans=True)
    pypto.set_vec_tile_shapes(*tiles.vec_s)
    return softmax_gradient(s, dp, pair, scale)


def _dq(ds, pair, tiles):
    """This tile pair's share of dQ, not yet scaled; leaves the vector tile set for gradients."""
    pypto.set_cube_tile_shapes(*tiles.cube_dq)
    dq_tile = pypto.matmul(ds, pair.k, pypto.DT_FP32)
    pypto.set_vec_tile_shapes(*tiles.vec_d)
    return dq_tile


def launch(*, q, k, v, o, do, l, m, cu_seqlens_q, cu_seqlens_kv, dq, dk, dv):
    """Writes dq, dk and dv, which come zeroed: rows of a sequence without keys (or without queries) stay zero."""
    tiles = choose(TILES[q.shape[2]], cu_seqlens_q, cu_seqlens_kv)
    two_pass_kernel(q, k, v, o, do, l, m, cu_seqlens_q, cu_seqlens_kv, dq, dk, dv, tiles)
