"""Tile shapes of pypto.matmul: `pypto.set_cube_tile_shapes([mL0, mL1], [kL0, kL1], [nL0, nL1], enable_split_k)`.

The rules are those that PyPTO documents for that function and those that its compiler (0.2.0) enforces.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pypto_gym.tools.tiles import core
from pypto_gym.tools.tiles.core import DTYPE_BYTES, Estimate
from pypto_gym.tools.tiles.rules import Violation, ceil_align, ceil_div, fits, multiple, nearest_multiple


@dataclass(frozen=True)
class Product:
    """(m, k) x (k, n), operands in `dtype`, accumulated in FP32 (int8: INT32).

    a_trans, b_trans  the operand is stored as (k, m), as (n, k)
    a_nz, b_nz        the operand has the format NZ
    bias, scale       with a bias tensor; with a scale tensor, one factor per column (fixpipe)
    split_k           the K axis is divided among cores, in pieces of kL1
    out_dtype         default: fp32 (int8: int32)
    batched           operands of 3 or 4 dimensions

    Raises ValueError for sizes below 1 and for combinations that no tile makes legal.
    """

    m: int
    k: int
    n: int
    dtype: str = "bf16"
    a_trans: bool = False
    b_trans: bool = False
    a_nz: bool = False
    b_nz: bool = False
    bias: bool = False
    scale: bool = False
    split_k: bool = False
    out_dtype: str | None = None
    batched: bool = False

    def __post_init__(self):
        core.check_dtype(self.dtype, tuple(DTYPE_BYTES))
        if min(self.m, self.k, self.n) < 1:
            raise ValueError(f"m, k, n: got {self.m}, {self.k}, {self.n}, takes 1 or more")
        accumulator = "int32" if self.dtype == "int8" else "fp32"
        if self.split_k and self.out_dtype not in (None, accumulator):
            raise ValueError(f"out_dtype: got {self.out_dtype!r}, a split K takes {accumulator} for {self.dtype} operands")
        if self.split_k and self.batched:
            raise ValueError("split_k: got operands of 3 or 4 dimensions, takes 2")
        if self.split_k and (self.bias or self.scale):
            raise ValueError("split_k: got a bias or a scale, takes neither")
        if self.a_nz and self.dtype == "fp32" or self.b_nz and self.dtype == "fp32":
            raise ValueError("dtype: got fp32 with the format NZ, which takes fp16, bf16 and int8")

    @property
    def size(self) -> int:
        """Bytes of an element of the operands."""
        return DTYPE_BYTES[self.dtype]

    @property
    def fractal(self) -> int:
        """What the memories fill an axis up to: 16 elements, int8 32."""
        return 32 if self.dtype == "int8" else 16


@dataclass(frozen=True)
class Tile:
    """Two levels for each axis. `k_l1b` is kL1 of the right operand where the two differ (`[kL0, kAL1, kBL1]`)."""

    m_l0: int
    m_l1: int
    k_l0: int
    k_l1: int
    n_l0: int
    n_l1: int
    k_l1b: int | None = None

    @property
    def k_right(self) -> int:
        return self.k_l1 if self.k_l1b is None else self.k_l1b

    @property
    def m(self) -> list[int]:
        """First argument of `set_cube_tile_shapes`."""
        return [self.m_l0, self.m_l1]

    @property
    def k(self) -> list[int]:
        """Second argument."""
        return [self.k_l0, self.k_l1] if self.k_l1b is None else [self.k_l0, self.k_l1, self.k_l1b]

    @property
    def n(self) -> list[int]:
        """Third argument."""
        return [self.n_l0, self.n_l1]

    @classmethod
    def of(cls, m: list[int], k: list[int], n: list[int]) -> "Tile":
        """From the arguments of `set_cube_tile_shapes`. Raises ValueError when a list has the wrong length."""
        for axis, values, lengths in (("m", m, (2,)), ("k", k, (2, 3)), ("n", n, (2,))):
            if len(values) not in lengths:
                raise ValueError(f"{axis}: got {[*values]}, takes {' or '.join(map(str, lengths))} values, L0 first")
        return cls(m[0], m[1], k[0], k[1], n[0], n[1], k[2] if len(k) == 3 else None)


@dataclass(frozen=True)
class Choice:
    """`reuse` is the value of the pass option `cube_l1_reuse_setting` ({-1: reuse}) that the estimate is for."""

    tile: Tile
    reuse: int
    estimate: Estimate


def check(product: Product, tile: Tile) -> list[Violation]:
    """Every rule that `tile` breaks for `product`."""
    found: list[Violation] = []
    size, fractal, block = product.size, product.fractal, 32 // product.size
    m0, k0, n0 = tile.m_l0, tile.k_l0, tile.n_l0
    step = max(16, block)
    multiple(found, "kL0", k0, step, "32 bytes, and 16 elements")
    multiple(found, "nL0", n0, step, "32 bytes, and 16 elements")
    if product.a_nz:
        multiple(found, "mL0", m0, step if product.a_trans else 16, "format NZ")
    elif product.a_trans:
        multiple(found, "mL0", m0, block, "32 bytes, the inner axis of a transposed A")
    elif m0 <= 0:
        found.append(Violation("range", f"mL0 = {m0}, takes 1 or more", {"mL0": 1}))
    levels = [("m", m0, "mL1", tile.m_l1), ("k", k0, "kL1", tile.k_l1), ("n", n0, "nL1", tile.n_l1)]
    if tile.k_l1b is not None:
        levels.append(("k", k0, "kBL1", tile.k_l1b))
        low, high = sorted((tile.k_l1, tile.k_l1b))
        if low > 0 and high < product.k and high % low:
            says = f"kL1 = {tile.k_l1} and kBL1 = {tile.k_l1b}: one must divide the other, or the larger reach K = {product.k}"
            found.append(Violation("divide", says, {"kBL1" if tile.k_l1b == high else "kL1": nearest_multiple(high, low)}))
    for axis, l0, field, l1 in levels:
        if l0 > 0 and (l1 < l0 or l1 % l0):
            found.append(Violation("divide", f"{field} = {l1}, takes multiples of {axis}L0 = {l0}", {field: nearest_multiple(l1, l0)}))

    if min(m0, k0, n0, tile.m_l1, tile.k_l1, tile.n_l1, tile.k_right) > 0:
        up = f"filled up to {fractal}"
        filled = lambda *axes: int(np.prod([ceil_align(axis, fractal) for axis in axes]))  # noqa: E731
        fits(found, "L0A", core.L0A, f"mL0*kL0*{size} {up}", lambda mL0, kL0: filled(mL0, kL0) * size,
             {"mL0": m0, "kL0": k0}, {"kL0": step, "mL0": fractal})  # fmt: skip
        fits(found, "L0B", core.L0B, f"kL0*nL0*{size} {up}", lambda kL0, nL0: filled(kL0, nL0) * size,
             {"kL0": k0, "nL0": n0}, {"kL0": step, "nL0": step})  # fmt: skip
        fits(found, "L0C", core.L0C, f"mL0*nL0*4 {up}", lambda mL0, nL0: filled(mL0, nL0) * 4,
             {"mL0": m0, "nL0": n0}, {"mL0": fractal, "nL0": step})  # fmt: skip
        if tile.k_l1b is None:
            fits(found, "L1", core.L1, f"(mL1 + nL1)*kL1*{size} {up}",
                 lambda mL1, kL1, nL1: (filled(mL1, kL1) + filled(nL1, kL1)) * size,
                 {"mL1": tile.m_l1, "kL1": tile.k_l1, "nL1": tile.n_l1}, {"kL1": k0, "mL1": m0, "nL1": n0})  # fmt: skip
        else:
            fits(found, "L1", core.L1, f"(mL1*kL1 + nL1*kBL1)*{size} {up}",
                 lambda mL1, kL1, nL1, kBL1: (filled(mL1, kL1) + filled(nL1, kBL1)) * size,
                 {"mL1": tile.m_l1, "kL1": tile.k_l1, "nL1": tile.n_l1, "kBL1": tile.k_l1b},
                 {"kL1": k0, "kBL1": k0, "mL1": m0, "nL1": n0})  # fmt: skip
    for wanted, memory, width, limit in (
        (product.bias, "bias table", 4, core.BIAS_TABLE),
        (product.scale, "fixpipe buffer", 8, core.FIX_BUFFER),
    ):
        if wanted:
            fits(found, memory, limit, f"nL0*{width}", lambda nL0, width=width: nL0 * width, {"nL0": n0}, {"nL0": step})
    return found


def automatic_reuse(tiles):
    """How many tiles PyPTO 0.2.0 puts into one task when `cube_l1_reuse_setting` is not set: enough for two waves."""
    return np.maximum(tiles // (2 * core.CUBE_CORES), 1)


def tasks_of(rows: int, columns: int, reuse: int) -> int:
    """Tasks that PyPTO 0.2.0 makes of rows x columns equal tiles when it may join up to `reuse` of them.

    It goes down the columns; a tile joins the last task that read its A, else the last that read its B, while there is room.
    """
    reads_a: dict[int, int] = {}
    sizes: list[int] = []
    for _ in range(columns):
        reads_b = None
        for row in range(rows):
            for task in (reads_a.get(row), reads_b):
                if task is not None and sizes[task] < reuse:
                    break
            else:
                task = len(sizes)
                sizes.append(0)
            sizes[task] += 1
            reads_a[row] = reads_b = task
    return len(sizes)


def _regions(product: Product, m0, n0) -> list[tuple]:
    """(rows, columns) of tiles of one size: the full ones, the ragged row, the ragged column and the corner."""
    ragged_row, ragged_column = (product.m % m0 > 0) * 1, (product.n % n0 > 0) * 1
    rows, columns = product.m // m0, product.n // n0
    return [(rows, columns), (ragged_row, columns), (rows, ragged_column), (ragged_row, ragged_column)]


def _tasks(product: Product, m0: int, n0: int, reuse: int | None) -> int:
    return sum(
        tasks_of(rows, columns, int(automatic_reuse(rows * columns)) if reuse is None else reuse)
        for rows, columns in _regions(product, m0, n0)
    )


def _tasks_about(product: Product, m0, n0, reuse):
    """`_tasks` of many tiles at once, as if what the columns leave over were joined without a gap."""
    return sum(columns * (rows // reuse) + -(-columns * (rows % reuse) // reuse) for rows, columns in _regions(product, m0, n0))


def _l1_bytes(product: Product, m0, k_left, k_right, n0):
    return (m0 * k_left + n0 * k_right) * product.size


def _model(product: Product, m0, k0, k_left, k_right, n0, reuse, tasks) -> tuple:
    """(cycles, tasks, traffic). A tile is mL0 x nL0; up to `reuse` tiles that share B are one task.

    PyPTO 0.2.0 cuts the result by mL0 and nL0 alone; mL1 and nL1 are checked and otherwise unused.
    """
    tiles = -(-product.m // m0) * -(-product.n // n0)
    pieces = -(-product.k // np.minimum(k_left, k_right)) if product.split_k else 1
    depth = np.minimum(k_left, k_right) if product.split_k else product.k
    tasks, reuse = tasks * pieces, np.minimum(reuse, tiles)
    left = -(-depth // k_left) * core.load(m0 * k_left * product.size)
    right = -(-depth // k_right) * core.load(k_right * n0 * product.size)
    panel = depth * n0 * product.size
    kept = np.minimum(1, np.maximum(core.L1 - 2 * m0 * k_left * product.size, 0) / panel)  # B that stays for the next tile
    again = 1 + (reuse - 1) * (1 - kept)
    chunks = reuse * -(-depth // np.minimum(k_left, k_right))
    compute = core.product(m0, n0, np.minimum(k_left, k_right), m0, n0, k0, product.dtype)
    each = core.task(
        chunks=chunks,
        read=(reuse * left + again * right) / chunks,
        compute=compute,
        write=core.store(m0 * n0 * 4),
        doubled=2 * _l1_bytes(product, m0, k_left, k_right, n0) <= core.L1,
    )
    cycles = core.waves(tasks, each, core.CUBE_CORES)
    if product.split_k:
        sums = pieces * core.load(m0 * n0 * 4) + core.store(m0 * n0 * 4)
        cycles = cycles + core.waves(tiles, sums, core.VECTOR_CORES)
    traffic = pieces * tiles * (m0 + again / reuse * n0) * depth * product.size
    return cycles, tasks, traffic


def estimate(product: Product, tile: Tile, reuse: int | None = None) -> Estimate:
    """What `tile` costs by the model of `core`; `reuse` as in Choice, None for what the compiler does by itself.

    Raises ValueError with every broken rule when the tile is not legal.
    """
    broken = check(product, tile)
    if broken:
        raise ValueError("tile: " + "; ".join(map(str, broken)))
    m0, n0 = ceil_align(tile.m_l0, product.fractal), tile.n_l0
    tiles = ceil_div(product.m, m0) * ceil_div(product.n, n0)
    joined = int(automatic_reuse(tiles)) if reuse is None else reuse
    tasks = _tasks(product, m0, n0, reuse)
    cycles, tasks, traffic = _model(product, m0, tile.k_l0, tile.k_l1, tile.k_right, n0, joined, tasks)
    k = ceil_align(product.k, tile.k_l0)
    return Estimate(
        cycles=round(float(cycles)),
        tasks=int(tasks),
        waves=ceil_div(int(tasks), core.CUBE_CORES),
        traffic=int(traffic),
        fill=product.m * product.n * product.k / (tiles * m0 * n0 * k),
        memory={
            "L1": float(_l1_bytes(product, m0, tile.k_l1, tile.k_right, n0)) / core.L1,
            "L0A": m0 * tile.k_l0 * product.size / core.L0A,
            "L0B": tile.k_l0 * n0 * product.size / core.L0B,
            "L0C": m0 * n0 * 4 / core.L0C,
        },
    )


def solve(product: Product, top: int = 10, reuse: int | None = None) -> list[Choice]:
    """The `top` cheapest tiles over all legal ones, at most one for each (mL0, nL0).

    mL1 = mL0 and nL1 = nL0, since the compiler ignores the difference; kL0 is, for each kL1, the largest legal divisor and
    the largest that leaves room for a double buffer, which no other divisor beats in the model. `reuse` fixes the tiles of
    a task; by default each tile is tried with those numbers that fill one, two or three waves.
    The ranking takes the number of tasks from a formula; the leaders are then ranked again by `estimate`, which counts them.
    """
    step, size = product.fractal, product.size
    width = min(256, ceil_align(product.n, step)) if product.bias or product.scale else ceil_align(product.n, step)
    m, n = np.meshgrid(
        np.arange(step, min(ceil_align(product.m, step), core.L0C // 4 // step) + 1, step),
        np.arange(step, min(width, core.L0C // 4 // step) + 1, step),
        indexing="ij",
    )
    m, n = (axis[m * n * 4 <= core.L0C] for axis in (m, n))
    m, n = (axis[(np.maximum(m, n) * step * size <= core.L0A)] for axis in (m, n))
    deepest = min(ceil_align(product.k, step), core.L1 // size // (2 * step) // step * step)
    k = np.arange(step, deepest + 1, step)
    pair, k1 = (axis.ravel() for axis in np.meshgrid(np.arange(m.size), k, indexing="ij"))
    legal = (m[pair] + n[pair]) * k1 * size <= core.L1
    pair, k1 = pair[legal], k1[legal]

    divisors = _largest_divisors(deepest // step, core.L0A // size // step // step)
    wide = np.maximum(m, n)[pair]
    best: dict[int, tuple[float, float, int, int, int]] = {}  # pair -> cycles, -kL0, kL0, kL1, reuse
    for half in (1, 2):
        room = core.L0A // half // size // wide // step
        usable = room > 0
        p, depth = pair[usable], k1[usable]
        k0 = divisors[depth // step, np.minimum(room[usable], divisors.shape[1] - 1)] * step
        tiles = -(-product.m // m[p]) * -(-product.n // n[p])
        for count in _counts(tiles, reuse):
            count = np.broadcast_to(count, tiles.shape)
            tasks = _tasks_about(product, m[p], n[p], count)
            cycles, _, _ = _model(product, m[p], k0, depth, depth, n[p], count, tasks)
            order = np.lexsort((-k0, cycles))
            _, first = np.unique(p[order], return_index=True)
            for i in order[first]:
                found = (float(cycles[i]), -int(k0[i]), int(k0[i]), int(depth[i]), int(count[i]))
                best[int(p[i])] = min(best.get(int(p[i]), found), found)
    leaders = sorted(best, key=lambda p: (best[p], -int(m[p] * n[p])))[: max(4 * top, 40)]
    choices = []
    for p in leaders:
        _, _, k0, depth, _ = best[p]
        tile = Tile(int(m[p]), int(m[p]), k0, depth, int(n[p]), int(n[p]))
        tiles = ceil_div(product.m, tile.m_l0) * ceil_div(product.n, tile.n_l0)
        tried = [Choice(tile, int(count), estimate(product, tile, int(count))) for count in {*_counts(tiles, reuse)}]
        choices.append(min(tried, key=lambda choice: (choice.estimate.cycles, choice.reuse)))
    return sorted(choices, key=lambda choice: choice.estimate.cycles)[:top]


def _counts(tiles, reuse: int | None) -> list:
    """The numbers of tiles per task to try: those that fill one, two or three waves, and one more for ragged edges."""
    return [reuse] if reuse else [-(-tiles // (core.CUBE_CORES * w)) + more for w in (1, 2, 3) for more in (0, 1)]


def _largest_divisors(numbers: int, limit: int) -> np.ndarray:
    """table[i, j]: the largest divisor of i that is at most j."""
    table = np.ones((numbers + 1, limit + 1), dtype=np.int64)
    for divisor in range(2, limit + 1):
        table[divisor::divisor, divisor:] = divisor
    return table
