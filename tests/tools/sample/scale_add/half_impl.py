"""Wrong on purpose: the last tile is not stored."""

from .scale_add_impl import scale_add_kernel


def launch(*, a, b, y):
    rows = a.shape[0] - 16
    part = y[:rows].clone()
    scale_add_kernel(a[:rows].contiguous(), b[:rows].contiguous(), part)
    y[:rows] = part
