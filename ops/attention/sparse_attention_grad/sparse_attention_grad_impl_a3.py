"""Gradients of attention to selected keys, tuned for Atlas A3: tiles of queries against tiles of keys, under a mask.

Two passes, one over tiles of queries for dq and one over tiles of keys for dk and dv, so that nothing is added
atomically and the order of every sum is fixed. A pass visits only the pairs of tiles in which some query selected some
key; the host lists them. Where no tile of queries has more than one such pair, the second pass writes dq, too, and is
the only one.
"""

from typing import NamedTuple

import pypto

from ..atoms import MASKED, GradientPair, Tiles, accumulate, cube_tiles, divisor, tail, tail_view

Q_SIZES, KV_SIZES = (64, 128, 256), (64, 128, 256, 512)
UNROLL = (8, 4, 2, 1)
"""Pairs of one graph of the second pass: its sums are a chain, and within a graph a link of it costs little."""


def choose_tiles(total_q: int, total_kv: int, head_dim: int) -> Tiles:
    """The smallest tiles that hold everything, else the largest. Three FP32 tiles of scores fit UB; one that is spilled
    loses its valid shape."""
    q = next((size for size in Q_SIZES if total_q <= size), Q_SIZES[-1])
    kv = next((size for size in KV_SIZES if total_kv <= size), KV_SIZES[-1])
    cube_qk, cube_pv = cube_tiles(q, kv, head_dim)
    return Tiles(q, kv, divisor(cube_qk[0][0], 8192 // kv, 8), 64, cube_qk, cube_pv)


class Visits(NamedTuple):
    """The pairs (kv head, tile of queries, tile of keys) with a selection in them, in this order; INT32 but for masks.

    masks         FP32 [pairs * tiles.q, tiles.kv]: 0 where a query of the pair selected a key, else `MASKED`
    first_of_q    [kv_heads * q tiles + 1]: the first pair of each tile of queries, and the end
    kv_tile       [pairs]
    first_of_kv   [kv_heads * kv tiles + 1]: where each tile of keys begins in `pair` and `q_tile`, which go by these
    pair, q_tile  [pairs]
    """

    masks: object
    first_of_q: object
    kv_tile: object
    first_of_kv: object
    pair: object
    q_tile: object


def visits(rows, counts, total_kv: int, tiles: Tiles, like) -> tuple[Visits, int, int]:
    """The visits of a selection (torch tensors as `launch` takes them; `like` is FP32), and the most that one tile of
    queries and one tile of keys have."""
    total_q, kv_heads, n = rows.shape
    q_tiles, kv_tiles = -(-total_q // tiles.q), -(-total_kv // tiles.kv)
    used = rows.new_ones(n).cumsum(0) <= counts[..., None]
    query, head, place = used.nonzero().unbind(1)
    key = rows[query, head, place].long() // kv_heads
    number = (head * q_tiles + query // tiles.q) * kv_tiles + key // tiles.kv
    pairs, pair_of = number.unique(return_inverse=True)
    masks = like.new_full((len(pairs), tiles.q, tiles.kv), MASKED)
    masks[pair_of, query % tiles.q, key % tiles.kv] = 0.0
    of_q, kv_tile = pairs // kv_tiles, pairs % kv_tiles
    of_kv = of_q // q_tiles * kv_tiles + kv_tile
    pair = of_kv.argsort(stable=True)
    per_q, per_kv = of_q.bincount(minlength=kv_heads * q_tiles), of_kv.bincount(minlength=kv_heads * kv_tiles)
    first_of_q, first_of_kv = (x.new_tensor([0, *x.cumsum(0).tolist()]) for x in (per_q, per_kv))
    lists = first_of_q, kv_tile, first_of_kv, pair, (of_q % q_tiles)[pair]
    return Visits(masks.flatten(0, 1), *(x.to(rows.dtype) for x in lists)), int(per_q.max()), int(per_kv.max())


@pypto.frontend.jit(
    runtime_options={"stitch_function_max_num": 128},
    pass_options={"cube_l1_reuse_setting": {-1: 4}, "vec_nbuffer_setting": {-1: 4}},
)
def kernel(
    q: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_BF16),
    k: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_BF16),
    v: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_BF16),
    o: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_BF16),
    do: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_BF16),
    l: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_FP32),
    m: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_FP32),
    masks: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_FP32),
    first_of_q: pypto.Tensor([pypto.DYNAMIC], pypto.DT_INT32),
    kv_tile: pypto.Tensor([pypto.DYNAMIC], pypto.DT_INT32),
    first_of_kv: pypto.Tensor([pypto.DYNAMIC], pypto.DT_INT32),
    pair: pypto.Tensor([pypto.DYNAMIC], pypto.DT_INT32),
    q_tile: pypto.Tensor([pypto.DYNAMIC], pypto.DT_INT32),
    dq: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_FP32),
    dk: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_FP32),
    dv: pypto.Tensor([pypto.DYNAMIC, ...], pypto.DT_FP32),
    group, head_dim, scale, tiles, unroll, one_pass,
):  # fmt: skip
    """Matrices [tokens, heads * head_dim], l and m [tokens, heads], then a `Visits`."""
    pypto.experimental.set_operation_options(combine_axis=True)
    x = Problem(q, k, v, o, do, l, m, masks, group, head_dim, scale, tiles)
    if not one_pass:
        first_pass(x, first_of_q, kv_tile, dq)
    second_pass(x, first_of_kv, pair, q_tile, dk, dv, unroll, dq if one_pass else None)


class Problem(NamedTuple):
    """What both passes read, and what is known when the kernel is traced."""

    q: object
    k: object
    v: object
    o: object
    do: object
    l: object
    m: object
    masks: object
    group: int
    head_dim: int
    scale: float
    tiles: Tiles


def pair_of(x: Problem, number, head, i, j) -> GradientPair:
    """Pair `number` of the visits: tile of queries `i` against tile of keys `j`, for one query head."""
    tiles, rows, columns = x.tiles, tail(x.q.shape[0], i, x.tiles.q), tail(x.k.shape[0], j, x.tiles.kv)

    def of_q(matrix, width=x.head_dim):
        return tail_view(matrix, [tiles.q, width], [i * tiles.q, head * width], [rows, width])

    def of_kv(matrix):
        place = [j * tiles.kv, head // x.group * x.head_dim]
        return tail_view(matrix, [tiles.kv, x.head_dim], place, [columns, x.head_dim])

    def prepare(s):
        return pypto.add(s, tail_view(x.masks, [tiles.q, tiles.kv], [number * tiles.q, 0], [rows, columns]))

    return GradientPair(x, x.head_dim, of_q, of_kv, lambda matrix: of_q(matrix, 1), prepare)


def first_pass(x: Problem, first_of_q, kv_tile, dq):
    """dq, tile of queries by tile of queries."""
    q_rows, head_dim = x.tiles.q, x.head_dim
    q_tiles = (x.q.shape[0] + q_rows - 1) // q_rows
    for a in pypto.loop(first_of_q.shape[0] - 1, name="LOOP_dq_q", idx_name="a"):
        for g in pypto.loop(x.group, name="LOOP_dq_head", idx_name="g"):
            head, i = a // q_tiles * x.group + g, a % q_tiles
            dq_sum = pypto.tensor([q_rows, head_dim], pypto.DT_FP32, "dq_sum")

            def write(total):
                pypto.assemble(total, [i * q_rows, head * head_dim], dq)

            for t in pypto.loop(first_of_q[a + 1] - first_of_q[a], name="LOOP_dq_kv", idx_name="t"):
                number = first_of_q[a] + t
                pair = pair_of(x, number, head, i, kv_tile[number])
                ends = pypto.is_loop_begin(t), pypto.is_loop_end(t)
                accumulate([dq_sum], [pair.dq()], [tail(x.q.shape[0], i, q_rows), head_dim], *ends, write)


def second_pass(x: Problem, first_of_kv, visit, q_tile, dk, dv, unroll, dq=None):
    """dk and dv, tile of keys by tile of keys, over the heads of the group and tiles of queries; dq, too, if given."""
    keys, head_dim = x.tiles.kv, x.head_dim
    kv_tiles = (x.k.shape[0] + keys - 1) // keys
    for c in pypto.loop(first_of_kv.shape[0] - 1, name="LOOP_dkv_kv", idx_name="c"):
        dk_sum = pypto.tensor([keys, head_dim], pypto.DT_FP32, "dk_sum")
        dv_sum = pypto.tensor([keys, head_dim], pypto.DT_FP32, "dv_sum")
        pairs = first_of_kv[c + 1] - first_of_kv[c]

        def write(dk_total, dv_total):
            at = [c % kv_tiles * keys, c // kv_tiles * head_dim]
            pypto.assemble(dk_total, at, dk)
            pypto.assemble(dv_total, at, dv)

        for t in pypto.loop(pairs * x.group, name="LOOP_dkv_q", idx_name="u", unroll_list=unroll):
            head, place = c // kv_tiles * x.group + t // pairs, first_of_kv[c] + t % pairs
            i = q_tile[place]
            pair = pair_of(x, visit[place], head, i, c % kv_tiles)
            if dq is not None:
                pypto.assemble(pair.dq(), [i * x.tiles.q, head * head_dim], dq)
            ends = pypto.is_loop_begin(t), pypto.is_loop_end(t)
            accumulate([dk_sum, dv_sum], [pair.dk(), pair.dv()], [tail(x.k.shape[0], c % kv_tiles, keys), head_dim], *ends, write)


def launch(*, q, k, v, rows, counts, scale, o, l, m, do, dq, dk, dv):
    """Writes dq, dk and dv, which come zeroed: what no selection reaches is not visited."""
    group, head_dim = q.shape[1] // k.shape[1], q.shape[2]
    tiles = choose_tiles(len(q), len(k), head_dim)
    l = l.masked_fill(l == 0, 1.0)  # of queries that selected nothing: their weights are 0, and 0 / 0 would not be
    lists, most_of_q, most_of_kv = visits(rows, counts, len(k), tiles, l)
    unroll = [next(size for size in UNROLL if size <= most_of_kv * group), 1]
    kernel(
        *(x.flatten(1) for x in (q, k, v, o, do, l, m)), *lists, *(x.flatten(1) for x in (dq, dk, dv)),
        group, head_dim, scale, tiles, unroll, most_of_q == 1,
    )  # fmt: skip
