"""Places in a tensor: tiles of 256 elements, and how a block of elements is written."""

from __future__ import annotations

import math

import torch

TILE = 16

Span = tuple[tuple[int, int], ...]
"""(start, stop) for each dimension of a tensor."""


class Tiling:
    """Cuts a shape into tiles of 256 elements over its last two dimensions that are longer than 1."""

    def __init__(self, shape: torch.Size | tuple[int, ...]):
        self.shape = tuple(shape)
        self.kept = [i for i, size in enumerate(self.shape) if size > 1]
        sizes = [self.shape[i] for i in self.kept]
        self.rows, self.cols = ([1, 1] + sizes)[-2:]
        self.lead = sizes[:-2]
        height = min(self.rows, TILE)
        self.width = min(self.cols, TILE * TILE // height)
        self.height = min(self.rows, TILE * TILE // self.width)
        self.down = -(-self.rows // self.height)
        self.across = -(-self.cols // self.width)

    def sheets(self, x: torch.Tensor) -> torch.Tensor:
        """x, of this shape, as [leading, rows, cols]."""
        return x.reshape(-1, self.rows, self.cols)

    def sums(self, x: torch.Tensor) -> torch.Tensor:
        """Sum of x, of this shape, over each tile: [leading, tiles down, tiles across]."""
        sheets = self.sheets(x)
        below = self.down * self.height - self.rows
        right = self.across * self.width - self.cols
        if below or right:
            sheets = torch.nn.functional.pad(sheets, (0, right, 0, below))
        return sheets.view(-1, self.down, self.height, self.across, self.width).sum((2, 4))

    def counts(self) -> torch.Tensor:
        """Elements in each tile: [1, tiles down, tiles across], FP64."""
        high = torch.full((self.down, 1), float(self.height), dtype=torch.float64)
        wide = torch.full((1, self.across), float(self.width), dtype=torch.float64)
        high[-1] = self.rows - (self.down - 1) * self.height
        wide[0, -1] = self.cols - (self.across - 1) * self.width
        return (high * wide)[None]

    def span(self, tile: int) -> Span:
        """Where the tile with this index into the flattened `sums` lies in the shape."""
        lead, row, col = unravel(tile, (math.prod(self.lead), self.down, self.across))
        corner = [(i, i + 1) for i in unravel(lead, self.lead)]
        corner.append((row * self.height, min((row + 1) * self.height, self.rows)))
        corner.append((col * self.width, min((col + 1) * self.width, self.cols)))
        spans = [(0, size) for size in self.shape]
        for dim, span in zip(reversed(self.kept), reversed(corner)):
            spans[dim] = span
        return tuple(spans)


def where(spans: Span) -> str:
    """A block as it would be written to index the output: `[3, 0:16, 48:64]`."""
    return "[" + ", ".join(map(span, spans)) + "]"


def span(run: tuple[int, int]) -> str:
    """One dimension of a block: `3` or `0:16`."""
    start, stop = run
    return str(start) if stop == start + 1 else f"{start}:{stop}"


def lines(mask: torch.Tensor) -> list[torch.Tensor]:
    """For each dimension, at which of its indices `mask` holds something."""
    dims = range(mask.dim())
    return [mask.sum([i for i in dims if i != dim]) > 0 if mask.dim() > 1 else mask for dim in dims]


def box(mask: torch.Tensor) -> Span:
    """The smallest block that holds all of `mask`, which holds something."""
    hits = [line.nonzero().flatten() for line in lines(mask)]
    return tuple((int(hit[0]), int(hit[-1]) + 1) for hit in hits)


def unravel(index: int, shape) -> tuple[int, ...]:
    """The index of an element, from its index in the flattened tensor."""
    place = []
    for size in reversed(tuple(shape)):
        index, at = divmod(index, size)
        place.append(at)
    return tuple(reversed(place))
