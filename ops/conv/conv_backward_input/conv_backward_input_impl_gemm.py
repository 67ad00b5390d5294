"""dx as an implicit GEMM: the product of the weight and shifted copies of dy, for any stride, padding and dilation."""

import pypto

from .. import atoms

SCATTER = 2800
"""Elements of a tile that is written to every stride-th place: each takes a 32-byte block of UB."""


def dx_kernel(grad_output, weight, dx, shape, geometry, tiles):
    """dx from dy, one graph.

    grad_output   [batch * cout, hout, wout]
    weight        [cout * cin, kh * kw]
    dx            [batch * cin, rows, stride_h, cols, stride_w]: rows * stride_h = hin, cols * stride_w = win;
                  with stride 1, [batch * cin, hin * win]
    shape         (batch, cout, cin, rows, cols)
    geometry      (kernel, stride, padding, dilation), pairs
    """
    batch, cout, cin, rows, cols = shape
    kernel, stride, _, _ = geometry
    positions = kernel[0] * kernel[1]
    packed = atoms.pack(weight, positions, cout, cin, tiles.pack)
    for phase, blocks in atoms.phases(*geometry).items():
        if blocks:
            operand = atoms.select(packed, blocks, cout, cin)
        for image in range(batch):
            for first in range(0, rows, tiles.rows):
                count = min(tiles.rows, rows - first)
                if blocks:
                    stacked = atoms.columns(
                        grad_output, blocks, cout, image * cout, 0, first, count, cols, tiles.channels
                    )
                    stacked = pypto.reshape(stacked, [len(blocks) * cout, count * cols])
                for m in range(0, cin, tiles.m[1]):
                    height = min(tiles.m[1], cin - m)
                    row = image * cin + m
                    if blocks:
                        pypto.set_cube_tile_shapes(list(tiles.m), list(tiles.k), list(tiles.n))
                        left = pypto.view(operand, [len(blocks) * cout, height], [0, m])
                        product = pypto.matmul(left, stacked, grad_output.dtype, a_trans=True)
                        if stride == (1, 1):
                            pypto.assemble(product, [row, first * cols], dx)
                            continue
                    pypto.set_vec_tile_shapes(max(1, SCATTER // (count * cols)), atoms.align(count * cols))
                    if blocks:
                        product = product + 0.0
                    else:
                        product = pypto.full([height, count * cols], 0.0, grad_output.dtype)
                    product = pypto.reshape(product, [height, count, 1, cols, 1])
                    pypto.assemble(product, [row, first, phase[0], 0, phase[1]], dx)


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
    )
    whole = pypto.reshape(dx, [batch, cin, rows * stride[0], cols * stride[1]], inplace=True)
    pypto.set_vec_tile_shapes(1, 16, 8, atoms.align(win))
    return pypto.view(whole, list(input_size), [0, 0, 0, 0]) + 0.0


@pypto.frontend.jit
def kernel_fp16(
    grad_output: pypto.Tensor([], pypto.DT_FP16),
    weight: pypto.Tensor([], pypto.DT_FP16),
    dx: pypto.Tensor([], pypto.DT_FP16),
    shape,
    geometry,
    tiles,
):
    dx_kernel(grad_output, weight, dx, shape, geometry, tiles)


@pypto.frontend.jit
def kernel_bf16(
    grad_output: pypto.Tensor([], pypto.DT_BF16),
    weight: pypto.Tensor([], pypto.DT_BF16),
    dx: pypto.Tensor([], pypto.DT_BF16),
    shape,
    geometry,
    tiles,
):
    dx_kernel(grad_output, weight, dx, shape, geometry, tiles)


def run(kernels, grad_output, weight, dx, stride, padding, dilation, choose):
    """Calls the kernel of the right dtype; where the stride does not divide dx, dx is computed larger and cropped.

    choose   (cin, cout, cols, rows of a phase, whether there is a stride) -> Tiles
    """
    stride, padding, dilation = tuple(stride), tuple(padding), tuple(dilation)
    batch, cin, hin, win = dx.shape
    cout, _, kh, kw = weight.shape
    rows, cols = -(-hin // stride[0]), -(-win // stride[1])
    tiles = choose(cin, cout, cols, rows, stride != (1, 1))
    whole = dx
    if (rows * stride[0], cols * stride[1]) != (hin, win):
        whole = dx.new_empty(batch, cin, rows * stride[0], cols * stride[1])
    if stride == (1, 1):
        result = whole.view(batch * cin, rows * cols)
    else:
        result = whole.view(batch * cin, rows, stride[0], cols, stride[1])
    kernel = kernels[str(dx.dtype)]
    kernel(
        grad_output.view(batch * cout, *grad_output.shape[2:]),
        weight.view(cout * cin, kh * kw),
        result,
        (batch, cout, cin, rows, cols),
        ((kh, kw), stride, padding, dilation),
        tiles,
    )
    if whole is not dx:
        dx.copy_(whole[:, :, :hin, :win])


KERNELS = {"torch.float16": kernel_fp16, "torch.bfloat16": kernel_bf16}


def launch(*, grad_output, weight, dx, input_size, stride, padding, dilation):
    run(KERNELS, grad_output, weight, dx, stride, padding, dilation, atoms.default_tiles)
