"""Tiles of conv_backward_input as the implicit GEMM of ops/conv, which every release runs.

dx of one image and one phase is, transposed, the product [Cin, K] x [K, positions] with K = kernel positions * Cout.
Vector tasks build the right operand, the columns, from shifted rectangles of dy; with a stride they scatter the result.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pypto_gym.ops.conv import geometry
from pypto_gym.ops.conv.geometry import Tiles
from pypto_gym.tools.tiles import core, matmul
from pypto_gym.tools.tiles.conv_backward_input import Layer
from pypto_gym.tools.tiles.core import Estimate
from pypto_gym.tools.tiles.rules import Violation, ceil_align, ceil_div, fits, multiple

POSITIONS = 512
"""Positions of dx beside which 64 channels fill L0C: the largest N tile that `solve` tries."""

PACKS = (2048, 1024, 512, 256, 128, 64, 32, 16)
"""Pairs of one transpose that `solve` tries; the first that fits UB is taken."""

READ_PLANE, WRITE_PLANE = 5, 4  # cycles for each channel of a copy of rectangles, beside those of `core`
SCATTER = 2.25  # cycles for each element that is written to every stride-th place
DISPATCH, DISPATCH_LAST = 280, 130  # a task beside its own time; less for the scatter, which nothing waits for
JOINED = 10_950  # of one vector task that the compiler still makes of several; its option pg_upper_bound is about that
STRIPS = 6  # tasks that make the zeros of single blocks
HANDOVER = 2700  # from tasks of one kind to those of the next


@dataclass(frozen=True)
class Choice:
    tile: Tiles
    estimate: Estimate


@dataclass(frozen=True)
class _Phase:
    """One of the stride * stride products of a layer.

    blocks    kernel positions that reach it
    bordered  of these, how many the strips of zeros on the left or the right belong to
    direct    whether dy itself is the right operand
    """

    blocks: int
    bordered: int
    direct: bool


def phase_grid(layer: Layer) -> tuple[int, int]:
    """Rows and columns of a phase."""
    return ceil_div(layer.hin, layer.stride[0]), ceil_div(layer.win, layer.stride[1])


def _phases(layer: Layer) -> list[_Phase]:
    rows, cols = phase_grid(layer)

    def bordered(block):
        _, _, w0, w1 = geometry.inside(block, 0, rows, cols, layer.hout, layer.wout)
        return w0 > 0 or w1 < cols

    phases = geometry.phases((layer.kh, layer.kw), layer.stride, layer.padding, layer.dilation)
    return [
        _Phase(len(blocks), sum(map(bordered, blocks)), geometry.whole(blocks, layer.hout, layer.wout, rows, cols))
        for blocks in phases.values()
    ]


def _pack_bytes(layer: Layer, pairs: int) -> int:
    """UB that one transpose of the weight takes: source, scratch and result."""
    positions = layer.kh * layer.kw
    return pairs * (2 * ceil_align(positions, 16) + positions) * layer.size


def _pack_tasks(layer: Layer, pairs: int) -> int:
    return ceil_div(layer.cin * layer.cout, pairs) if layer.kh * layer.kw > 1 else 0


def _pack_room(layer: Layer, pairs: int) -> int:
    """UB that the transposes of one task take. More than 48 are joined, and then two are in UB at once."""
    return _pack_bytes(layer, pairs) * (1 + (_pack_tasks(layer, pairs) > core.VECTOR_CORES))


def _copy_bytes(layer: Layer, channels: int, rows: int) -> int:
    """UB that one copy into the columns takes: the rectangle and a strip of zeros."""
    return 2 * channels * rows * ceil_align(phase_grid(layer)[1], 16) * layer.size


def check(layer: Layer, tile: Tiles) -> list[Violation]:
    """Every rule that `tile` breaks for `layer`: those of the product, and those of the vector tasks around it."""
    rows, cols = phase_grid(layer)
    found: list[Violation] = []
    limits = (("rows", tile.rows, rows), ("channels", tile.channels, layer.cout), ("pack", tile.pack, None))
    for field, value, most in limits:
        if value < 1 or most and value > most:
            says = f"{field} = {value}, takes 1 to {most}" if most else f"{field} = {value}, takes 1 or more"
            found.append(Violation("range", says, {field: min(max(value, 1), most or 1)}))
    if found:
        return found
    multiple(found, "pack", tile.pack, 16, "a transpose works on 16 x 16")
    longest = max(phase.blocks for phase in _phases(layer)) * layer.cout
    product = matmul.Product(layer.cin, longest, tile.rows * cols, layer.dtype, a_trans=True)
    found += matmul.check(product, matmul.Tile.of(list(tile.m), list(tile.k), list(tile.n)))
    fits(found, "UB", core.UB_USABLE, "a copy into the columns: channels*rows",
         lambda channels, rows: _copy_bytes(layer, channels, rows),
         {"channels": tile.channels, "rows": tile.rows}, {"channels": 1, "rows": 1})  # fmt: skip
    if _pack_tasks(layer, tile.pack):
        fits(found, "UB", core.UB_USABLE, "transposes of the weight: pack", lambda pack: _pack_room(layer, pack),
             {"pack": tile.pack}, {"pack": 16})  # fmt: skip
    return found


def _read(channels, plane):
    """Cycles of a copy of `channels` rectangles of `plane` bytes from global memory."""
    return core.READ_LATENCY + channels * (READ_PLANE + plane / core.READ_RATE)


def _write(channels, plane):
    return core.WRITE_LATENCY + channels * (WRITE_PLANE + plane / core.WRITE_RATE)


class _Lane:
    """Tasks of one kind. They overlap with what comes before and after: no whole waves, but at least the longest of them."""

    def __init__(self, cores: int, dispatch: int = DISPATCH):
        self.cores, self.dispatch, self.tasks, self.work, self.longest = cores, dispatch, 0, 0, 0

    def add(self, tasks, cycles):
        self.tasks, self.work = self.tasks + tasks, self.work + tasks * cycles
        self.longest = np.maximum(self.longest, cycles)

    @property
    def cycles(self):
        return np.maximum(self.work / self.cores, self.longest) + self.tasks * self.dispatch


def _model(layer: Layer, rows, m, k0, k_weight, k_columns, n, channels, pack) -> tuple:
    """(cycles, tasks, cube tasks, traffic, multiply-adds with padding) of tiles given as integers or arrays."""
    grid_rows, cols = phase_grid(layer)
    size, cin, cout = layer.size, layer.cin, layer.cout
    tiles = -(-grid_rows // rows)  # of rows
    positions = rows * cols
    heights = -(-cin // m)
    products = layer.batch * tiles * heights * -(-positions // n)  # of one phase
    pieces = -(-cout // channels)
    packing, building = _Lane(core.VECTOR_CORES), _Lane(core.VECTOR_CORES)
    multiplying, scattering = _Lane(core.CUBE_CORES), _Lane(core.VECTOR_CORES, DISPATCH_LAST)
    traffic = padded = 0

    transposes = _pack_tasks(layer, pack)
    if transposes:
        joined = ceil_div(transposes, core.VECTOR_CORES)
        writes = 1 if layer.stride == (1, 1) else layer.kh * layer.kw
        nbytes = pack * layer.kh * layer.kw * size
        each = core.load(nbytes) + writes * core.WRITE_LATENCY + nbytes / core.WRITE_RATE
        packing.add(ceil_div(transposes, joined), joined * each)

    for phase in _phases(layer):
        if layer.stride != (1, 1):
            written = np.minimum(np.vectorize(geometry.scattered)(positions), np.minimum(m, cin))
            parts = products * -(-np.minimum(m, cin) // written)
            scattering.add(parts, core.READ_LATENCY + SCATTER * written * positions)
        if not phase.blocks:
            continue
        k = phase.blocks * cout
        left, right = np.minimum(k_weight, k), np.minimum(k_columns, k)
        if not phase.direct:
            again = 1 + phase.bordered / phase.blocks  # a block with strips of zeros is copied twice
            plane = positions * size
            read, write = pieces * _read(channels, plane), pieces * _write(channels, plane)
            # Blocks that one product alone reads in one piece are one task, if the compiler finds that short enough.
            joint = np.where((right % cout == 0) & (k % right == 0) & (heights == 1), right // cout, 1)
            joint = np.where(joint * (read + write) <= JOINED, joint, 1)
            strips = layer.batch * pieces * np.where((joint == 1) & (phase.bordered > 0), STRIPS, 0)
            building.add(strips, core.store(channels * rows * 32))
            each = joint * again * read + write / pieces
            building.add(layer.batch * tiles * (phase.blocks // joint), each)
            traffic = traffic + layer.batch * tiles * phase.blocks * again * cout * plane
        chunks = -(-k // np.minimum(left, right))
        reads = -(-k // left) * core.READ_LATENCY + k * m * size / core.READ_RATE
        reads = reads + -(-k // right) * core.READ_LATENCY + k * n * size / core.READ_RATE
        depth = np.minimum(left, right)
        each = core.task(
            chunks=chunks,
            read=reads / chunks,
            compute=core.product(m, n, depth, m, n, np.minimum(k0, depth), layer.dtype),
            write=core.store(m * n * size),
            doubled=(m * left * np.where(left < k, 2, 1) + n * right * np.where(right < k, 2, 1)) * size <= core.L1,
        )
        multiplying.add(products, each)
        traffic = traffic + products * k * (m + n) * size
        padded = padded + products * m * n * k
    lanes = [lane for lane in (packing, building, multiplying, scattering) if np.any(lane.tasks)]
    cycles = sum(lane.cycles for lane in lanes) + (len(lanes) - 1) * HANDOVER
    return cycles, sum(lane.tasks for lane in lanes), multiplying.tasks, traffic, padded


def estimate(layer: Layer, tile: Tiles) -> Estimate:
    """What `tile` costs; the model is in README.md.

    Raises ValueError with every broken rule when the tile is not legal.
    """
    broken = check(layer, tile)
    if broken:
        raise ValueError("tile: " + "; ".join(map(str, broken)))
    m, n, k0 = tile.m[0], tile.n[0], tile.k[0]
    k_weight, k_columns = tile.k[1], tile.k[-1]
    sizes = (tile.rows, m, k0, k_weight, k_columns, n, tile.channels, tile.pack)
    cycles, tasks, cubes, traffic, padded = _model(layer, *sizes)
    rows, cols = phase_grid(layer)
    blocks = [phase.blocks for phase in _phases(layer)]
    return Estimate(
        cycles=round(float(cycles)),
        tasks=int(tasks),
        waves=ceil_div(int(cubes), core.CUBE_CORES),
        traffic=int(traffic),
        fill=layer.batch * rows * cols * layer.cin * sum(blocks) * layer.cout / int(padded),
        memory={
            "L1": (m * min(k_weight, max(blocks) * layer.cout) + n * k_columns) * layer.size / core.L1,
            "L0A": m * k0 * layer.size / core.L0A,
            "L0B": k0 * n * layer.size / core.L0B,
            "L0C": m * n * 4 / core.L0C,
            "UB": _copy_bytes(layer, tile.channels, tile.rows) / core.UB,
        },
    )


def solve(layer: Layer, top: int = 10) -> list[Choice]:
    """The `top` cheapest tiles over the legal lattice.

    Of the values that cut an axis into the same number of pieces only the smallest is tried. n is the positions of the
    rows of a task, up to 512; kL0 the largest that fits L0 once or twice; channels and pack the largest that fit UB,
    since they make the fewest copies; kL1 of the columns whole kernel positions, or a part of one that divides Cout.

    Raises ValueError when no tile is legal.
    """
    grid_rows, cols = phase_grid(layer)
    longest = max(phase.blocks for phase in _phases(layer)) * layer.cout
    pack = next(pairs for pairs in PACKS if _pack_room(layer, pairs) <= core.UB_USABLE or pairs == PACKS[-1])
    deepest = ceil_align(longest, 16)
    depths = {d for d in _pieces(deepest, 16, deepest) if layer.cout % 16 or d % layer.cout == 0 or layer.cout % d == 0}
    depths |= {d for d in range(layer.cout, longest + 1, layer.cout) if d % 16 == 0}
    grid = []
    for rows in sorted(_pieces(grid_rows, 1, max(1, POSITIONS // cols))):
        n = min(ceil_align(rows * cols, 16), POSITIONS)
        most = core.UB_USABLE // _copy_bytes(layer, 1, rows)
        channels = ceil_div(layer.cout, ceil_div(layer.cout, most)) if most else 0
        for m in sorted(_pieces(layer.cin, 16, min(256, core.L0C // 4 // n // 16 * 16))):
            for right in sorted(depths):
                whole = core.L0A // layer.size // max(m, n)
                steps = {max((k for k in range(16, min(room, right) + 1, 16) if right % k == 0), default=0)
                         for room in (whole, whole // 2)}  # fmt: skip
                for times in _pieces(ceil_div(deepest, right), 1, ceil_div(deepest, right)):
                    grid += [(rows, m, k0, right * times, right, n, channels) for k0 in steps if k0]
    rows, m, k0, left, right, n, channels = np.array(grid).T
    legal = (channels > 0) & ((m * left + n * right) * layer.size <= core.L1)
    if not legal.any():
        raise ValueError(f"layer: no tile fits: kernel {layer.kh}x{layer.kw} on {layer.win} columns")
    axes = [axis[legal] for axis in (rows, m, k0, left, right, n, channels)]
    cycles = _model(layer, *axes, pack)[0]
    choices = []
    for i in np.lexsort((-axes[0], cycles))[:top]:
        rows, m, k0, left, right, n, channels = (int(axis[i]) for axis in axes)
        tile = Tiles(rows, (m, m), (k0, left, right), (n, n), channels, pack)
        choices.append(Choice(tile, estimate(layer, tile)))
    return choices


def _pieces(length: int, step: int, most: int) -> set[int]:
    """The smallest multiples of `step` up to `most` that cut `length` into each possible number of pieces."""
    return {size for parts in range(1, length + 1) if (size := ceil_align(ceil_div(length, parts), step)) <= most}
