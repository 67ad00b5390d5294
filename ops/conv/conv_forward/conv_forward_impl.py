"""y as one GEMM for each image and row tile: the weight, [Cout, Kh*Kw*Cin], times columns of x."""

import functools

import pypto

from .. import atoms


def forward(x, weight, y, shape, geometry, tiles):
    """y from x, one graph.

    x        [phases * batch * cin, h, w]: the phases of `atoms.split`
    weight   [cout * cin, kh * kw]
    y        [batch * cout, hout * wout]
    shape    (batch, cin, cout, hout, wout)
    """
    batch, cin, cout, hout, wout = shape
    blocks = atoms.reads(*geometry)
    packed = atoms.pack(weight, range(len(blocks)), cout, cin, tiles.pack)
    operand = atoms.beside(packed, len(blocks), cout, cin)
    for image in range(batch):
        for first in range(0, hout, tiles.rows):
            count = min(tiles.rows, hout - first)
            stacked = atoms.operand(
                x, blocks, cin, image * cin, batch * cin, first, count, wout, tiles.channels
            )
            for m in range(0, cout, tiles.m[1]):
                height = min(tiles.m[1], cout - m)
                pypto.set_cube_tile_shapes(list(tiles.m), list(tiles.k), list(tiles.n))
                left = pypto.view(operand, [height, len(blocks) * cin], [m, 0])
                pypto.assemble(pypto.matmul(left, stacked, y.dtype), [image * cout + m, first * wout], y)


@functools.cache
def kernel(dtype):
    """The jit kernel for one element type."""

    @pypto.frontend.jit()
    def y_of(
        x: pypto.Tensor([], dtype),
        weight: pypto.Tensor([], dtype),
        y: pypto.Tensor([], dtype),
        shape,
        geometry,
        tiles,
    ):
        forward(x, weight, y, shape, geometry, tiles)

    return y_of


def launch(*, x, weight, y, stride, padding, dilation):
    """With a stride, x is split into phases before the kernel: a copy of x by torch."""
    batch, cin = x.shape[:2]
    _, cout, hout, wout = y.shape
    positions = weight.shape[2] * weight.shape[3]
    kernel(atoms.DTYPES[str(x.dtype)])(
        atoms.split(x, stride),
        weight.view(cout * cin, positions),
        y.view(batch * cout, hout * wout),
        (batch, cin, cout, hout, wout),
        (tuple(weight.shape[2:]), tuple(stride), tuple(padding), tuple(dilation)),
        atoms.default_tiles(cout, cin, wout, hout),
    )
