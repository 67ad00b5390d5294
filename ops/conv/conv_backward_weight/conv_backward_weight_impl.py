"""dW as one GEMM: dy, [Cout, N*Hout*Wout], times the columns of x; the sum over images and positions stays in L0C."""

import functools

import pypto

from .. import atoms


def backward(x, grad_output, dw, shape, geometry, tiles):
    """dW, kernel positions before input channels, one graph.

    x             [phases * batch * cin, h, w]: the phases of `atoms.split`
    grad_output   [batch * cout, hout * wout]
    dw            [cout, kh * kw * cin]
    shape         (batch, cin, cout, hout, wout)
    """
    batch, cin, cout, hout, wout = shape
    blocks = atoms.reads(*geometry)
    size = hout * wout
    rows = len(blocks) * cin
    stacked = pypto.tensor([rows, batch * hout, wout], x.dtype, "columns")
    for image in range(batch):
        for first in range(0, hout, tiles.rows):
            count = min(tiles.rows, hout - first)
            at = image * hout + first
            atoms.columns(x, blocks, cin, image * cin, batch * cin, first, count, wout, tiles.channels, stacked, at)
    stacked = pypto.reshape(stacked, [rows, batch * size])
    pypto.set_vec_tile_shapes(max(1, atoms.UB_ELEMENTS // atoms.align(size)), atoms.align(size))
    left = grad_output
    if batch > 1:
        left = pypto.tensor([cout, batch * size], x.dtype, "dy")
        for image in range(batch):
            pypto.assemble(pypto.view(grad_output, [cout, size], [image * cout, 0]) + 0.0, [0, image * size], left)
    pypto.set_cube_tile_shapes(list(tiles.m), list(tiles.k), list(tiles.n))
    for m in range(0, cout, tiles.m[1]):
        height = min(tiles.m[1], cout - m)
        part = pypto.view(left, [height, batch * size], [m, 0])
        for n in range(0, rows, tiles.n[1]):
            width = min(tiles.n[1], rows - n)
            right = pypto.view(stacked, [width, batch * size], [n, 0])
            pypto.assemble(pypto.matmul(part, right, dw.dtype, b_trans=True), [m, n], dw)


@functools.cache
def kernel(dtype):
    """The jit kernel for one element type."""

    @pypto.frontend.jit()
    def dw_of(
        x: pypto.Tensor([], dtype),
        grad_output: pypto.Tensor([], dtype),
        dw: pypto.Tensor([], dtype),
        shape,
        geometry,
        tiles,
    ):
        backward(x, grad_output, dw, shape, geometry, tiles)

    return dw_of


def launch(*, x, grad_output, dw, weight_size, stride, padding, dilation):
    """Outside the kernel, by torch: with a stride, the phases of x; and dW to [Cout, Cin, Kh, Kw]."""
    batch, cin = x.shape[:2]
    _, cout, hout, wout = grad_output.shape
    kh, kw = dw.shape[2:]
    tiles = atoms.default_tiles(cout, cin, wout, hout)
    n = min(256, atoms.align(kh * kw * cin))
    packed = dw.new_empty(cout, kh * kw * cin)
    kernel(atoms.DTYPES[str(x.dtype)])(
        atoms.split(x, stride),
        grad_output.view(batch * cout, hout * wout),
        packed,
        (batch, cin, cout, hout, wout),
        ((kh, kw), tuple(stride), tuple(padding), tuple(dilation)),
        tiles._replace(k=(64, 256), n=(n, n)),
    )
    dw.copy_(packed.view(cout, kh * kw, cin).permute(0, 2, 1).reshape(dw.shape))
