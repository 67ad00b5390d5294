"""The geometry of a layer as the kernels see it. Imports neither PyPTO nor torch, as tools/tiles reads it too."""

from typing import NamedTuple


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


def whole(blocks, height, breadth, rows, width):
    """Whether the columns of `blocks` are the source itself: one block that reads whole rows of it, unshifted."""
    return len(blocks) == 1 and blocks[0][1:3] == (0, 0) and breadth == width and rows <= height


def inside(block, first, rows, width, height, breadth):
    """(h0, h1, w0, w1) of the rectangle rows x width at row `first`: what a block reads there; the rest is zero."""
    top, left = first + block.shift_h, block.shift_w
    h0, h1 = min(rows, max(0, -top)), max(0, min(rows, height - top))
    w0, w1 = min(width, max(0, -left)), max(0, min(width, breadth - left))
    return h0, h1, w0, w1


def rectangle(block, first, rows, width, height, breadth):
    """(top, left, height, width) in its source of what `inside` says."""
    h0, h1, w0, w1 = inside(block, first, rows, width, height, breadth)
    return first + block.shift_h + h0, block.shift_w + w0, h1 - h0, w1 - w0


def scattered(positions):
    """Channels of `positions` elements that one vector task writes to every stride-th place of dx.

    2800 elements: each takes a 32-byte block of UB. From 16 channels on a power of two, as the compiler cuts no others.
    """
    most = max(1, 2800 // int(positions))
    return most if most < 16 else 1 << (most.bit_length() - 1)
