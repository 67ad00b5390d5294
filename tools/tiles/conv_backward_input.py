"""Tile shapes of conv_backward_input: dx of a 2-D convolution as the product (Hin*Win, Cout*Kh*Kw) x (Cout*Kh*Kw, Cin).

The rules are those that PyPTO documents for `pypto.set_convbp_input_tile_shapes` and `pypto.conv_backward_input`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import yaml

from pypto_gym.tools.tiles import core
from pypto_gym.tools.tiles.core import DTYPE_BYTES, Estimate
from pypto_gym.tools.tiles.rules import Violation, ceil_align, ceil_div, fits, multiple

CHANNELS = 16
"""Cin0 and Cout0: channels that one cube fractal takes."""


@dataclass(frozen=True)
class Layer:
    """A convolution layer; `batch` to `win` are the shape of its input (of dx), `cout` to `kw` that of its weight.

    Raises ValueError for a dtype that is neither fp16 nor bf16, and for a kernel that is larger than the padded input.
    """

    batch: int
    cin: int
    hin: int
    win: int
    cout: int
    kh: int
    kw: int
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    dtype: str = "bf16"

    def __post_init__(self):
        core.check_dtype(self.dtype, ("fp16", "bf16"))
        if min(self.batch, self.cin, self.hin, self.win, self.cout, self.kh, self.kw, *self.stride, *self.dilation) < 1:
            raise ValueError(f"layer: got {self}, takes positive sizes, strides and dilations")
        if min(self.padding) < 0:
            raise ValueError(f"padding: got {self.padding}, takes 0 or more")
        if self.hout < 1 or self.wout < 1:
            raise ValueError(f"weight: kernel {self.kh}x{self.kw} is larger than the padded input {self.hin}x{self.win}")

    @property
    def hout(self) -> int:
        return (self.hin + 2 * self.padding[0] - (self.kh - 1) * self.dilation[0] - 1) // self.stride[0] + 1

    @property
    def wout(self) -> int:
        return (self.win + 2 * self.padding[1] - (self.kw - 1) * self.dilation[1] - 1) // self.stride[1] + 1

    @property
    def size(self) -> int:
        """Bytes of an element."""
        return DTYPE_BYTES[self.dtype]

    @property
    def k(self) -> int:
        """The K axis, with Cout filled up to whole fractals."""
        return ceil_align(self.cout, CHANNELS) * self.kh * self.kw

    @property
    def k_step(self) -> int:
        return CHANNELS * self.kh * self.kw

    def rows(self, m_l1):
        """Rows and columns of the output gradient that `m_l1` positions of dx reach, in steps of one (halo included).

        PyPTO documents them as houtL1 and woutL1. Takes integers or arrays.
        """
        height = np.minimum(-(-m_l1 // self.win) + (self.kh - 1) * self.dilation[0], (self.hout - 1) * self.stride[0] + 1)
        width = np.minimum(
            np.minimum(m_l1, self.win) + (self.kw - 1) * self.dilation[1], (self.wout - 1) * self.stride[1] + 1
        )
        return height, width


@dataclass(frozen=True)
class ConvBpTileL1Info:
    """Tile in L1, with PyPTO's field names and their order: M (positions of dx), K (Cout*Kh*Kw), N (Cin)."""

    tileML1: int
    tileKL1: int
    tileNL1: int


@dataclass(frozen=True)
class ConvBpTileL0Info:
    """Tile in L0, with PyPTO's field names and their order."""

    tileML0: int
    tileKL0: int
    tileNL0: int


@dataclass(frozen=True)
class Tile:
    l1: ConvBpTileL1Info
    l0: ConvBpTileL0Info

    @classmethod
    def of(cls, l1: tuple[int, int, int], l0: tuple[int, int, int]) -> "Tile":
        """From (M, K, N) of both levels, the order that PyPTO's constructors have."""
        return cls(ConvBpTileL1Info(*map(int, l1)), ConvBpTileL0Info(*map(int, l0)))


@dataclass(frozen=True)
class Choice:
    tile: Tile
    estimate: Estimate


def smallest(layer: Layer) -> Tile:
    """The tile of PyPTO's own example: M 16 (Win, where 16 breaks the rule for M), K 16*Kh*Kw, N 16, and 16 each in L0."""
    m = 16 if layer.win >= 16 or 16 % layer.win == 0 else layer.win
    return Tile.of((m, layer.k_step, CHANNELS), (16, 16, 16))


def networks() -> dict[str, dict[str, Layer]]:
    """The layers on record: network -> name of the layer -> layer."""
    text = (Path(__file__).parent / "networks.yaml").read_text(encoding="utf-8")
    return {
        network: {
            name: Layer(1, cin, size, size, cout, kernel, kernel, (stride, stride), (padding, padding))
            for name, (cin, size, cout, kernel, stride, padding) in layers.items()
        }
        for network, layers in yaml.safe_load(text).items()
    }


def check(layer: Layer, tile: Tile) -> list[Violation]:
    """Every rule that `tile` breaks for `layer`."""
    m1, k1, n1 = tile.l1.tileML1, tile.l1.tileKL1, tile.l1.tileNL1
    m0, k0, n0 = tile.l0.tileML0, tile.l0.tileKL0, tile.l0.tileNL0
    found: list[Violation] = []
    if m1 <= 0:
        found.append(Violation("range", f"tileML1 = {m1}, takes 1 or more", {"tileML1": 1}))
    elif m1 > layer.win and m1 % layer.win:
        below = m1 // layer.win * layer.win
        near = below if m1 - below <= below + layer.win - m1 else below + layer.win
        says = f"tileML1 = {m1}, takes at most Win = {layer.win} or a multiple of it (a tile is whole rows of dx)"
        found.append(Violation("align", says, {"tileML1": near}))
    multiple(found, "tileNL1", n1, CHANNELS, "Cin0 = 16")
    multiple(found, "tileKL1", k1, layer.k_step, f"Cout0*Kh*Kw = 16*{layer.kh}*{layer.kw}")
    for field, value, bound, of in (
        ("tileML0", m0, ceil_align(max(m1, 1), 16), "tileML1 filled up to 16"),
        ("tileKL0", k0, k1, "tileKL1"),
        ("tileNL0", n0, n1, "tileNL1"),
    ):
        multiple(found, field, value, 16, "a cube fractal")
        if value > bound:
            nearest = {field: bound // 16 * 16} if bound >= 16 else {}
            found.append(Violation("order", f"{field} = {value}, takes at most {of} = {bound}", nearest))

    if min(m1, k1, n1, m0, k0, n0) > 0:
        size = layer.size
        fits(found, "L0A", core.L0A, f"tileML0*tileKL0*{size}", lambda tileML0, tileKL0: tileML0 * tileKL0 * size,
             {"tileML0": m0, "tileKL0": k0}, {"tileKL0": 16, "tileML0": 16})  # fmt: skip
        fits(found, "L0B", core.L0B, f"tileKL0*tileNL0*{size}", lambda tileKL0, tileNL0: tileKL0 * tileNL0 * size,
             {"tileKL0": k0, "tileNL0": n0}, {"tileKL0": 16, "tileNL0": 16})  # fmt: skip
        fits(found, "L0C", core.L0C, "tileML0*tileNL0*4", lambda tileML0, tileNL0: tileML0 * tileNL0 * 4,
             {"tileML0": m0, "tileNL0": n0}, {"tileML0": 16, "tileNL0": 16})  # fmt: skip
        height, width = (int(v) for v in layer.rows(m1))
        channels = k1 // (layer.kh * layer.kw)
        formula = f"(tileKL1*tileNL1 + houtL1*woutL1*coutL1)*{size} = ({k1}*{n1} + {height}*{width}*{channels})*{size}"
        fits(found, "L1", core.L1, formula,
             lambda tileML1, tileKL1, tileNL1: int(_l1_bytes(layer, tileML1, tileKL1, tileNL1)),
             {"tileML1": m1, "tileKL1": k1, "tileNL1": n1},
             {"tileKL1": layer.k_step, "tileML1": layer.win, "tileNL1": CHANNELS})  # fmt: skip
    return found


def _l1_bytes(layer: Layer, m1, k1, n1):
    height, width = layer.rows(m1)
    return (k1 * n1 + height * width * (k1 // (layer.kh * layer.kw))) * layer.size


def _reads(layer: Layer, m1, k1, n1):
    """Bytes of one K chunk: the weight, and the gradient without the zeros that a stride puts between its elements."""
    height, width = layer.rows(m1)
    gradient = -(-height // layer.stride[0]) * -(-width // layer.stride[1]) * (k1 // (layer.kh * layer.kw))
    return k1 * n1 * layer.size, gradient * layer.size


def _tasks(layer: Layer, m1, n1):
    across = np.where(m1 < layer.win, layer.hin * -(-layer.win // m1), -(-layer.hin // np.maximum(m1 // layer.win, 1)))
    return layer.batch * across * -(-layer.cin // n1)


def _cycles(layer: Layer, m1, k1, n1, compute):
    """Cycles of the whole layer when a K chunk is computed in `compute` cycles."""
    weight, gradient = _reads(layer, m1, k1, n1)
    each = core.task(
        chunks=-(-layer.k // k1),
        read=core.load(weight) + core.load(gradient),
        compute=compute,
        write=core.store(m1 * n1 * 4),
        doubled=2 * _l1_bytes(layer, m1, k1, n1) <= core.L1,
    )
    return core.waves(_tasks(layer, m1, n1), each, core.CUBE_CORES)


def estimate(layer: Layer, tile: Tile) -> Estimate:
    """What `tile` costs by the model of `core`: one task for each tile of dx, which walks over K in chunks of tileKL1.

    Raises ValueError with every broken rule when the tile is not legal.
    """
    broken = check(layer, tile)
    if broken:
        raise ValueError("tile: " + "; ".join(map(str, broken)))
    m1, k1, n1 = tile.l1.tileML1, tile.l1.tileKL1, tile.l1.tileNL1
    m0, k0, n0 = tile.l0.tileML0, tile.l0.tileKL0, tile.l0.tileNL0
    compute = core.product(ceil_align(m1, 16), n1, k1, m0, n0, k0, layer.dtype)
    tasks, chunks = int(_tasks(layer, m1, n1)), ceil_div(layer.k, k1)
    useful = layer.batch * layer.hin * layer.win * layer.cin * layer.cout * layer.kh * layer.kw
    return Estimate(
        cycles=round(float(_cycles(layer, m1, k1, n1, compute))),
        tasks=tasks,
        waves=ceil_div(tasks, core.CUBE_CORES),
        traffic=int(tasks * chunks * sum(_reads(layer, m1, k1, n1))),
        fill=useful / (tasks * chunks * ceil_align(m1, 16) * n1 * k1),
        memory={
            "L1": float(_l1_bytes(layer, m1, k1, n1)) / core.L1,
            "L0A": m0 * k0 * layer.size / core.L0A,
            "L0B": k0 * n0 * layer.size / core.L0B,
            "L0C": m0 * n0 * 4 / core.L0C,
        },
    )


def solve(layer: Layer, top: int = 10) -> list[Choice]:
    """The `top` cheapest L1 tiles, each with its cheapest L0 tile, over all legal ones.

    Left out of the lattice are only tiles that another one covers at the same cost: an M below Win that is no multiple of
    16 computes the rows of the next multiple, and a tile beyond the end of an axis computes nothing.
    The search is exact: L1 tiles are taken in the order of a lower bound (a cube that never waits for L0), and it ends
    when no bound is below the `top`-th result.
    """
    m1, k1, n1 = _l1_lattice(layer)
    ideal = np.ceil(m1 / 16) * 16 * n1 * k1 / core.MACS_PER_CYCLE[layer.dtype]
    bound = _cycles(layer, m1, k1, n1, ideal)
    lattice = _l0_lattice(layer.size)
    results: list[tuple[float, int, int]] = []  # cycles, index of the L1 tile, index of the L0 tile
    for i in np.argsort(bound, kind="stable"):
        if len(results) >= top and bound[i] >= results[top - 1][0]:
            break
        m0, k0, n0 = lattice
        rows = -(-int(m1[i]) // 16) * 16
        legal = np.flatnonzero((m0 <= rows) & (k0 <= k1[i]) & (n0 <= n1[i]))
        compute = core.product(rows, n1[i], k1[i], m0[legal], n0[legal], k0[legal], layer.dtype)
        best = int(np.argmin(compute))
        results.append((float(_cycles(layer, m1[i], k1[i], n1[i], compute[best])), int(i), int(legal[best])))
        results.sort()
        del results[top:]
    tiles = [Tile.of((m1[i], k1[i], n1[i]), tuple(axis[j] for axis in lattice)) for _, i, j in results]
    return [Choice(tile, estimate(layer, tile)) for tile in tiles]


def _l1_lattice(layer: Layer) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    below = [*range(16, layer.win, 16), layer.win]
    m = np.array(below + [layer.win * rows for rows in range(2, layer.hin + 1)])
    k = np.arange(layer.k_step, layer.k + 1, layer.k_step)
    n = np.arange(CHANNELS, ceil_align(layer.cin, CHANNELS) + 1, CHANNELS)
    m, k, n = (axis.ravel() for axis in np.meshgrid(m, k, n, indexing="ij"))
    legal = _l1_bytes(layer, m, k, n) <= core.L1
    if not legal.any():
        raise ValueError(f"layer: no tile fits L1 ({core.L1:,} bytes): kernel {layer.kh}x{layer.kw} on {layer.win} columns")
    return m[legal], k[legal], n[legal]


def _l0_lattice(size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Every legal L0 tile, those first that have the larger K: of two equal ones, the one with fewer steps is taken."""
    axis = np.arange(16, core.L0A // size // 16 + 1, 16)
    m, k, n = (a.ravel() for a in np.meshgrid(axis, axis[::-1], axis, indexing="ij"))
    legal = (m * k * size <= core.L0A) & (k * n * size <= core.L0B) & (m * n * 4 <= core.L0C)
    return m[legal], k[legal], n[legal]
