"""flash_attention_score_grad for any architecture: two passes, no atomics, deterministic; see DESIGN.md.

dQ sums over keys, dK and dV sum over queries (and over the query heads of a group), so that each pass has its own
outer loop. Where one kv tile holds the whole sequence, dQ needs no sum and the second pass writes it too.
"""

from dataclasses import dataclass

import pypto

from ..atoms import (
    Band, Layout, Place, Tiles, cube_tiles, divisor, dropout_factor, edges, longest, mask_edges, plane, plane_shape,
    revisit, sparse_band, tail, tail_view,
)  # fmt: skip

SHORT_TILES = (64, 128, 320)


def grad_tiles(q_len: int, kv_len: int, head_dim: int, large: bool = False) -> Tiles:
    """Tiles for sequences of at most these lengths; `large` ones are tuned for Atlas A3."""
    longest = 256 if large else 128
    q = next((size for size in SHORT_TILES if q_len <= size), longest)
    kv = next((size for size in SHORT_TILES if kv_len <= size), longest)
    cube_qk, cube_pv = cube_tiles(q, kv, head_dim)
    return Tiles(q, kv, divisor(cube_qk[0][0], 5120 // kv, 8), 64, cube_qk, cube_pv)


@dataclass(frozen=True)
class Matrices:
    """Tensors as two-dimensional matrices; `bias` and `keep` are functions (b, h) -> tile function, or give None."""

    q: object
    k: object
    v: object
    o: object
    do: object
    l: object
    m: object
    bias: object
    keep: object
    edges: tuple


class Pair:
    """One tile of query rows against one tile of keys, for one (batch, head): P and dS in BF16 (C1 and V1)."""

    def __init__(self, x: Matrices, p: Place, tiles: Tiles, band: Band, scale, head_dim, bias, keep, row, rows, column, columns):
        self.tiles, self.head_dim = tiles, head_dim

        def of_q(matrix):
            return tail_view(matrix, [tiles.q, head_dim], [p.q_row + row, p.q_col], [rows, head_dim])

        def of_kv(matrix):
            return tail_view(matrix, [tiles.kv, head_dim], [p.kv_row + column, p.kv_col], [columns, head_dim])

        def statistic(matrix):
            return tail_view(matrix, [tiles.q, 1], [p.stat_row + row, p.stat_col], [rows, 1])

        self.q, self.k, self.do = of_q(x.q), of_kv(x.k), of_q(x.do)
        pypto.set_cube_tile_shapes(*tiles.cube_qk)
        s = pypto.matmul(self.q, self.k, pypto.DT_FP32, b_trans=True)
        dp = pypto.matmul(self.do, of_kv(x.v), pypto.DT_FP32, b_trans=True)
        valid = [rows, columns]
        pypto.set_vec_tile_shapes(tiles.vec_s, head_dim)
        # dO is viewed once more: one view with a valid shape cannot feed both the cube and the vector unit on 0.2.0.
        o, do = (pypto.cast(of_q(matrix), pypto.DT_FP32) for matrix in (x.o, x.do))
        row_sum = pypto.sum(pypto.mul(o, do), -1, True)
        pypto.set_vec_tile_shapes(tiles.vec_s, tiles.kv)
        s = pypto.mul(s, scale)
        if bias is not None:
            s = pypto.add(s, bias(row, column, valid))
        if band.limited:
            s = mask_edges(s, band, *x.edges, tiles, row + band.shift(p.q_len, p.kv_len) - column, valid)
        weights = pypto.div(pypto.exp(pypto.sub(s, statistic(x.m))), statistic(x.l))
        kept = weights
        if keep is not None:
            factor = keep(row, column, valid)
            kept, dp = pypto.mul(weights, factor), pypto.mul(dp, factor)
        self.ds = pypto.cast(pypto.mul(weights, pypto.sub(dp, row_sum)), pypto.DT_BF16)
        self.weights = pypto.cast(kept, pypto.DT_BF16)

    def _product(self, a, b, m, k, **transposed):
        size = self.head_dim
        m_tile = divisor(m, 128)
        pypto.set_cube_tile_shapes([m_tile, m], [divisor(k, 64), k], [size, size])
        product = pypto.matmul(a, b, pypto.DT_FP32, **transposed)
        pypto.set_vec_tile_shapes(divisor(m_tile, self.tiles.vec_o), size)
        return product

    def dq(self):
        """This pair's share of dQ, before the scale."""
        return self._product(self.ds, self.k, self.tiles.q, self.tiles.kv)

    def dk(self):
        """This pair's share of dK, before the scale."""
        return self._product(self.ds, self.q, self.tiles.kv, self.tiles.q, a_trans=True)

    def dv(self):
        """This pair's share of dV."""
        return self._product(self.weights, self.do, self.tiles.kv, self.tiles.q, a_trans=True)


def accumulate(states, shares, valid, first, last, write):
    """Adds `shares` to the running `states`, starting at `first`; at `last` hands the sums to `write` instead."""

    def keep(sums):
        if pypto.cond(last):
            write(*sums)
        else:
            for state, total in zip(states, sums):
                state[:] = total

    if pypto.cond(first):
        keep(shares)
    else:
        keep([pypto.add(revisit(state, valid), share) for state, share in zip(states, shares)])


def backward(x: Matrices, dq, dk, dv, layout: Layout, cu_seqlens_q, cu_seqlens_kv, batch, scale, band: Band, tiles, one_kv_tile):
    """The body of the kernels. `one_kv_tile`: no sequence has more than one kv tile."""
    d, group = layout.head_dim, layout.heads // layout.kv_heads

    def write_dq(place, row, dq_sum):
        pypto.assemble(pypto.mul(dq_sum, scale), [place.q_row + row, place.q_col], dq)

    for b in pypto.loop(batch, name="LOOP_b", idx_name="b"):
        if not one_kv_tile:
            for h in pypto.loop(layout.heads, name="LOOP_dq_h", idx_name="h"):
                place = layout.place(b, h, cu_seqlens_q, cu_seqlens_kv)
                bias, keep = x.bias(b, h), x.keep(b, h)
                first_row, end_row = band.rows(place.q_len, place.kv_len)
                count = end_row - first_row
                for i in pypto.loop((count + tiles.q - 1) // tiles.q, name="LOOP_dq_q", idx_name="i"):
                    row, rows = first_row + i * tiles.q, tail(count, i, tiles.q)
                    dq_sum = pypto.tensor([tiles.q, d], pypto.DT_FP32, "dq_sum")
                    first, end = band.tiles(row, rows, place.q_len, place.kv_len, tiles.kv)
                    for t in pypto.loop(end - first, name="LOOP_dq_kv", idx_name="t"):
                        column, columns = (first + t) * tiles.kv, tail(place.kv_len, first + t, tiles.kv)
                        pair = Pair(x, place, tiles, band, scale, d, bias, keep, row, rows, column, columns)
                        accumulate(
                            [dq_sum], [pair.dq()], [rows, d], pypto.is_loop_begin(t), pypto.is_loop_end(t),
                            lambda total: write_dq(place, row, total),
                        )  # fmt: skip
        for hkv in pypto.loop(layout.kv_heads, name="LOOP_dkv_h", idx_name="hkv"):
            own = layout.place(b, hkv * group, cu_seqlens_q, cu_seqlens_kv)
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
                # One loop over the query heads of the group and their tiles: its begin and end are those of the sum.
                for t in pypto.loop(q_tiles * group, name="LOOP_dkv_q", idx_name="t_q"):
                    g, i = (t // q_tiles, t % q_tiles) if group > 1 else (0, t)
                    h = hkv * group + g
                    place = layout.place(b, h, cu_seqlens_q, cu_seqlens_kv)
                    row, rows = first_row + i * tiles.q, tail(count, i, tiles.q)
                    pair = Pair(x, place, tiles, band, scale, d, x.bias(b, h), x.keep(b, h), row, rows, column, columns)
                    if one_kv_tile:
                        write_dq(place, row, pair.dq())

                    def write(dk_total, dv_total):
                        at = [own.kv_row + column, own.kv_col]
                        pypto.assemble(pypto.mul(dk_total, scale), at, dk)
                        # A bare matmul result or state in front of an assemble kills the 0.2.0 simulator.
                        pypto.assemble(pypto.add(dv_total, 0.0), at, dv)

                    accumulate(
                        [dk_sum, dv_sum], [pair.dk(), pair.dv()], [columns, d],
                        pypto.is_loop_begin(t), pypto.is_loop_end(t), write,
                    )  # fmt: skip


@pypto.frontend.jit(runtime_options={"stitch_function_max_num": 128})
def dense_kernel(
    q: pypto.Tensor([pypto.STATIC, pypto.STATIC], pypto.DT_BF16),
    k: pypto.Tensor([pypto.STATIC, pypto.STATIC], pypto.DT_BF16),
    v: pypto.Tensor([pypto.STATIC, pypto.STATIC], pypto.DT_BF16),
    o: pypto.Tensor([pypto.STATIC, pypto.STATIC], pypto.DT_BF16),
    do: pypto.Tensor([pypto.STATIC, pypto.STATIC], pypto.DT_BF16),
    l: pypto.Tensor([pypto.STATIC, pypto.STATIC], pypto.DT_FP32),
    m: pypto.Tensor([pypto.STATIC, pypto.STATIC], pypto.DT_FP32),
    bias: pypto.Tensor([pypto.STATIC, pypto.STATIC], pypto.DT_FP32),
    keep: pypto.Tensor([pypto.STATIC, pypto.STATIC], pypto.DT_UINT8),
    upper: pypto.Tensor([pypto.STATIC, pypto.STATIC], pypto.DT_FP32),
    lower: pypto.Tensor([pypto.STATIC, pypto.STATIC], pypto.DT_FP32),
    dq: pypto.Tensor([pypto.STATIC, pypto.STATIC], pypto.DT_FP32),
    dk: pypto.Tensor([pypto.STATIC, pypto.STATIC], pypto.DT_FP32),
    dv: pypto.Tensor([pypto.STATIC, pypto.STATIC], pypto.DT_FP32),
    layout,
    scale,
    keep_prob,
    band,
    tiles,
    bias_shape,
    keep_shape,
):
    pypto.experimental.set_operation_options(combine_axis=True)
    biases = plane(bias, bias_shape, layout.q_len, tiles)
    keeps = plane(keep, keep_shape, layout.q_len, tiles, dropout_factor(keep_prob))
    x = Matrices(q, k, v, o, do, l, m, biases, keeps, (upper, lower))
    one_kv_tile = layout.kv_len <= tiles.kv
    backward(x, dq, dk, dv, layout, None, None, layout.batch, scale, band, tiles, one_kv_tile)


@pypto.frontend.jit(
    runtime_options={"stitch_function_max_num": 128, "ready_on_host_tensors": ["cu_seqlens_q", "cu_seqlens_kv"]},
)
def varlen_kernel(
    q: pypto.Tensor([pypto.DYNAMIC, pypto.STATIC], pypto.DT_BF16),
    k: pypto.Tensor([pypto.DYNAMIC, pypto.STATIC], pypto.DT_BF16),
    v: pypto.Tensor([pypto.DYNAMIC, pypto.STATIC], pypto.DT_BF16),
    o: pypto.Tensor([pypto.DYNAMIC, pypto.STATIC], pypto.DT_BF16),
    do: pypto.Tensor([pypto.DYNAMIC, pypto.STATIC], pypto.DT_BF16),
    l: pypto.Tensor([pypto.DYNAMIC, pypto.STATIC], pypto.DT_FP32),
    m: pypto.Tensor([pypto.DYNAMIC, pypto.STATIC], pypto.DT_FP32),
    cu_seqlens_q: pypto.Tensor([pypto.DYNAMIC], pypto.DT_INT32),
    cu_seqlens_kv: pypto.Tensor([pypto.DYNAMIC], pypto.DT_INT32),
    upper: pypto.Tensor([pypto.STATIC, pypto.STATIC], pypto.DT_FP32),
    lower: pypto.Tensor([pypto.STATIC, pypto.STATIC], pypto.DT_FP32),
    dq: pypto.Tensor([pypto.DYNAMIC, pypto.STATIC], pypto.DT_FP32),
    dk: pypto.Tensor([pypto.DYNAMIC, pypto.STATIC], pypto.DT_FP32),
    dv: pypto.Tensor([pypto.DYNAMIC, pypto.STATIC], pypto.DT_FP32),
    layout,
    scale,
    band,
    tiles,
    one_kv_tile,
):
    pypto.experimental.set_operation_options(combine_axis=True)
    none = plane(None, None, 0, tiles)
    x = Matrices(q, k, v, o, do, l, m, none, none, (upper, lower))
    batch = cu_seqlens_q.shape[0] - 1
    backward(x, dq, dk, dv, layout, cu_seqlens_q, cu_seqlens_kv, batch, scale, band, tiles, one_kv_tile)


def run(
    dense_kernel, varlen_kernel, large, *, q, k, v, o, do, l, m, head_num, layout, scale, sparse_mode, pre_tokens,
    next_tokens, bias, keep, keep_prob, cu_seqlens_q, cu_seqlens_kv, dq, dk, dv,
):  # fmt: skip
    """Launches the kernel of the layout on matrix views of the tensors."""
    dq.zero_(), dk.zero_(), dv.zero_()  # what no visible pair contributes to is not written by the kernel
    layout = Layout.of(layout, q, k, head_num)
    varlen = layout.name == "TND"
    lengths = [longest(x) for x in (cu_seqlens_q, cu_seqlens_kv)] if varlen else [layout.q_len, layout.kv_len]
    if 0 in lengths:
        return
    band = sparse_band(sparse_mode, pre_tokens, next_tokens)
    tiles = grad_tiles(*lengths, layout.head_dim, large)
    inputs = [*map(layout.matrix, (q, k, v, o, do)), layout.statistic(l), layout.statistic(m)]
    masks, gradients = edges(band, tiles, l), map(layout.matrix, (dq, dk, dv))
    if varlen:
        one_kv_tile = lengths[1] <= tiles.kv
        varlen_kernel(*inputs, cu_seqlens_q, cu_seqlens_kv, *masks, *gradients, layout, scale, band, tiles, one_kv_tile)
        return
    unused = l.new_zeros((1, 1))
    dense_kernel(
        *inputs, unused if bias is None else bias.flatten(0, 2), unused.byte() if keep is None else keep.flatten(0, 2),
        *masks, *gradients, layout, scale, keep_prob, band, tiles, plane_shape(bias), plane_shape(keep),
    )  # fmt: skip


def launch(**tensors):
    """Writes dq, dk and dv; arguments as in flash_attention_score_grad.py, contiguous."""
    run(dense_kernel, varlen_kernel, False, **tensors)
