"""Pieces that several attention kernels share: tails, head mapping, visible tiles, the online softmax step.

Like the `_impl` files this module imports pypto and the standard library only, so that a kernel and this file can be
lifted into another repository together. Everything here is plain Python that runs while a kernel is traced; nothing
is a kernel of its own.

Matrices are two-dimensional here. A layout is a mapping from (batch, head) to the first row and first column of a
sequence: TND and BSH have a row per token and a column block per head, BNSD has a row per (head, token).
"""

from __future__ import annotations

from dataclasses import dataclass

import pypto

MASKED = -1e30
"""Added to a score that must not count. Finite: where a row sees nothing in a tile, the weights exp(0) that come out
are scaled away by the next tile; -inf would give NaN."""


def tail(length, index, tile):
    """Elements of `length` in tile number `index` of size `tile`: `tile`, or what is left."""
    return (length - index * tile).min(tile)


def tail_view(matrix, shape, offset, valid):
    """The tile of `matrix` at `offset`, of static `shape`, of which `valid` elements a dimension exist."""
    return pypto.view(matrix, shape, offset, valid_shape=valid)


def revisit(state, valid):
    """`state` with its valid shape put back: it is lost where a tensor crosses a loop boundary."""
    return pypto.view(state, state.shape, [0] * len(state.shape), valid_shape=valid)


def kv_head(head, q_heads, kv_heads):
    """The key/value head that query head `head` reads, under grouped-query attention."""
    group = q_heads // kv_heads
    return head if group == 1 else head // group


@dataclass(frozen=True)
class Tiles:
    """Compile-time tile sizes of an attention kernel.

    q, kv      rows and columns of a score tile
    vec_s      rows of a vector tile over scores [rows, kv]
    vec_o      rows of a vector tile over outputs [rows, head_dim]
    cube_qk    cube tile of Q K^T, as `pypto.set_cube_tile_shapes` takes it: (m, k, n), each [L0, L1]
    cube_pv    cube tile of P V
    unroll     unroll list of the loop over kv tiles
    """

    q: int
    kv: int
    vec_s: int
    vec_o: int
    cube_qk: tuple
    cube_pv: tuple
    unroll: tuple = (1,)


L0_BYTES = 64 * 1024  # of L0A and of L0B; L0C has twice as much


def cube_tiles(q: int, kv: int, head_dim: int) -> tuple[tuple, tuple]:
    """Cube tiles (cube_qk, cube_pv) of a [q, kv] score tile.

    A row of scores is never cut: on 0.2.0 the pieces of a cut row have no valid shape until a late pass, so that the
    tail of a sequence cannot be verified. For the same reason `vec_s` and `vec_o` of `Tiles` divide m.
    """
    return cube_tile(q, head_dim, kv), cube_tile(q, kv, head_dim)


def cube_tile(m: int, k: int, n: int) -> tuple:
    """Cube tile of [m, k] times [k, n], n uncut, as large as the L0 buffers take for 16-bit operands."""
    m_tile = divisor(m, 2 * L0_BYTES // (4 * n))
    return [m_tile, m], [divisor(k, L0_BYTES // (2 * max(m_tile, n))), k], [n, n]


def divisor(size: int, limit: int, step: int = 16) -> int:
    """The largest multiple of `step` that divides `size` and is at most `limit`; `size` is a multiple of `step`."""
    return next(x for x in range(min(size, limit) // step * step, 0, -step) if size % x == 0)


KV_TILE = 512
"""Kv tile of sequences that do not fit one tile."""

SHORT_TILES = (64, 128, 256, 320)
"""Tiles for sequences that fit: the vector and cube work of a tile is paid for its whole size, valid or not."""


def forward_tiles(q_len: int, kv_len: int, head_dim: int, large: bool = False) -> Tiles:
    """Tiles of the forward kernels for sequences of at most these lengths; `large` ones are tuned for Atlas A3."""
    q = next((size for size in SHORT_TILES if q_len <= size), 256 if large else 128)
    kv = next((size for size in SHORT_TILES if kv_len <= size), KV_TILE)
    cube_qk, cube_pv = cube_tiles(q, kv, head_dim)
    vec_s = divisor(cube_qk[0][0], (12800 if large else 8192) // kv, 8)
    vec_o = divisor(cube_pv[0][0], min(20480 // head_dim, 320) if large else 64)  # two tiles of it fit UB
    unroll = (1,)
    if large and kv_len > KV_TILE:  # a graph with a whole row of tiles in it; compilation grows with it
        unroll = (4, 2, 1) if kv_len > 2 * KV_TILE else (2, 1)
    return Tiles(q, kv, vec_s, vec_o, cube_qk, cube_pv, unroll)


class OnlineSoftmax:
    """Running output, denominator and maximum of a tile of query rows over any number of kv tiles, in FP32.

    With S the scaled (and masked) scores of one kv tile: m' = max(m, rowmax S); P = exp(S - m');
    l' = exp(m - m') l + rowsum P; o' = exp(m - m') o + BF16(P) V; at the end o / l. Source: Milakov and Gimelshein,
    arXiv:1805.02867; Dao et al., arXiv:2205.14135.

    Create it outside the loop over kv tiles, call `step` once a tile.
    """

    def __init__(self, tiles: Tiles, head_dim: int):
        self.tiles, self.head_dim = tiles, head_dim
        self.o = pypto.tensor([tiles.q, head_dim], pypto.DT_FP32, "o_running")
        self.l = pypto.tensor([tiles.q, 1], pypto.DT_FP32, "l_running")
        self.m = pypto.tensor([tiles.q, 1], pypto.DT_FP32, "m_running")

    def step(self, scores, values, rows, prepare, write, *, first, last, drop=None):
        """Takes one tile.

        scores    Q K^T of the tile, [q, kv] FP32, with its valid shape
        values    V of the tile, [kv, head_dim], with its valid shape
        rows      how many of the q rows exist
        prepare   function from `scores` to what is exponentiated: scale, bias, masks
        write     function that gets o / l [q, head_dim], l and m [q, 1], FP32, of the last tile
        first     condition: is this the first tile of these rows?
        last      condition: is it the last one?
        drop      function applied to the weights on their way to P V (dropout); the denominator does not see it
        """
        # No sg_set_scope here: on 0.2.0 it pulls the matmul before it and these vector operations into one cube task.
        pypto.set_vec_tile_shapes(self.tiles.vec_s, self.tiles.kv)
        scores = prepare(scores)
        if pypto.cond(first):
            m = pypto.amax(scores, -1, True)
            weights = pypto.exp(pypto.sub(scores, m))
            l = pypto.sum(weights, -1, True)
            self._keep(self._times(weights, values, drop), l, m, write, last)
        else:
            o_old, l_old, m_old = (revisit(x, [rows, x.shape[1]]) for x in (self.o, self.l, self.m))
            m = pypto.maximum(m_old, pypto.amax(scores, -1, True))
            weights = pypto.exp(pypto.sub(scores, m))
            decay = pypto.exp(pypto.sub(m_old, m))
            l = pypto.add(pypto.mul(l_old, decay), pypto.sum(weights, -1, True))
            o = self._times(weights, values, drop)
            pypto.set_vec_tile_shapes(self.tiles.vec_o, self.head_dim)
            self._keep(pypto.add(pypto.mul(o_old, decay), o), l, m, write, last)

    def _times(self, weights, values, drop):
        weights = weights if drop is None else drop(weights)
        weights = pypto.cast(weights, values.dtype)
        pypto.set_cube_tile_shapes(*self.tiles.cube_pv)
        return pypto.matmul(weights, values, pypto.DT_FP32)

    def _keep(self, o, l, m, write, last):
        """For the next tile, or, after the last one, for good: then without a detour through the running tensors."""
        pypto.set_vec_tile_shapes(self.tiles.vec_o, self.head_dim)
        if pypto.cond(last):
            write(pypto.div(o, l), l, m)
        else:
            self.o[:], self.l[:], self.m[:] = o, l, m


def partial_attention(scores, values, cube_pv):
    """Attention over one kv tile looked at alone: (o, l, m) that `merge` can join with those of other tiles.

    m = rowmax S; P = exp(S - m); l = rowsum P; o = BF16(P) V, not divided by l. The vector tile is the caller's.

    scores    scaled scores [rows, kv] FP32, with their valid shape
    values    [kv, head_dim], with its valid shape
    cube_pv   cube tile of P V
    """
    m = pypto.amax(scores, -1, True)
    weights = pypto.exp(pypto.sub(scores, m))
    l = pypto.sum(weights, -1, True)
    pypto.set_cube_tile_shapes(*cube_pv)
    return pypto.matmul(pypto.cast(weights, values.dtype), values, pypto.DT_FP32), l, m


def merge(one, other):
    """Joins two partial results (o, l, m) over disjoint keys; symmetric. The vector tile is the caller's."""
    (o_1, l_1, m_1), (o_2, l_2, m_2) = one, other
    m = pypto.maximum(m_1, m_2)
    decay_1, decay_2 = pypto.exp(pypto.sub(m_1, m)), pypto.exp(pypto.sub(m_2, m))
    o = pypto.add(pypto.mul(o_1, decay_1), pypto.mul(o_2, decay_2))
    return o, pypto.add(pypto.mul(l_1, decay_1), pypto.mul(l_2, decay_2)), m


class GradientPair:
    """One tile of query rows against one tile of keys, for one query head: P and dS in BF16 (C1 and V1), and the pair's
    shares of the gradients (C2). dS carries the scale, so that dQ and dK leave the cube unit as they are.

    Source: Dao et al., arXiv:2205.14135, appendix B.4.
    """

    def __init__(self, x, head_dim: int, of_q, of_kv, statistic, prepare, drop=None):
        """Computes P and dS.

        x           has q, k, v, o, do, l and m as matrices, tiles and scale
        of_q        function from a matrix to its tile [q, head_dim]; of_kv: to [kv, head_dim]; statistic: to [q, 1]
        prepare     function from the scaled scores to what is exponentiated: bias, masks
        drop        function that gives the factor of dropout [q, kv]
        """
        self.tiles, self.head_dim = x.tiles, head_dim
        self.q, self.k, self.do = of_q(x.q), of_kv(x.k), of_q(x.do)
        pypto.set_cube_tile_shapes(*x.tiles.cube_qk)
        s = pypto.matmul(self.q, self.k, pypto.DT_FP32, b_trans=True)
        dp = pypto.matmul(self.do, of_kv(x.v), pypto.DT_FP32, b_trans=True)
        pypto.set_vec_tile_shapes(x.tiles.vec_s, head_dim)
        # dO is viewed once more: one view with a valid shape cannot feed both the cube and the vector unit on 0.2.0.
        o, do = (pypto.cast(of_q(matrix), pypto.DT_FP32) for matrix in (x.o, x.do))
        row_sum = pypto.sum(pypto.mul(o, do), -1, True)
        pypto.set_vec_tile_shapes(x.tiles.vec_s, x.tiles.kv)
        s = prepare(pypto.mul(s, x.scale))
        weights = pypto.div(pypto.exp(pypto.sub(s, statistic(x.m))), statistic(x.l))
        kept = weights
        if drop is not None:
            factor = drop()
            kept, dp = pypto.mul(weights, factor), pypto.mul(dp, factor)
        self.p = pypto.cast(kept, pypto.DT_BF16)
        self.ds = pypto.cast(pypto.mul(pypto.mul(weights, pypto.sub(dp, row_sum)), x.scale), pypto.DT_BF16)

    def _product(self, a, b, **transposed):
        k, m = a.shape if transposed else a.shape[::-1]
        pypto.set_cube_tile_shapes(*cube_tile(m, k, self.head_dim))
        product = pypto.matmul(a, b, pypto.DT_FP32, **transposed)
        pypto.set_vec_tile_shapes(self.tiles.vec_o, self.head_dim)
        return product

    def dq(self):
        """This pair's share of dQ, FP32 [q, head_dim]."""
        return self._product(self.ds, self.k)

    def dk(self):
        """This pair's share of dK, FP32 [kv, head_dim]."""
        return self._product(self.ds, self.q, a_trans=True)

    def dv(self):
        """This pair's share of dV, FP32 [kv, head_dim]."""
        return self._product(self.p, self.do, a_trans=True)


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


@dataclass(frozen=True)
class Band:
    """Which columns a query row sees: -before <= column - row - shift <= after; None stands for no limit.

    The shift is 0 (rows and columns aligned at their first element) or, with `at_end`, kv length minus q length
    (aligned at their last). Causal attention is `after=0`.
    """

    before: int | None = None
    after: int | None = None
    at_end: bool = False

    @property
    def limited(self) -> bool:
        return self.before is not None or self.after is not None

    def shift(self, q_len, kv_len):
        return kv_len - q_len if self.at_end else 0

    def rows(self, q_len, kv_len):
        """First and end of the rows that see at least one column; it is one interval. Python or symbolic integers."""
        first, end = 0, q_len * _min(kv_len, 1)  # nobody sees anything of an empty sequence
        if self.after is not None:  # row + shift + after >= 0
            first = _max(-self.shift(q_len, kv_len) - self.after, 0)
        if self.before is not None:  # row + shift - before <= kv_len - 1
            end = _min(kv_len - self.shift(q_len, kv_len) + self.before, end)
        return first, end

    def tiles(self, first_row, rows, q_len, kv_len, tile):
        """First and end of the kv tile numbers that rows [first_row, first_row + rows) see something of."""
        shift = self.shift(q_len, kv_len)
        first, end = 0, kv_len
        if self.before is not None:
            first = _max(first_row + shift - self.before, 0) // tile
        if self.after is not None:
            end = _min(first_row + rows + shift + self.after, kv_len)
        return first, (end + tile - 1) // tile


def _min(a, b):
    return min(a, b) if isinstance(a, int) and isinstance(b, int) else pypto.min(a, b)


def _max(a, b):
    return max(a, b) if isinstance(a, int) and isinstance(b, int) else pypto.max(a, b)


def edges(band: Band, tiles: Tiles, like):
    """Host constants (upper, lower) that `mask_edges` slides over the edges of a band; 1x1 where none is needed.

    With x the column: upper is MASKED where x - row >= kv, lower where x - row < kv, each 0 elsewhere. `like` is a
    FP32 torch tensor on the device where they shall be.
    """
    full = like.new_full((tiles.q, 2 * tiles.kv + tiles.q), MASKED)
    unused = like.new_zeros((1, 1))
    return (unused if band.after is None else full.triu(tiles.kv),
            unused if band.before is None else full.tril(tiles.kv - 1))


def mask_edges(scores, band: Band, upper, lower, tiles: Tiles, diagonal, valid):
    """Adds MASKED to the scores of a tile that lie outside the band.

    upper, lower   the constants of `edges`. A view of `upper` at column kv - 1 - d masks c - r > d, with r and c the
                   row and column in the tile; so one constant serves every diagonal. Likewise `lower`.
    diagonal       row + shift - column of the tile's first element
    valid          valid shape of the tile
    """
    width = [tiles.q, tiles.kv]
    if band.after is not None:
        x = _max(tiles.kv - 1 - (diagonal + band.after), 0)
        scores = pypto.add(scores, tail_view(upper, width, [0, x], valid))
    if band.before is not None:
        x = _min(tiles.kv - (diagonal - band.before), tiles.kv - 1 + tiles.q)
        scores = pypto.add(scores, tail_view(lower, width, [0, x], valid))
    return scores


@dataclass(frozen=True)
class Place:
    """Where the sequence of one (batch, head) pair lies: first rows and columns in the two-dimensional matrices.

    q_row, q_col      in q and o; kv_row, kv_col: in k and v
    stat_row, stat_col   in l and m
    q_len, kv_len     lengths of the sequence
    """

    q_row: object
    q_col: object
    kv_row: object
    kv_col: object
    stat_row: object
    stat_col: object
    q_len: object
    kv_len: object


@dataclass(frozen=True)
class Layout:
    """Compile-time shape of a problem, and where its (batch, head) pairs lie.

    TND    [tokens, heads, d], sequences packed: batch and lengths are not known here (0)
    BSH    [batch, length, heads * d]
    BNSD   [batch, heads, length, d]
    l and m: [tokens, heads, 1] in TND, else [batch, heads, length, 1].
    """

    name: str
    heads: int
    kv_heads: int
    head_dim: int
    batch: int = 0
    q_len: int = 0
    kv_len: int = 0

    def place(self, b, h, cu_seqlens_q=None, cu_seqlens_kv=None) -> Place:
        """The place of query head `h` and of the kv head that it reads. TND needs the cumulative lengths."""
        hkv = kv_head(h, self.heads, self.kv_heads)
        q_col, kv_col = h * self.head_dim, hkv * self.head_dim
        if self.name == "TND":
            q_row, kv_row = cu_seqlens_q[b], cu_seqlens_kv[b]
            q_len, kv_len = cu_seqlens_q[b + 1] - q_row, cu_seqlens_kv[b + 1] - kv_row
            return Place(q_row, q_col, kv_row, kv_col, q_row, h, q_len, kv_len)
        row, lengths = (b * self.heads + h) * self.q_len, (self.q_len, self.kv_len)
        if self.name == "BNSD":
            return Place(row, 0, (b * self.kv_heads + hkv) * self.kv_len, 0, row, 0, *lengths)
        return Place(b * self.q_len, q_col, b * self.kv_len, kv_col, row, 0, *lengths)

    def matrix(self, x):
        """q, k, v, o or a gradient of them (torch) as the matrix that `place` addresses: a view."""
        return {"TND": lambda: x.flatten(1), "BSH": lambda: x.flatten(0, 1), "BNSD": lambda: x.flatten(0, 2)}[self.name]()

    def statistic(self, x):
        """The same for l and m."""
        return x.flatten(1) if self.name == "TND" else x.flatten(0, 2)

    @staticmethod
    def of(name: str, q, k, heads: int) -> "Layout":
        """The layout `name` of these torch tensors."""
        if name == "TND":
            return Layout(name, heads, k.shape[1], q.shape[2])
        if name == "BNSD":
            return Layout(name, heads, k.shape[1], q.shape[3], q.shape[0], q.shape[2], k.shape[2])
        head_dim = q.shape[2] // heads
        return Layout(name, heads, k.shape[2] // head_dim, head_dim, q.shape[0], q.shape[1], k.shape[1])


def sparse_band(sparse_mode: int, pre_tokens: int, next_tokens: int) -> Band:
    """The band of a sparse mode, as torch_npu's fusion attention numbers them.

    0 defaultMask and 1 allMask: no band (their mask comes as a tensor); 2 leftUpCausal; 3 rightDownCausal; 4 band.
    """
    if sparse_mode == 2:
        return Band(after=0)
    if sparse_mode == 3:
        return Band(after=0, at_end=True)
    if sparse_mode == 4:
        return Band(before=pre_tokens, after=next_tokens, at_end=True)
    return Band()


def plane_shape(x):
    """(batch, heads) of a torch tensor [batch or 1, heads or 1, q_len, kv_len], for `plane`; None of None."""
    return None if x is None else tuple(x.shape[:2])


def plane(matrix, shape, q_len, tiles: Tiles, convert=lambda tile: tile):
    """Tiles of such a tensor, given as a matrix: function (b, h) -> function (row, column, valid) -> tile, or None."""

    def of_head(b, h):
        if shape is None:
            return None
        first = ((b if shape[0] > 1 else 0) * shape[1] + (h if shape[1] > 1 else 0)) * q_len
        return lambda row, column, valid: convert(tail_view(matrix, [tiles.q, tiles.kv], [first + row, column], valid))

    return of_head


def dropout_factor(keep_prob: float):
    """Function from a tile of a dropout mask (UINT8, 1 keeps) to the FP32 factor of the weights: 1 / keep_prob or 0."""
    return lambda tile: pypto.mul(pypto.cast(pypto.cast(tile, pypto.DT_FP16), pypto.DT_FP32), 1.0 / keep_prob)


def longest(cu_seqlens) -> int:
    """Length of the longest sequence of a torch tensor of cumulative lengths."""
    bounds = cu_seqlens.tolist()
    return max(end - start for start, end in zip(bounds, bounds[1:]))


def attend(q, k, v, o, l, m, place: Place, head_dim: int, scale: float, band: Band, tiles: Tiles, *,
           edge_masks=(), bias=None, keep=None):
    """Forward attention of one (batch, head) pair: C1-V1-C2-V2 in one loop over kv tiles, loops over q tiles outside.

    q, k, v      two-dimensional inputs; o of their dtype, l and m FP32 outputs; `place` says where they are addressed
    band         which columns a row sees; tiles that nobody sees are not visited, rows that see nothing not written
    edge_masks   what `edges` made for this band and these tiles
    bias         function (first row, first column, valid) -> FP32 tile [q, kv] added to the scaled scores
    keep         function of the same arguments -> FP32 tile that multiplies the weights (dropout, already scaled)
    """
    p = place
    first_row, end_row = band.rows(p.q_len, p.kv_len)
    count = end_row - first_row
    shift = band.shift(p.q_len, p.kv_len)
    for i in pypto.loop((count + tiles.q - 1) // tiles.q, name="LOOP_q", idx_name="i"):
        row, rows = first_row + i * tiles.q, tail(count, i, tiles.q)
        first, end = band.tiles(row, rows, p.q_len, p.kv_len, tiles.kv)
        softmax = OnlineSoftmax(tiles, head_dim)

        def write(o_tile, l_tile, m_tile):
            pypto.assemble(pypto.cast(o_tile, o.dtype), [p.q_row + row, p.q_col], o)
            pypto.assemble(l_tile, [p.stat_row + row, p.stat_col], l)
            pypto.assemble(m_tile, [p.stat_row + row, p.stat_col], m)

        def visit(j, first, last):
            column, columns = j * tiles.kv, tail(p.kv_len, j, tiles.kv)
            valid = [rows, columns]
            q_tile = tail_view(q, [tiles.q, head_dim], [p.q_row + row, p.q_col], [rows, head_dim])
            k_tile = tail_view(k, [tiles.kv, head_dim], [p.kv_row + column, p.kv_col], [columns, head_dim])
            v_tile = tail_view(v, [tiles.kv, head_dim], [p.kv_row + column, p.kv_col], [columns, head_dim])

            def prepare(scores):
                scores = pypto.mul(scores, scale)
                if bias is not None:
                    scores = pypto.add(scores, bias(row, column, valid))
                if band.limited:
                    scores = mask_edges(scores, band, *edge_masks, tiles, row + shift - column, valid)
                return scores

            drop = keep and (lambda weights: pypto.mul(weights, keep(row, column, valid)))
            pypto.set_cube_tile_shapes(*tiles.cube_qk)
            scores = pypto.matmul(q_tile, k_tile, pypto.DT_FP32, b_trans=True)
            softmax.step(scores, v_tile, rows, prepare, write, first=first, last=last, drop=drop)

        # All tiles in one loop, edge or not: so that an unrolled graph holds a whole row of them; see DESIGN.md of
        # flash_attention_mha. It counts from 0: with another start, the 0.2.0 compiler unrolls over the wrong range.
        for t in pypto.loop(end - first, name="LOOP_kv", idx_name="t", unroll_list=list(tiles.unroll)):
            visit(first + t, pypto.is_loop_begin(t), pypto.is_loop_end(t))
