"""What PyPTO's cost model grants at the most: the least time that a piece of work can take in it.

The rates are those of the 0.2.0 model for DAV_2201 (framework/src/cost_model/simulation/arch: PostSimulatorA2A3.h,
PipeSimulatorFast.cpp): a cube core multiplies 16x16x16 16-bit elements a cycle and half of that in FP32; a core's
COPY_IN moves 1 / (2.613e-6 * 2 * 2000) = 95.7 bytes a cycle, and no limit is shared between cores. Fixed latencies (1400
cycles a COPY_IN, 300 a COPY_OUT) are left out: the roofline is what an endless stream of work would reach.
"""

from __future__ import annotations

from pypto_gym.tools.harness.backends.figures import CUBE_CORES, CYCLES_PER_US, VECTOR_CORES
from pypto_gym.tools.harness.records import Work

CUBE_FLOPS_PER_CYCLE = {2: 2 * 16 * 16 * 16, 4: 16 * 16 * 16}  # by bytes of an element, one core
BYTES_PER_CYCLE = 1 / (2.613e-6 * 2 * 2000)  # COPY_IN of one core


def microseconds(work: Work) -> float:
    """The roofline of `work` in us: the longer of its matrix products and its traffic, every core busy all the time."""
    cube = work.cube_flops / (CUBE_CORES * CUBE_FLOPS_PER_CYCLE[max(2, work.dtype.itemsize)])
    traffic = work.bytes / ((CUBE_CORES + VECTOR_CORES) * BYTES_PER_CYCLE)
    return max(cube, traffic) / CYCLES_PER_US


def bound(work: Work) -> str:
    """Which of the two it is: "cube" or "memory"."""
    return "cube" if microseconds(work) == microseconds(Work(work.cube_flops, 0, work.dtype)) else "memory"
