"""What the convolution kernels share: the geometry of a layer, and columns (im2col) built from shifted rectangles.

Everything stays in NCHW. A column block is [channels of one kernel position, rows, width]; blocks are stacked along K, so
that one matmul accumulates over all kernel positions in L0C. Imports nothing but pypto and the standard library.
"""

import pypto

from .geometry import Tiles, align, inside, phases, reads, rectangle, scattered, whole  # noqa: F401

DTYPES = {"torch.float16": pypto.DT_FP16, "torch.bfloat16": pypto.DT_BF16}
"""By the name of a torch dtype: these files do without torch."""

UB_ELEMENTS = 12288
"""Elements of a vector tile with a 16-bit source, an FP32 copy of it on either side, and a 16-bit result: 12 bytes each."""

ADDED = 30720
"""Elements of a tile to which zero is added in FP32, in place: 6 bytes each fill UB."""


def default_tiles(channels_out, channels_in, width, rows):
    """Tiles that fit for any layer: up to 256 positions a task, 128 result channels, K in steps of 128."""
    rows = max(1, min(rows, 256 // align(width) if width < 256 else 1))
    m, n = min(128, align(channels_out)), min(256, align(rows * width))
    channels = max(1, min(channels_in, 128, 2 * UB_ELEMENTS // (rows * align(width))))
    return Tiles(rows, (m, m), (64, 256), (n, n), channels, 1024)


def columns(source, blocks, channels, origin, step, first, rows, width, tile, into=None, at=0):
    """[len(blocks) * channels, rows, width]: the rows `first` … of every block, zero where a block leaves its source.

    source   [phases * images * channels, height, width]
    origin   row of the source where the image's channels begin in phase 0; `step` rows further in each next phase
    tile     channels of one copy
    into     [len(blocks) * channels, any, width] that takes the result at its row `at`; by default a new tensor
    """
    dtype, (height, breadth) = source.dtype, source.shape[1:]
    pypto.set_vec_tile_shapes(tile, rows, align(width))
    result = pypto.tensor([len(blocks) * channels, rows, width], dtype, "columns") if into is None else into
    rectangles = [rectangle(block, first, rows, width, height, breadth) for block in blocks]
    for i, block in enumerate(blocks):
        h0, h1, w0, w1 = inside(block, first, rows, width, height, breadth)
        row = i * channels
        if h0 >= h1 or w0 >= w1:
            pypto.assemble(pypto.full([channels, rows, width], 0.0, dtype), [row, at, 0], result)
            continue
        top, left, *size = rectangles[i]
        view = pypto.view(source, [channels, *size], [origin + block.phase * step, top, left])
        # A view that is the whole source, or the whole result, would make the two tensors one, of two sizes; and of
        # one view for two places the compiler writes only one right, when its origin is the image of a loop.
        if len(blocks) == 1 or view.shape == source.shape or rectangles.count(rectangles[i]) > 1:
            pypto.set_vec_tile_shapes(min(tile, max(1, ADDED // (rows * align(width)))), rows, align(width))
            view = view + 0.0
            pypto.set_vec_tile_shapes(tile, rows, align(width))
        pypto.assemble(view, [row, at + h0, w0], result)
        for size, offset in (
            ((h0, width), (0, 0)),
            ((rows - h1, width), (h1, 0)),
            ((h1 - h0, w0), (h0, 0)),
            ((h1 - h0, width - w1), (h0, w1)),
        ):
            if size[0] and size[1]:
                zeros = pypto.full([channels, *size], 0.0, dtype)
                pypto.assemble(zeros, [row, at + offset[0], offset[1]], result)
    return result


def operand(source, blocks, channels, origin, step, first, rows, width, tile):
    """[len(blocks) * channels, rows * width]: the columns, or `source` itself where one block reads whole rows of it."""
    height, breadth = source.shape[1:]
    if whole(blocks, height, breadth, first + rows, width):
        flat = pypto.reshape(source, [source.shape[0], height * width], inplace=True)
        at = [origin + blocks[0].phase * step, first * width]
        return pypto.view(flat, [channels, rows * width], at)
    stacked = columns(source, blocks, channels, origin, step, first, rows, width, tile)
    return pypto.reshape(stacked, [len(blocks) * channels, rows * width])


def split(x, stride):
    """The stride x stride phases of a torch tensor [N, C, H, W], one after another, as [phases * N * C, H', W'].

    Phase (h, w) holds x[:, :, h::stride, w::stride], filled up with zeros. With stride 1, x itself, not copied.
    """
    batch, channels, height, width = x.shape
    if tuple(stride) == (1, 1):
        return x.view(batch * channels, height, width)
    rows, cols = -(-height // stride[0]), -(-width // stride[1])
    phases = x.new_zeros(stride[0] * stride[1], batch, channels, rows, cols)
    for h in range(stride[0]):
        for w in range(stride[1]):
            part = x[:, :, h :: stride[0], w :: stride[1]]
            phases[h * stride[1] + w, :, :, : part.shape[2], : part.shape[3]] = part
    return phases.view(-1, rows, cols)


def pack(weight, order, cout, cin, pairs):
    """[len(order) * cout, cin] from a weight [cout * cin, positions]: the kernel positions of `order` outermost.

    pairs   (output, input channel) pairs of one transpose
    """
    positions = weight.shape[1]
    if positions == 1:
        return pypto.reshape(weight, [cout, cin], inplace=True)
    pypto.set_vec_tile_shapes(pairs, align(positions))
    if list(order) == list(range(positions)):
        return pypto.reshape(pypto.transpose(weight, 0, 1), [positions * cout, cin])
    packed = pypto.tensor([len(order), cout * cin], weight.dtype, "packed")
    for start in range(0, cout * cin, pairs):
        count = min(pairs, cout * cin - start)
        turned = pypto.transpose(pypto.view(weight, [count, positions], [start, 0]), 0, 1)
        for i, position in enumerate(order):
            pypto.assemble(pypto.view(turned, [1, count], [position, 0]), [i, start], packed)
    # One reshape that every product waits for, instead of each product waiting for each transpose.
    return pypto.reshape(packed, [len(order) * cout, cin])


def beside(packed, positions, cout, cin):
    """[cout, positions * cin] from a packed weight: the blocks of the kernel positions beside each other."""
    if positions == 1:
        return packed
    pypto.set_vec_tile_shapes(max(1, UB_ELEMENTS // align(cin)), align(cin))
    result = pypto.tensor([cout, positions * cin], packed.dtype, "beside")
    for i in range(positions):
        pypto.assemble(pypto.view(packed, [cout, cin], [i * cout, 0]) + 0.0, [0, i * cin], result)
    return result
