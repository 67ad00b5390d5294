"""Tile shapes of the vector operations: `pypto.set_vec_tile_shapes(…)`."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from pypto_gym.tools.tiles import core
from pypto_gym.tools.tiles.core import DTYPE_BYTES, Estimate
from pypto_gym.tools.tiles.rules import Violation, ceil_align, ceil_div, multiple

EXPRESSIONS = 18_000
"""PyPTO's guide asks for (tiles of the tensor) * (1 + inputs) below this: each is an entry of the expression table."""


@dataclass(frozen=True)
class Elementwise:
    """A chain of vector operations over tensors of one shape.

    inputs   tensors read from global memory; one is written
    buffers  tiles that are live in UB at the same time; default: the inputs and the output

    Raises ValueError for a rank that is not 1 to 4 and for a dimension below 1.
    """

    shape: tuple[int, ...]
    dtype: str = "fp32"
    inputs: int = 2
    buffers: int | None = None

    def __post_init__(self):
        core.check_dtype(self.dtype, tuple(DTYPE_BYTES))
        if not 1 <= len(self.shape) <= 4 or min(self.shape) < 1:
            raise ValueError(f"shape: got {self.shape}, takes 1 to 4 dimensions of 1 or more")
        if self.inputs < 1 or self.live < 1:
            raise ValueError(f"inputs, buffers: got {self.inputs}, {self.buffers}, takes 1 or more")

    @property
    def size(self) -> int:
        return DTYPE_BYTES[self.dtype]

    @property
    def live(self) -> int:
        return self.inputs + 1 if self.buffers is None else self.buffers

    @property
    def block(self) -> int:
        """Elements of 32 bytes, the unit of UB."""
        return 32 // self.size


@dataclass(frozen=True)
class Choice:
    tile: tuple[int, ...]
    estimate: Estimate


def check(work: Elementwise, tile: tuple[int, ...]) -> list[Violation]:
    """Every rule that `tile` breaks for `work`."""
    found: list[Violation] = []
    rank = len(work.shape)
    if len(tile) != rank:
        why = "the compiler refuses it" if len(tile) < rank else "the compiler takes the first ones, silently"
        found.append(Violation("rank", f"tile has {len(tile)} dimensions, takes {rank} as the tensor has ({why})", {}))
        return found
    for axis, value in enumerate(tile):
        if value < 1 and axis < rank - 1:
            found.append(Violation("range", f"tile[{axis}] = {value}, takes 1 or more", {f"tile[{axis}]": 1}))
    multiple(found, f"tile[{rank - 1}]", tile[-1], work.block, f"32 bytes of {work.dtype}")
    if min(tile) < 1:
        return found
    size = math.prod(tile) * work.size * work.live
    if size > core.UB_USABLE:
        axis = max(range(rank), key=lambda axis: tile[axis] // (work.block if axis == rank - 1 else 1))  # the one to shrink
        step = work.block if axis == rank - 1 else 1
        most = core.UB_USABLE * tile[axis] // size // step * step
        says = f"{'*'.join(map(str, tile))}*{work.size}, {work.live} buffers = {size:,} bytes, UB holds {core.UB_USABLE:,}"
        found.append(Violation("UB", says, {f"tile[{axis}]": most} if most else {}))
    tiles = math.prod(ceil_div(n, t) for n, t in zip(work.shape, tile))
    if tiles * (1 + work.inputs) >= EXPRESSIONS:
        says = f"{tiles:,} tiles * (1 + {work.inputs} inputs) = {tiles * (1 + work.inputs):,}, takes less than {EXPRESSIONS:,}"
        found.append(Violation("expressions", f"{says}; loop over the tensor or take a larger tile", {}))
    return found


def _model(work: Elementwise, tiles, elements):
    nbytes = elements * work.size
    compute = work.inputs * nbytes / 128  # the vector unit's 128 bytes in a cycle, one operation for each input
    each = work.inputs * core.load(nbytes) + compute + core.store(nbytes)
    return core.waves(tiles, each, core.VECTOR_CORES)


def estimate(work: Elementwise, tile: tuple[int, ...]) -> Estimate:
    """What `tile` costs by the model of `core`: each tile is one task on one of 48 vector cores.

    Raises ValueError with every broken rule when the tile is not legal.
    """
    broken = check(work, tile)
    if broken:
        raise ValueError("tile: " + "; ".join(map(str, broken)))
    tiles = math.prod(ceil_div(n, t) for n, t in zip(work.shape, tile))
    elements = math.prod(tile)
    return Estimate(
        cycles=round(float(_model(work, tiles, elements))),
        tasks=tiles,
        waves=ceil_div(tiles, core.VECTOR_CORES),
        traffic=math.prod(work.shape) * work.size * work.inputs,
        fill=math.prod(work.shape) / (tiles * elements),
        memory={"UB": elements * work.size * work.live / core.UB},
    )


def solve(work: Elementwise, top: int = 10) -> list[Choice]:
    """The `top` cheapest tiles over all legal ones; of equals, the one whose rows are longest.

    Of the values that cut an axis into the same number of tiles only the smallest is taken: the larger ones are padding.
    """
    axes = []
    for axis, length in enumerate(work.shape):
        step = work.block if axis == len(work.shape) - 1 else 1
        axes.append(np.array(sorted({ceil_align(ceil_div(length, parts), step) for parts in range(1, length + 1)})))
    grid = [axis.ravel() for axis in np.meshgrid(*axes, indexing="ij")]
    elements, tiles = 1, 1
    for length, tile in zip(work.shape, grid):
        elements, tiles = elements * tile, tiles * -(-length // tile)
    legal = (elements * work.size * work.live <= core.UB_USABLE) & (tiles * (1 + work.inputs) < EXPRESSIONS)
    if not legal.any():
        raise ValueError(f"shape: {work.shape} has no legal tile with {work.live} buffers; loop over it")
    grid, elements, tiles = [axis[legal] for axis in grid], elements[legal], tiles[legal]
    cycles = _model(work, tiles, elements)
    order = np.lexsort((*(-axis for axis in grid), cycles))[:top]
    return [Choice(tile, estimate(work, tile)) for tile in (tuple(int(axis[i]) for axis in grid) for i in order)]
