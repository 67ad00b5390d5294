"""Pieces that kernels of the chunked delta rule share: constants, chunk cells, packed scratch, the triangular inverse.

Like the `_impl` files this module imports pypto and the standard library only, so that a kernel and this file can be
lifted into another repository together. Functions on pypto tensors are plain Python that runs while a kernel is traced.

Tokens lie in two-dimensional matrices, a row per token and a column block per head. A *cell* is one chunk of one
sequence, its place in scratch tensors padded to a full chunk: with zeros in the padding (q, k, v, gate and beta of
tokens that are not there) every formula of the chunk holds as it stands, so that only the first and the last step of a
kernel know about tails.
"""

from dataclasses import dataclass, field

import pypto

EPS = 1e-6  # under the root of the L2 norm, as in `reference.l2norm`
CHUNK_SIZES = (16, 32, 64, 128)
DTYPES = {"torch.float32": pypto.DT_FP32, "torch.bfloat16": pypto.DT_BF16}

TRIL, AFTER, STRICT, TRIU, EYE, LEVELS = range(6)
"""Blocks of `constants`: j <= i, j > i, j < i, j >= i, j == i; then one a level of `inverse`."""


@dataclass(frozen=True, eq=False)
class Tuning:
    """What may differ between targets; compared by identity, so that a kernel is compiled once for each.

    vec_rows     rows of a vector tile where chunks are worked on in parallel
    carry_rows   rows of a vector tile where the state is handed on
    runtime, passes   options of `pypto.frontend.jit`
    """

    vec_rows: int = 128
    carry_rows: int = 64
    runtime: dict = field(default_factory=lambda: {"stitch_function_max_num": 128})
    passes: dict = field(default_factory=dict)


@dataclass(frozen=True)
class Shape:
    """What a kernel of a chunked delta rule is compiled for."""

    batch: int
    qk_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    chunk_size: int
    dtype: object

    @classmethod
    def of(cls, q, initial_state, chunk_size):
        """From the torch tensors q [T, Hqk, Dk] and initial_state [B, Hv, Dk, Dv]."""
        batch, value_heads, key_dim, value_dim = initial_state.shape
        return cls(batch, q.shape[1], value_heads, key_dim, value_dim, chunk_size, DTYPES[str(q.dtype)])

    def value_heads_of(self, qk_head):
        """The value heads that share this query and key head."""
        group = self.value_heads // self.qk_heads
        return range(qk_head * group, (qk_head + 1) * group)


def scratch(sizes, shape, g):
    """Zeros for what one step of a kernel hands to the next: a matrix for each of `sizes` (rows of a cell, columns).

    Zeros, because only the tokens that exist are written. g, FP32 [T, ...], says how many tokens there are, and where.
    """
    number = cells(g.shape[0], shape.batch, shape.chunk_size)
    return [g.new_zeros((number * rows, width)) for rows, width in sizes.values()]


def constants(chunk_size, like):
    """Host-side 0/1 matrices of a chunk, one below the other: [blocks * chunk_size, chunk_size] FP32, where `like` is.

    The block of level b = 1, 2, 4, … has ones where i lies in the second half of a block of 2b and j in the first half
    of the same block: the levels together are the strictly lower triangle. Raises ValueError for other chunk sizes.
    """
    if chunk_size not in CHUNK_SIZES:
        raise ValueError(f"chunk_size: got {chunk_size}, takes one of {', '.join(map(str, CHUNK_SIZES))}")
    ones = like.new_ones((chunk_size, chunk_size)).float()
    i, j = ones.cumsum(0) - 1, ones.cumsum(1) - 1
    blocks = [j <= i, j > i, j < i, j >= i, j == i]
    for b in level_sizes(chunk_size):
        blocks.append((i // b % 2 == 1) & (i // b - 1 == j // b))
    packed = ones.new_empty((len(blocks) * chunk_size, chunk_size))
    for n, block in enumerate(blocks):
        packed[n * chunk_size : (n + 1) * chunk_size] = block
    return packed


def level_sizes(chunk_size):
    """1, 2, 4, … below chunk_size."""
    return [2**n for n in range(chunk_size.bit_length() - 1)]


def constant(packed, which):
    """Block number `which` of `constants`."""
    size = packed.shape[1]
    return pypto.view(packed, [size, size], [which * size, 0])


class Chunk:
    """Chunk number `c` of sequence number `b`, inside a kernel.

    row, length   first token in the packed sequences, and how many tokens exist
    cell          its number among the cells; `states` has one more for each sequence, for the state after its last chunk
    """

    def __init__(self, cu_seqlens, b, c, chunk_size):
        begin = cu_seqlens[b]
        self.row = begin + c * chunk_size
        self.length = (cu_seqlens[b + 1] - self.row).min(chunk_size)
        self.cell = begin // chunk_size + b + c
        self.state = self.cell + b
        self.size = chunk_size

    def tokens(self, matrix, width, column):
        """`width` columns of the tokens that exist, FP32: [size, width] with a valid shape of [length, width]."""
        x = pypto.view(matrix, [self.size, width], [self.row, column], valid_shape=[self.length, width])
        return x if x.dtype == pypto.DT_FP32 else pypto.cast(x, pypto.DT_FP32)

    def existing(self, x):
        """The rows of x, [size, width], that are tokens. To be taken before the operation that makes the output."""
        return pypto.view(x, list(x.shape), [0, 0], valid_shape=[self.length, x.shape[1]])

    def store(self, x, matrix, column):
        """Writes x, whose valid shape is [length, width], to its tokens in an output, in the output's dtype."""
        pypto.assemble(x if x.dtype == matrix.dtype else pypto.cast(x, matrix.dtype), [self.row, column], matrix)


def chunks(cu_seqlens, b, chunk_size):
    """Number of chunks of sequence b, inside a kernel."""
    return (cu_seqlens[b + 1] - cu_seqlens[b] + chunk_size - 1) // chunk_size


def cells(tokens, batch, chunk_size):
    """Cells that any `batch` sequences of `tokens` in all can need, their extra ones of `Chunk.state` included."""
    return tokens // chunk_size + 2 * batch


def block(matrix, row, rows, head, width):
    """Rows `row`, … of the columns of one head: [rows, width]."""
    return pypto.view(matrix, [rows, width], [row, head * width])


def store(x, matrix, row, head):
    """Writes x at `row` of the columns of one head. One scratch matrix takes tiles of one shape: with several shapes in
    it, PyPTO's scheduler holds tasks back that have nothing to do with each other (the 0.2.0 cost model: six times)."""
    pypto.assemble(x, [row, head * x.shape[1]], matrix)


def matmul(a, b, a_trans=False, b_trans=False):
    """a @ b in FP32, with cube tiles that cover the operands up to 128 a side."""
    m, k = a.shape[::-1] if a_trans else a.shape
    n = b.shape[0] if b_trans else b.shape[1]
    pypto.set_cube_tile_shapes(*([min(128, (size + 15) // 16 * 16)] * 2 for size in (m, k, n)))
    return pypto.matmul(a, b, pypto.DT_FP32, a_trans=a_trans, b_trans=b_trans)


def copy(x):
    """x by way of an operation: a bare view that goes straight into an assemble kills the 0.2.0 simulator."""
    return x + 0.0


def norm(x):
    """|x| of each row as `reference.l2norm` has it: [rows, 1]."""
    return pypto.sqrt((x * x).sum(-1, keepdim=True) + EPS)


def inverse(a, packed):
    """(I + L)^-1, where L is the strictly lower triangle of a [C, C], by block doubling. What else `a` holds does not count.

    With X the inverse of the diagonal blocks of size b, X - X a X, where it joins two of these blocks, is the inverse of
    the diagonal blocks of size 2b. Every intermediate that is kept is a block of the result. (Neumann doubling,
    (I - a)(I + a^2)(I + a^4)…, needs as many products, and overflows to 1e10 on correlated keys with beta near 1.)
    """
    x = constant(packed, EYE) - a * constant(packed, LEVELS)
    for level in range(1, len(level_sizes(packed.shape[1]))):
        x = x - matmul(matmul(x, a), x) * constant(packed, LEVELS + level)
    return x
