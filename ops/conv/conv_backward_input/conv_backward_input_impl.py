"""dx by the native operation `pypto.conv_backward_input`, tiled on both levels of its (Hin*Win) x (Cout*Kh*Kw) x Cin product."""

import dataclasses
import functools

import pypto

# An import from outside, as in _impl_a3: the tool models this operation and needs neither PyPTO nor torch.
from pypto_gym.tools.tiles import conv_backward_input as tool

from .. import atoms


@functools.cache
def tiles(*layer):
    """(L1, L0), each (M, K, N): the solver's first choice; the arguments are those of the tool's Layer."""
    layer = tool.Layer(*layer)
    try:
        tile = tool.solve(layer, 1)[0].tile
    except ValueError:  # none fits L1, which is for the native operation to say: the polyfill needs no tile of that kind
        tile = tool.smallest(layer)
    return dataclasses.astuple(tile.l1), dataclasses.astuple(tile.l0)


@functools.cache
def kernel(dtype):
    """The jit kernel for one element type."""

    @pypto.frontend.jit()
    def dx_of(
        grad_output: pypto.Tensor([], dtype),
        weight: pypto.Tensor([], dtype),
        dx: pypto.Tensor([], dtype),
        stride,
        padding,
        dilation,
        l1,
        l0,
    ):
        backward(grad_output, weight, dx, stride, padding, dilation, l1, l0)

    return dx_of


def backward(grad_output, weight, dx, stride, padding, dilation, l1, l0):
    pypto.set_convbp_input_tile_shapes(
        pypto.pypto_impl.ConvBpTileL1Info(tileML1=l1[0], tileKL1=l1[1], tileNL1=l1[2]),
        pypto.pypto_impl.ConvBpTileL0Info(tileML0=l0[0], tileKL0=l0[1], tileNL0=l0[2]),
    )
    pypto.set_vec_tile_shapes(1, 16, 8, -(-dx.shape[3] // 16) * 16)
    paddings = [padding[0], padding[0], padding[1], padding[1]]
    result = pypto.conv_backward_input(
        grad_output, list(dx.shape), weight, dx.dtype, list(stride), paddings, list(dilation), groups=1
    )
    pypto.assemble(result, [0, 0, 0, 0], dx)


def launch(*, grad_output, weight, dx, input_size, stride, padding, dilation):
    cout, _, kh, kw = weight.shape
    geometry = tuple(stride), tuple(padding), tuple(dilation)
    l1, l0 = tiles(*dx.shape, cout, kh, kw, *geometry)
    kernel(atoms.DTYPES[str(dx.dtype)])(grad_output, weight, dx, *geometry, l1, l0)
