"""dx as an implicit GEMM: the product of the weight and shifted copies of dy, for any stride, padding and dilation."""

import functools

import pypto

from .. import atoms


def dx_kernel(grad_output, weight, dx, shape, geometry, tiles, images):
    """dx from dy.

    grad_output   [batch * cout, hout, wout]
    weight        [cout * cin, kh * kw]
    dx            [batch * cin, rows, stride_h, cols, stride_w]: rows * stride_h = hin, cols * stride_w = win;
                  with stride 1, [batch * cin, hin * win]
    shape         (batch, cout, cin, rows, cols)
    geometry      (kernel, stride, padding, dilation), pairs
    images        the images in turn: `pypto.loop`, so that the graph does not grow with the batch, or a range
    """
    _, cout, cin, rows, cols = shape
    stride = geometry[1]
    phases = atoms.phases(*geometry)
    order = [block.position for blocks in phases.values() for block in blocks]
    packed = atoms.pack(weight, order, cout, cin, tiles.pack)
    for image in images:
        for first in range(0, rows, tiles.rows):
            count = min(tiles.rows, rows - first)
            at = 0  # row of `packed` where the blocks of this phase begin
            for phase, blocks in phases.items():
                if blocks:
                    stacked = atoms.operand(
                        grad_output, blocks, cout, image * cout, 0, first, count, cols, tiles.channels
                    )
                for m in range(0, cin, tiles.m[1]):
                    height = min(tiles.m[1], cin - m)
                    row = image * cin + m
                    if blocks:
                        pypto.set_cube_tile_shapes(list(tiles.m), list(tiles.k), list(tiles.n))
                        left = pypto.view(packed, [len(blocks) * cout, height], [at, m])
                        product = pypto.matmul(left, stacked, grad_output.dtype, a_trans=True)
                        if stride == (1, 1):
                            pypto.assemble(product, [row, first * cols], dx)
                            continue
                    pypto.set_vec_tile_shapes(atoms.scattered(count * cols), atoms.align(count * cols))
                    if blocks:
                        product = product + 0.0
                    else:
                        product = pypto.full([height, count * cols], 0.0, grad_output.dtype)
                    product = pypto.reshape(product, [height, count, 1, cols, 1])
                    pypto.assemble(product, [row, first, phase[0], 0, phase[1]], dx)
                at += len(blocks) * cout


def dx_tensor(grad_output, input_size, weight, geometry):
    """dx [N, Cin, Hin, Win] as a tensor of the graph, from 4-D tensors."""
    batch, cin, hin, win = input_size
    cout = weight.shape[0]
    kernel, stride = tuple(weight.shape[2:]), geometry[0]
    rows, cols = -(-hin // stride[0]), -(-win // stride[1])
    flat = [batch * cin, rows * cols] if stride == (1, 1) else [batch * cin, rows, stride[0], cols, stride[1]]
    dx = pypto.tensor(flat, grad_output.dtype, "dx")
    dx_kernel(
        pypto.reshape(grad_output, [batch * cout, *grad_output.shape[2:]], inplace=True),
        pypto.reshape(weight, [cout * cin, kernel[0] * kernel[1]], inplace=True),
        dx,
        (batch, cout, cin, rows, cols),
        (kernel, *geometry),
        atoms.default_tiles(cin, cout, cols, rows),
        range(batch),
    )
    whole = pypto.reshape(dx, [batch, cin, rows * stride[0], cols * stride[1]], inplace=True)
    pypto.set_vec_tile_shapes(1, 16, 8, atoms.align(win))
    return pypto.view(whole, list(input_size), [0, 0, 0, 0]) + 0.0


@functools.cache
def kernel(dtype, reuse=None):
    """The jit kernel for one element type; `reuse` is the number of products that one cube task may compute."""
    options = {} if reuse is None else {"cube_l1_reuse_setting": {-1: reuse}}

    @pypto.frontend.jit(pass_options=options)
    def dx_of(
        grad_output: pypto.Tensor([], dtype),
        weight: pypto.Tensor([], dtype),
        dx: pypto.Tensor([], dtype),
        shape,
        geometry,
        tiles,
    ):
        dx_kernel(grad_output, weight, dx, shape, geometry, tiles, pypto.loop(shape[0], name="IMAGE"))

    return dx_of


def run(grad_output, weight, dx, stride, padding, dilation, tiles, reuse=None):
    """Calls the kernel; where the stride does not divide dx, dx is computed larger and cropped."""
    stride, padding, dilation = tuple(stride), tuple(padding), tuple(dilation)
    batch, cin, hin, win = dx.shape
    cout, _, kh, kw = weight.shape
    rows, cols = -(-hin // stride[0]), -(-win // stride[1])
    whole = dx
    if (rows * stride[0], cols * stride[1]) != (hin, win):
        whole = dx.new_empty(batch, cin, rows * stride[0], cols * stride[1])
    if stride == (1, 1):
        result = whole.view(batch * cin, rows * cols)
    else:
        result = whole.view(batch * cin, rows, stride[0], cols, stride[1])
    kernel(atoms.DTYPES[str(dx.dtype)], reuse)(
        grad_output.view(batch * cout, *grad_output.shape[2:]),
        weight.view(cout * cin, kh * kw),
        result,
        (batch, cout, cin, rows, cols),
        ((kh, kw), stride, padding, dilation),
        tiles,
    )
    if whole is not dx:
        dx.copy_(whole[:, :, :hin, :win])


def launch(*, grad_output, weight, dx, input_size, stride, padding, dilation):
    cout, cin, _, _ = weight.shape
    rows, cols = -(-dx.shape[2] // stride[0]), -(-dx.shape[3] // stride[1])
    run(grad_output, weight, dx, stride, padding, dilation, atoms.default_tiles(cin, cout, cols, rows))
