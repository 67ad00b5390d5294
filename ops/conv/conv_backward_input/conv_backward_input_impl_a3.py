"""The implicit GEMM of `_impl_gemm` with the tile tool's first choice for Atlas A3: few and large tasks."""

import functools

# From outside: the tool models this very kernel and needs neither PyPTO nor torch; a table would be a copy of it.
from pypto_gym.tools.tiles import conv_gemm

from .conv_backward_input_impl_gemm import run


@functools.cache
def tiles(*layer):
    """The solver's first choice; the arguments are those of the tool's Layer."""
    return conv_gemm.solve(conv_gemm.Layer(*layer), 1)[0].tile


def launch(*, grad_output, weight, dx, input_size, stride, padding, dilation):
    cout, _, kh, kw = weight.shape
    geometry = tuple(stride), tuple(padding), tuple(dilation)
    run(grad_output, weight, dx, *geometry, tiles(*dx.shape, cout, kh, kw, *geometry), reuse=1)
