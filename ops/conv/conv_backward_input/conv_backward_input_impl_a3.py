"""The implicit GEMM of `_impl_gemm` with tiles tuned for Atlas A3: the fewest tasks that still fill L0C."""

from .. import atoms
from .conv_backward_input_impl_gemm import KERNELS, run

L0C_POSITIONS = 256
"""Positions of dx beside 128 channels: 128 * 256 * 4 bytes fill L0C."""


def tiles(cin, cout, width, rows, strided):
    """Tiles by rule; the measurements are in DESIGN.md.

    With a stride a task takes as many whole rows as L0C holds, as the scatter that follows is paid per task. Without, half
    of that, so that the columns of the next task are built while this one multiplies.
    """
    limit = L0C_POSITIONS if strided else L0C_POSITIONS // 2
    taken = next(r for r in range(max(1, min(rows, limit // width)), 0, -1) if rows % r == 0)
    n = min(L0C_POSITIONS, atoms.align(taken * width))
    m = min(128, atoms.align(cin))
    copied = 7168 if strided else 16384  # elements of one copy into the columns
    channels = max(1, min(cout, copied // (taken * atoms.align(width))))
    k = (128, 256) if n > 128 else (128, 384)
    return atoms.Tiles(taken, (m, m), k, (n, n), channels, 2048)


def launch(*, grad_output, weight, dx, input_size, stride, padding, dilation):
    run(KERNELS, grad_output, weight, dx, stride, padding, dilation, tiles)
