"""One core of Atlas A2 and A3 as a tiling sees it: what its memories hold, and how long its pipes take.

Sizes are those of PyPTO 0.2.0's platform description (architecture DAV_2201). Times are cycles, 1800 to the microsecond;
the costs of a transfer are those of PyPTO 0.2.0's cost model, the cost of a product is the cube's own rate. All functions
take Python integers or NumPy arrays.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

KB = 1024
L0A = 64 * KB
L0B = 64 * KB
L0C = 128 * KB
L1 = 512 * KB
BIAS_TABLE = 1 * KB
FIX_BUFFER = 2 * KB
UB = 192 * KB
UB_USABLE = 184 * KB  # the runtime keeps the rest
CUBE_CORES = 24
VECTOR_CORES = 48
CYCLES_PER_US = 1800

DTYPE_BYTES = {"int8": 1, "fp16": 2, "bf16": 2, "fp32": 4}
MACS_PER_CYCLE = {"int8": 8192, "fp16": 4096, "bf16": 4096, "fp32": 1024}
"""Multiply-adds of the cube in a cycle: 16x16x32, 16x16x16 and, for FP32, a quarter of that."""

READ_LATENCY, READ_RATE = 1406, 95.7  # global memory to L1 or UB: cycles, bytes per cycle
WRITE_LATENCY, WRITE_RATE = 305, 76.0  # L0C or UB to global memory
L0A_LATENCY, L0A_RATE = 31, 221.8
L0B_LATENCY, L0B_RATE = 25, 121.4
PRODUCT_LATENCY = 22
DISPATCH = 265  # handing one task to a core; the hand-overs of a wave follow one another


@dataclass(frozen=True)
class Estimate:
    """What a tile costs.

    cycles   time of the whole operation by the model
    tasks    tasks that cores are given; `waves` of them follow one another
    traffic  bytes that the cores read from global memory, repeats included
    fill     useful multiply-adds / multiply-adds that the padded tiles compute (vector tiles: elements)
    memory   share of each memory that one tile takes; a double buffer needs it to be at most a half
    """

    cycles: int
    tasks: int
    waves: int
    traffic: int
    fill: float
    memory: dict[str, float]

    @property
    def us(self) -> float:
        return self.cycles / CYCLES_PER_US


def check_dtype(dtype: str, takes: tuple[str, ...]) -> None:
    """Raises ValueError unless `dtype` is one of `takes`."""
    if dtype not in takes:
        raise ValueError(f"dtype: got {dtype!r}, takes {', '.join(takes)}")


def load(nbytes):
    """Cycles of one read from global memory."""
    return READ_LATENCY + nbytes / READ_RATE


def store(nbytes):
    """Cycles of one write to global memory."""
    return WRITE_LATENCY + nbytes / WRITE_RATE


def product(m, n, k, m0, n0, k0, dtype: str):
    """Cycles of an (m, k) x (k, n) product that lies in L1, in steps of (m0, k0) x (k0, n0) through L0.

    A is read once for each column of steps and B once for each row of steps. Where both operands fit L0 twice, reading the
    next step and computing the present one overlap.
    """
    size = DTYPE_BYTES[dtype]
    rows, columns, steps_k = -(-m // m0), -(-n // n0), -(-k // k0)
    steps = rows * columns * steps_k
    cube = m * n * k / MACS_PER_CYCLE[dtype] + steps * PRODUCT_LATENCY
    a = m * k * size * columns / L0A_RATE + steps * L0A_LATENCY
    b = k * n * size * rows / L0B_RATE + steps * L0B_LATENCY
    doubled = (2 * m0 * k0 * size <= L0A) & (2 * k0 * n0 * size <= L0B)
    return np.where(doubled, np.maximum(cube, a + b), cube + a + b)


def task(chunks, read, compute, write, doubled):
    """Cycles of one task: `chunks` times reading and computing, then one write. With `doubled` buffers they overlap."""
    overlapped = read + (chunks - 1) * np.maximum(read, compute) + compute
    return np.where(doubled, overlapped, chunks * (read + compute)) + write


def waves(tasks, cycles, cores: int):
    """Cycles of `tasks` equal tasks of `cycles` each on `cores` cores."""
    return -(-tasks // cores) * cycles + tasks * DISPATCH
