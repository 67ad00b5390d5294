"""The implicit GEMM of `_impl_gemm` with tiles tuned for Atlas A3: the fewest tasks that still fill L0C."""

from .. import atoms
from .conv_backward_input_impl_gemm import KERNELS, run

L0C_POSITIONS = 256
"""Positions of dx beside 128 channels: 128 * 256 * 4 bytes fill L0C."""

COPY_ELEMENTS = 16384
"""Elements of one copy into the columns: 32 KB, a sixth of UB, so that copies overlap."""


def tiles(cin, cout, width, rows):
    """Tiles by rule: the measurements are in DESIGN.md.

    With a stride (fewer rows than dx has) a task takes as many whole rows as L0C holds: the scatter that follows is paid
    per task. Without, half of that, so that the columns of the next task are built while this one multiplies.
    """
    whole = max(1, min(rows, L0C_POSITIONS // width))
    taken = next(r for r in range(whole, 0, -1) if rows % r == 0 or r == 1)
    if taken * width > 128 and taken == whole and taken < rows:
        taken = next((r for r in range(max(1, 128 // width), 0, -1) if rows % r == 0), 1)
    n = atoms.align(taken * width)
    m = min(128, atoms.align(cin))
    k0 = 128 if n <= 128 else 64
    channels = max(1, min(cout, COPY_ELEMENTS // (taken * atoms.align(width))))
    return atoms.Tiles(taken, (m, m), (k0, 384 if n <= 128 else 256), (n, n), channels, 2048)


def launch(*, grad_output, weight, dx, input_size, stride, padding, dilation):
    run(KERNELS, grad_output, weight, dx, stride, padding, dilation, tiles)
