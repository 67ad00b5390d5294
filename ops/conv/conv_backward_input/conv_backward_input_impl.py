"""dx by the native operation `pypto.conv_backward_input`, tiled on both levels of its (Hin*Win) x (Cout*Kh*Kw) x Cin product."""

import pypto

CHANNELS = 16
"""Channels of a fractal: the unit of the M, K and N tiles in L0, and of K and N in L1."""

TILES = {
    (128, 128, 28, 28, 3, 3): ((196, 1152, 64), (208, 64, 64)),
    (128, 256, 28, 28, 3, 3): ((196, 1152, 64), (208, 64, 64)),
    (256, 128, 28, 28, 3, 3): ((392, 576, 64), (400, 32, 64)),
}
"""(Cin, Cout, Hin, Win, Kh, Kw) -> L1 and L0 tiles, each (M, K, N): the solver's first choice (tools/tiles) for these
layers. A test compares them with what the solver returns."""


def tiles(cin, cout, hin, win, kh, kw):
    """(L1, L0), each (M, K, N): from TILES, or the smallest legal ones."""
    m = CHANNELS if win >= CHANNELS or CHANNELS % win == 0 else win
    smallest = ((m, CHANNELS * kh * kw, CHANNELS), (CHANNELS, CHANNELS, CHANNELS))
    return TILES.get((cin, cout, hin, win, kh, kw), smallest)


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


@pypto.frontend.jit
def kernel_fp16(
    grad_output: pypto.Tensor([], pypto.DT_FP16),
    weight: pypto.Tensor([], pypto.DT_FP16),
    dx: pypto.Tensor([], pypto.DT_FP16),
    stride,
    padding,
    dilation,
    l1,
    l0,
):
    backward(grad_output, weight, dx, stride, padding, dilation, l1, l0)


@pypto.frontend.jit
def kernel_bf16(
    grad_output: pypto.Tensor([], pypto.DT_BF16),
    weight: pypto.Tensor([], pypto.DT_BF16),
    dx: pypto.Tensor([], pypto.DT_BF16),
    stride,
    padding,
    dilation,
    l1,
    l0,
):
    backward(grad_output, weight, dx, stride, padding, dilation, l1, l0)


def launch(*, grad_output, weight, dx, input_size, stride, padding, dilation):
    _, cin, hin, win = dx.shape
    l1, l0 = tiles(cin, weight.shape[0], hin, win, *weight.shape[2:])
    kernel = {"torch.float16": kernel_fp16, "torch.bfloat16": kernel_bf16}[str(dx.dtype)]
    kernel(grad_output, weight, dx, tuple(stride), tuple(padding), tuple(dilation), l1, l0)
