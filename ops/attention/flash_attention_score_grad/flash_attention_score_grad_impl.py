"""flash_attention_score_grad for any architecture: two passes, no atomics, deterministic; see DESIGN.md.

dQ sums over keys, dK and dV sum over queries (and over the query heads of a group), so that each pass has its own
outer loop. Where one kv tile holds the whole sequence, dQ needs no sum and the second pass writes it too.
"""

from dataclasses import dataclass

import pypto

from ..atoms import (
    SHORT_TILES, Band, GradientPair, Layout, Tiles, accumulate, cube_tiles, divisor, dropout_factor, edges, longest,
    mask_edges, plane, plane_shape, sparse_band, tail, tail_view,
)  # fmt: skip

RUNTIME = {"stitch_function_max_num": 128, "ready_on_host_tensors": ["cu_seqlens_q", "cu_seqlens_kv"]}


def grad_tiles(q_len: int, kv_len: int, head_dim: int, dropout: bool = False) -> Tiles:
    """Tiles for sequences of at most these lengths.

    Three FP32 tiles, of scores or of gradients, fit the 192 KB of UB; with a dropout mask there are more at a time.
    """
    q, kv = (next((size for size in SHORT_TILES if length <= size), SHORT_TILES[-1]) for length in (q_len, kv_len))
    cube_qk, cube_pv = cube_tiles(q, kv, head_dim)
    vec_s = divisor(cube_qk[0][0], (6400 if dropout else 12800) // kv, 8)
    vec_o = divisor(cube_pv[0][0], 12800 // head_dim, 8)
    tiles_in_row = max(-(-q_len // q), -(-kv_len // kv))
    unroll = (1,) if tiles_in_row == 1 else (2, 1) if tiles_in_row == 2 else (4, 2, 1)  # compilation grows with it
    return Tiles(q, kv, vec_s, vec_o, cube_qk, cube_pv, unroll)


@dataclass(frozen=True)
class Problem:
    """What a kernel is traced with: tensors as two-dimensional matrices, and what is known of them beforehand.

    bias, keep   functions (b, h) -> tile function, or give None
    edges        constants that `mask_edges` slides over the edges of the band
    one_kv_tile  no sequence has more keys than one tile
    """

    q: object
    k: object
    v: object
    o: object
    do: object
    l: object
    m: object
    dq: object
    dk: object
    dv: object
    bias: object
    keep: object
    edges: tuple
    cu_seqlens_q: object
    cu_seqlens_kv: object
    layout: Layout
    scale: float
    band: Band
    tiles: Tiles
    one_kv_tile: bool

    @property
    def batch(self):
        """How many sequences."""
        return self.layout.batch or self.cu_seqlens_q.shape[0] - 1

    def place(self, b, h):
        """Where query head `h` of sequence `b` lies."""
        return self.layout.place(b, h, self.cu_seqlens_q, self.cu_seqlens_kv)


def pair_of(x: Problem, b, h, row, rows, column, columns) -> GradientPair:
    """`rows` query rows from `row` on against `columns` keys from `column` on, of query head `h` of sequence `b`."""
    p, tiles, head_dim, valid = x.place(b, h), x.tiles, x.layout.head_dim, [rows, columns]
    bias, keep = x.bias(b, h), x.keep(b, h)

    def of_q(matrix):
        return tail_view(matrix, [tiles.q, head_dim], [p.q_row + row, p.q_col], [rows, head_dim])

    def of_kv(matrix):
        return tail_view(matrix, [tiles.kv, head_dim], [p.kv_row + column, p.kv_col], [columns, head_dim])

    def statistic(matrix):
        return tail_view(matrix, [tiles.q, 1], [p.stat_row + row, p.stat_col], [rows, 1])

    def prepare(s):
        if bias is not None:
            s = pypto.add(s, bias(row, column, valid))
        if x.band.limited:
            s = mask_edges(s, x.band, *x.edges, tiles, row + x.band.shift(p.q_len, p.kv_len) - column, valid)
        return s

    return GradientPair(x, head_dim, of_q, of_kv, statistic, prepare, keep and (lambda: keep(row, column, valid)))


def dq_pass(x: Problem):
    """dQ: a loop over kv tiles for every tile of query rows."""
    tiles, band, d = x.tiles, x.band, x.layout.head_dim
    for b in pypto.loop(x.batch, name="LOOP_dq_b", idx_name="b_dq"):
        for h in pypto.loop(x.layout.heads, name="LOOP_dq_h", idx_name="h"):
            p = x.place(b, h)
            first_row, end_row = band.rows(p.q_len, p.kv_len)
            count = end_row - first_row
            for i in pypto.loop((count + tiles.q - 1) // tiles.q, name="LOOP_dq_q", idx_name="i"):
                row, rows = first_row + i * tiles.q, tail(count, i, tiles.q)
                dq_sum = pypto.tensor([tiles.q, d], pypto.DT_FP32, "dq_sum")
                first, end = band.tiles(row, rows, p.q_len, p.kv_len, tiles.kv)

                def write(total):
                    pypto.assemble(total, [p.q_row + row, p.q_col], x.dq)

                for t in pypto.loop(end - first, name="LOOP_dq_kv", idx_name="t", unroll_list=list(tiles.unroll)):
                    column, columns = (first + t) * tiles.kv, tail(p.kv_len, first + t, tiles.kv)
                    pair = pair_of(x, b, h, row, rows, column, columns)
                    accumulate([dq_sum], [pair.dq()], [rows, d], pypto.is_loop_begin(t), pypto.is_loop_end(t), write)


def dkv_pass(x: Problem, write_dq=None):
    """dK and dV: a loop over the query heads of the group and their tiles, for every tile of keys.

    write_dq   function that gets every pair's share of dQ and its row and column in dq; default: nobody wants it
    """
    tiles, band, d = x.tiles, x.band, x.layout.head_dim
    group = x.layout.heads // x.layout.kv_heads
    for b in pypto.loop(x.batch, name="LOOP_dkv_b", idx_name="b_dkv"):
        for hkv in pypto.loop(x.layout.kv_heads, name="LOOP_dkv_h", idx_name="hkv"):
            own = x.place(b, hkv * group)
            shift = band.shift(own.q_len, own.kv_len)
            for j in pypto.loop((own.kv_len + tiles.kv - 1) // tiles.kv, name="LOOP_dkv_kv", idx_name="j"):
                column, columns = j * tiles.kv, tail(own.kv_len, j, tiles.kv)
                dk_sum = pypto.tensor([tiles.kv, d], pypto.DT_FP32, "dk_sum")
                dv_sum = pypto.tensor([tiles.kv, d], pypto.DT_FP32, "dv_sum")
                first_row, end_row = band.rows(own.q_len, own.kv_len)
                if band.after is not None:
                    first_row = pypto.max(column - shift - band.after, first_row)
                if band.before is not None:
                    end_row = pypto.min(column + columns - shift + band.before, end_row)
                count = end_row - first_row
                q_tiles = (count + tiles.q - 1) // tiles.q

                def write(*totals):
                    for total, gradient in zip(totals, (x.dk, x.dv)):
                        pypto.assemble(total, [own.kv_row + column, own.kv_col], gradient)

                # One loop over the query heads of the group and their tiles: its begin and end are those of the sum.
                for t in pypto.loop(q_tiles * group, name="LOOP_dkv_q", idx_name="t_q", unroll_list=list(tiles.unroll)):
                    g, i = (t // q_tiles, t % q_tiles) if group > 1 else (0, t)
                    h = hkv * group + g
                    row, rows = first_row + i * tiles.q, tail(count, i, tiles.q)
                    pair, p = pair_of(x, b, h, row, rows, column, columns), x.place(b, h)
                    dq, dk, dv = pair.dq() if write_dq else None, pair.dk(), pair.dv()
                    accumulate(
                        [dk_sum, dv_sum], [dk, dv], [columns, d], pypto.is_loop_begin(t), pypto.is_loop_end(t), write
                    )
                    if write_dq:
                        write_dq(dq, [p.q_row + row, p.q_col])


def two_passes(x: Problem):
    """The body of the kernels `general` and `a3`."""
    if x.one_kv_tile:
        dkv_pass(x, lambda dq, at: pypto.assemble(dq, at, x.dq))
    else:
        dq_pass(x)
        dkv_pass(x)


def backward(
    q: pypto.Tensor([pypto.DYNAMIC, pypto.STATIC], pypto.DT_BF16),
    k: pypto.Tensor([pypto.DYNAMIC, pypto.STATIC], pypto.DT_BF16),
    v: pypto.Tensor([pypto.DYNAMIC, pypto.STATIC], pypto.DT_BF16),
    o: pypto.Tensor([pypto.DYNAMIC, pypto.STATIC], pypto.DT_BF16),
    do: pypto.Tensor([pypto.DYNAMIC, pypto.STATIC], pypto.DT_BF16),
    l: pypto.Tensor([pypto.DYNAMIC, pypto.STATIC], pypto.DT_FP32),
    m: pypto.Tensor([pypto.DYNAMIC, pypto.STATIC], pypto.DT_FP32),
    bias: pypto.Tensor([pypto.DYNAMIC, pypto.STATIC], pypto.DT_FP32),
    keep: pypto.Tensor([pypto.DYNAMIC, pypto.STATIC], pypto.DT_UINT8),
    upper: pypto.Tensor([pypto.STATIC, pypto.STATIC], pypto.DT_FP32),
    lower: pypto.Tensor([pypto.STATIC, pypto.STATIC], pypto.DT_FP32),
    cu_seqlens_q: pypto.Tensor([pypto.DYNAMIC], pypto.DT_INT32),
    cu_seqlens_kv: pypto.Tensor([pypto.DYNAMIC], pypto.DT_INT32),
    dq: pypto.Tensor([pypto.DYNAMIC, pypto.STATIC], pypto.DT_FP32),
    dk: pypto.Tensor([pypto.DYNAMIC, pypto.STATIC], pypto.DT_FP32),
    dv: pypto.Tensor([pypto.DYNAMIC, pypto.STATIC], pypto.DT_FP32),
    body,
    layout,
    scale,
    keep_prob,
    band,
    tiles,
    bias_shape,
    keep_shape,
    one_kv_tile,
):
    """`body` (`two_passes`, or another order of the loops) over the matrices; see `Problem`."""
    pypto.experimental.set_operation_options(combine_axis=True)
    biases = plane(bias, bias_shape, layout.q_len, tiles)
    keeps = plane(keep, keep_shape, layout.q_len, tiles, dropout_factor(keep_prob))
    body(
        Problem(
            q, k, v, o, do, l, m, dq, dk, dv, biases, keeps, (upper, lower), cu_seqlens_q, cu_seqlens_kv,
            layout, scale, band, tiles, one_kv_tile,
        )
    )


kernel = pypto.frontend.jit(runtime_options=RUNTIME)(backward)


def run(
    kernel, body, *, q, k, v, o, do, l, m, head_num, layout, scale, sparse_mode, pre_tokens, next_tokens, bias, keep,
    keep_prob, cu_seqlens_q, cu_seqlens_kv, dq, dk, dv,
):  # fmt: skip
    """Launches `kernel` with that body on matrix views of the tensors. What a layout or case does not have is 1x1."""
    dq.zero_(), dk.zero_(), dv.zero_()  # what no visible pair contributes to is not written by the kernel
    layout = Layout.of(layout, q, k, head_num)
    varlen = layout.name == "TND"
    lengths = [longest(x) for x in (cu_seqlens_q, cu_seqlens_kv)] if varlen else [layout.q_len, layout.kv_len]
    if 0 in lengths:
        return
    band = sparse_band(sparse_mode, pre_tokens, next_tokens)
    tiles = grad_tiles(*lengths, layout.head_dim, keep is not None)
    one_kv_tile = lengths[1] <= tiles.kv
    unused = l.new_zeros((1, 1))
    offsets = (cu_seqlens_q, cu_seqlens_kv) if varlen else (unused[0].int(), unused[0].int())
    kernel(
        *map(layout.matrix, (q, k, v, o, do)), layout.statistic(l), layout.statistic(m),
        unused if bias is None else bias.flatten(0, 2), unused.byte() if keep is None else keep.flatten(0, 2),
        *edges(band, tiles, l), *offsets, *map(layout.matrix, (dq, dk, dv)),
        body, layout, scale, keep_prob, band, tiles, plane_shape(bias), plane_shape(keep), one_kv_tile,
    )  # fmt: skip


def launch(**tensors):
    """Writes dq, dk and dv; arguments as in flash_attention_score_grad.py, contiguous."""
    run(kernel, two_passes, **tensors)
