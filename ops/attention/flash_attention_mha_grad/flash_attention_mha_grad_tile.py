"""What the kernels of flash_attention_mha_grad share: tile sizes, the views of one tile pair, and the softmax gradient.

A tile pair is one tile of query rows against one tile of keys, for one head. Everything here is plain Python that runs
while a kernel is traced.
"""

from __future__ import annotations

from dataclasses import dataclass

import pypto


@dataclass(frozen=True)
class Tiles:
    """Compile-time tile sizes.

    q, kv                       query rows and keys of a tile pair
    vec_s                       vector tile over scores, (rows, keys)
    vec_d                       vector tile over gradients, (rows, head_dim)
    cube_s, cube_dq, cube_dkv   cube tiles of S and dP, of dQ, of dK and dV: (m, k, n), each [L0, L1]
    unroll                      unroll list of the inner loop
    """

    q: int
    kv: int
    vec_s: tuple[int, int]
    vec_d: tuple[int, int]
    cube_s: tuple
    cube_dq: tuple
    cube_dkv: tuple
    unroll: tuple[int, ...] = (1,)


SIZES = (64, 128, 320)
"""Rows and columns of a tile pair to choose from."""


def square(size: int, head_dim: int) -> Tiles:
    """Tiles of `size` query rows by `size` keys that fit the buffers of Atlas A2 and A3.

    S takes all `size` keys in one cube tile: a tile that lies wholly beyond the last key has no valid shape in 0.2.0.
    Score rows of the vector unit divide those of the cube, so that no vector tile reads two cube tiles. UB has 184 KB:
    three FP32 tiles of 40 x 320 scores, or of 160 x 96 gradients, are 150 and 180 KB.
    """
    rows, score_rows, vec_rows = {64: (64, 64, 32), 128: (128, 64, 32), 320: (160, 80, 40)}[size]
    score_k = head_dim if size * head_dim <= 32768 else 64  # L0B: 64 KB hold 32768 BF16
    product_k = rows if rows * head_dim <= 32768 else 64
    product_rows = rows if rows * head_dim <= 32768 else 64  # L0C: 128 KB hold 32768 FP32
    product = ([product_rows, product_rows], [product_k, size], [head_dim, head_dim])
    return Tiles(
        q=size, kv=size, vec_s=(vec_rows, size), vec_d=(rows if rows * head_dim <= 15360 else 32, head_dim),
        cube_s=([score_rows, score_rows], [score_k, head_dim], [size, size]), cube_dq=product, cube_dkv=product,
    )  # fmt: skip


def fitting(sizes, lengths) -> int:
    """The smallest of `sizes` (rising) that holds the longest of these (q_len, kv_len) whole; else the largest."""
    longest = max(map(max, lengths))
    return next((size for size in sizes if longest <= size), sizes[-1])


def choose(table, cu_seqlens_q, cu_seqlens_kv) -> Tiles:
    """The tiles of `table` (by size) for these sequences."""
    q, kv = cu_seqlens_q.tolist(), cu_seqlens_kv.tolist()
    return table[fitting(SIZES, [(q[i + 1] - q[i], kv[i + 1] - kv[i]) for i in range(len(q) - 1)])]


def flatten(x):
    """[tokens, heads, width] seen as [tokens, heads * width]: no copy, and a head is a range of columns."""
    return pypto.reshape(x, [x.shape[0], x.shape[1] * x.shape[2]], inplace=True)


@dataclass(frozen=True)
class Matrices:
    """The inputs, flattened."""

    q: pypto.Tensor
    k: pypto.Tensor
    v: pypto.Tensor
    o: pypto.Tensor
    do: pypto.Tensor
    l: pypto.Tensor
    m: pypto.Tensor


class TilePair:
    """Views of `rows` query rows from `q_at` and of `columns` keys from `kv_at`, for one head.

    q, do, k, v            operands of matrix products
    o, do_vector, l, m     operands of the vector unit. dO is viewed twice: in 0.2.0 one view with a valid shape cannot
                           feed both units (pass InferDynShape differs).
    """

    def __init__(self, x: Matrices, tiles: Tiles, head_dim, head, q_at, rows, kv_at, columns):
        column = head * head_dim

        def of_q(matrix, width, column):
            return pypto.view(matrix, [tiles.q, width], [q_at, column], valid_shape=[rows, width])

        def of_kv(matrix):
            return pypto.view(matrix, [tiles.kv, head_dim], [kv_at, column], valid_shape=[columns, head_dim])

        self.q, self.do = of_q(x.q, head_dim, column), of_q(x.do, head_dim, column)
        self.k, self.v = of_kv(x.k), of_kv(x.v)
        self.o, self.do_vector = of_q(x.o, head_dim, column), of_q(x.do, head_dim, column)
        self.l, self.m = of_q(x.l, 1, head), of_q(x.m, 1, head)


def softmax_gradient(s, dp, pair: TilePair, scale: float):
    """V1: from S = Q K^T and dP = dO V^T, both FP32, to P and dS in BF16, as the products of C2 take them."""
    d = pypto.sum(pypto.mul(pypto.cast(pair.o, pypto.DT_FP32), pypto.cast(pair.do_vector, pypto.DT_FP32)), -1, True)
    p = pypto.exp(pypto.sub(pypto.mul(s, scale), pair.m))
    p = pypto.div(p, pair.l, precision_type=pypto.PrecisionType.INTRINSIC)
    ds = pypto.mul(p, pypto.sub(dp, d))
    return pypto.cast(p, pypto.DT_BF16), pypto.cast(ds, pypto.DT_BF16)
