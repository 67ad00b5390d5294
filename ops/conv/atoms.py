"""What the convolution kernels share: the geometry of a layer, and columns (im2col) built from shifted rectangles.

Everything stays in NCHW. A column block is [channels of one kernel position, rows, width]; blocks are stacked along K, so
that one matmul accumulates over all kernel positions in L0C. Imports nothing but pypto and the standard library.
"""

from typing import NamedTuple

import pypto


class Tiles(NamedTuple):
    """rows        rows of the result that one task computes
    m, k, n     cube tiles, each (L0, L1); n is at least rows * width, rounded up to 16
    channels    channels of one copy into the columns
    pack        (input, output channel) pairs of one transpose of the weight
    """

    rows: int
    m: tuple
    k: tuple
    n: tuple
    channels: int
    pack: int


class Block(NamedTuple):
    """One kernel position seen from one result: source[…, row + shift_h, col + shift_w] with weight position `position`.

    phase   which of the source's phases it reads (0 where the source has one)
    """

    position: int
    shift_h: int
    shift_w: int
    phase: int = 0


UB_ELEMENTS = 12288
"""Elements of a vector tile with a 16-bit source, an FP32 copy of it on either side, and a 16-bit result: 12 bytes each."""


def align(value, step=16):
    return -(-value // step) * step


def phases(kernel, stride, padding, dilation):
    """dx splits into stride x stride phases, each a plain shifted sum of dy: {(phase_h, phase_w): [Block, …]}.

    Position kh reaches row h = stride * q + phase of dx from row q + (phase + padding - kh * dilation) / stride of dy,
    where that divides. A phase that no position reaches has an empty list: dx is zero there.
    """

    def axis(i):
        reach = {phase: [] for phase in range(stride[i])}
        for k in range(kernel[i]):
            phase = (k * dilation[i] - padding[i]) % stride[i]
            reach[phase].append((k, (phase + padding[i] - k * dilation[i]) // stride[i]))
        return reach

    rows, cols = axis(0), axis(1)
    return {
        (h, w): [Block(kh * kernel[1] + kw, a, b) for kh, a in rows[h] for kw, b in cols[w]] for h in rows for w in cols
    }


def reads(kernel, stride, padding, dilation):
    """The blocks of a forward convolution: output row q reads row q + shift_h of phase `phase` of its input."""
    blocks = []
    for kh in range(kernel[0]):
        a, h = divmod(kh * dilation[0] - padding[0], stride[0])
        for kw in range(kernel[1]):
            b, w = divmod(kw * dilation[1] - padding[1], stride[1])
            blocks.append(Block(kh * kernel[1] + kw, a, b, h * stride[1] + w))
    return blocks


def default_tiles(channels_out, channels_in, width, rows, strided=False):
    """Tiles that fit for any layer: up to 256 positions a task, 128 result channels, K in steps of 128."""
    rows = max(1, min(rows, 256 // align(width) if width < 256 else 1))
    m, n = min(128, align(channels_out)), min(256, align(rows * width))
    per_channel = rows * align(width) * 2
    channels = max(1, min(channels_in, 128, 48 * 1024 // per_channel))
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
    for i, block in enumerate(blocks):
        top, left = first + block.shift_h, block.shift_w
        h0, h1 = min(rows, max(0, -top)), max(0, min(rows, height - top))
        w0, w1 = min(width, max(0, -left)), max(0, min(width, breadth - left))
        row = i * channels
        if h0 >= h1 or w0 >= w1:
            pypto.assemble(pypto.full([channels, rows, width], 0.0, dtype), [row, at, 0], result)
            continue
        start = [origin + block.phase * step, top + h0, left + w0]
        view = pypto.view(source, [channels, h1 - h0, w1 - w0], start)
        # A view that is the whole source, or the whole result, would make the two tensors one, of two sizes.
        if len(blocks) == 1 or view.shape == source.shape:
            view = view + 0.0
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


def pack(weight, positions, cout, cin, pairs):
    """[positions * cout, cin] from a weight [cout * cin, positions]: kernel positions outermost."""
    if positions == 1:
        return pypto.reshape(weight, [cout, cin], inplace=True)
    pypto.set_vec_tile_shapes(pairs, align(positions))
    return pypto.reshape(pypto.transpose(weight, 0, 1), [positions * cout, cin])


def select(packed, blocks, cout, cin):
    """The rows of `packed` that belong to `blocks`, in their order; `packed` itself where those are all, in order."""
    if [b.position for b in blocks] == list(range(packed.shape[0] // cout)):
        return packed
    pypto.set_vec_tile_shapes(max(1, UB_ELEMENTS // align(cin)), align(cin))
    result = pypto.tensor([len(blocks) * cout, cin], packed.dtype, "selected")
    for i, block in enumerate(blocks):
        pypto.assemble(pypto.view(packed, [cout, cin], [block.position * cout, 0]) + 0.0, [i * cout, 0], result)
    return result


def beside(packed, positions, cout, cin):
    """[cout, positions * cin] from a packed weight: the blocks of the kernel positions beside each other."""
    if positions == 1:
        return packed
    pypto.set_vec_tile_shapes(max(1, UB_ELEMENTS // align(cin)), align(cin))
    result = pypto.tensor([cout, positions * cin], packed.dtype, "beside")
    for i in range(positions):
        pypto.assemble(pypto.view(packed, [cout, cin], [i * cout, 0]) + 0.0, [0, i * cin], result)
    return result
