"""flash_attention_mha_grad for any architecture: skeleton SK-16 with a cube tile of its own for each kind of product.

One pass, C1-V1-C2-V2 for every tile pair. S and P of a tile pair are computed once and serve all three gradients, which
are added to global memory atomically; so the loops need no order, and sums are not the same bits in every run. l and m
are the forward pass's, never recomputed.
"""

import pypto

from .flash_attention_mha_grad_tile import SIZES, Matrices, TilePair, choose, flatten, softmax_gradient, square


TILES = {head_dim: {size: square(size, head_dim) for size in SIZES} for head_dim in (32, 64, 96, 128, 256)}
"""By head_dim and size. Newer architectures have buffers at least as large."""

FUSES_CUBE_AND_VECTOR = ("DAV_3510",)
"""Architectures on which the compiler puts cube and vector work into one subgraph, and `sg_set_ooo_scope` orders it."""


def segment(number: int) -> None:
    """Keeps the operations that follow together: one vector subgraph, or one stretch of a fused one; -1 ends it."""
    if pypto.platform.npuarch in FUSES_CUBE_AND_VECTOR:
        pypto.set_pass_options(sg_set_ooo_scope=number)
    else:
        pypto.set_pass_options(sg_set_scope=number)


def single_pass(
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

    for b in pypto.loop(cu_seqlens_q.shape[0] - 1, name="LOOP_b", idx_name="b"):
        q_start = cu_seqlens_q[b]
        q_len = cu_seqlens_q[b + 1] - q_start
        kv_start = cu_seqlens_kv[b]
        kv_len = cu_seqlens_kv[b + 1] - kv_start
        for n in pypto.loop(heads, name="LOOP_n", idx_name="n"):
            column = n * head_dim
            for i in pypto.loop((q_len + tiles.q - 1) // tiles.q, name="LOOP_q", idx_name="i"):
                for j in pypto.loop((kv_len + tiles.kv - 1) // tiles.kv, name="LOOP_kv", idx_name="j"):
                    q_row, rows = q_start + i * tiles.q, (q_len - i * tiles.q).min(tiles.q)
                    kv_row, columns = kv_start + j * tiles.kv, (kv_len - j * tiles.kv).min(tiles.kv)
                    pair = TilePair(x, tiles, head_dim, n, q_row, rows, kv_row, columns)
                    # C1
                    pypto.set_cube_tile_shapes(*tiles.cube_s)
                    s = pypto.matmul(pair.q, pair.k, pypto.DT_FP32, b_trans=True)
                    dp = pypto.matmul(pair.do, pair.v, pypto.DT_FP32, b_trans=True)
                    # V1
                    segment(1)
                    pypto.set_vec_tile_shapes(*tiles.vec_s)
                    p, ds = softmax_gradient(s, dp, pair, scale)
                    segment(-1)
                    # C2
                    pypto.set_cube_tile_shapes(*tiles.cube_dkv)
                    dv_tile = pypto.matmul(p, pair.do, pypto.DT_FP32, a_trans=True)
                    pypto.set_cube_tile_shapes(*tiles.cube_dq)
                    dq_tile = pypto.matmul(ds, pair.k, pypto.DT_FP32)
                    pypto.set_cube_tile_shapes(*tiles.cube_dkv)
                    dk_tile = pypto.matmul(ds, pair.q, pypto.DT_FP32, a_trans=True)
                    # V2
                    segment(2)
                    pypto.set_vec_tile_shapes(*tiles.vec_d)
                    pypto.atomic_add(dv_tile, [kv_row, column], dv)
                    pypto.atomic_add(pypto.mul(dq_tile, scale), [q_row, column], dq)
                    pypto.atomic_add(pypto.mul(dk_tile, scale), [kv_row, column], dk)
                    segment(-1)


general_kernel = pypto.frontend.jit(
    runtime_options={
        "stitch_function_max_num": 128,
        "device_sched_mode": 3,
        "ready_on_host_tensors": ["cu_seqlens_q", "cu_seqlens_kv"],
    },
)(single_pass)


def launch(*, q, k, v, o, do, l, m, cu_seqlens_q, cu_seqlens_kv, dq, dk, dv):
    """Adds to dq, dk and dv, which come zeroed."""
    tiles = choose(TILES[q.shape[2]], cu_seqlens_q, cu_seqlens_kv)
    general_kernel(q, k, v, o, do, l, m, cu_seqlens_q, cu_seqlens_kv, dq, dk, dv, tiles)
