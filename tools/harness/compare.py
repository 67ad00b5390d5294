"""Judges one output of a kernel. Two gates, and an output passes when both do.

**Contract**, against the golden, which repeats the kernel's own dtype conversions: for every element
`|y - golden| <= atol + rtol * |golden|`.

**Gauge**, against the truth in FP64: `RMSE(y - truth)` over a floor, for the whole output (`budget`) and for its worst
tile (`worst_tile`), and the worst element in units of the last place (`max_ulp`).

The contract alone passes an output of zeros where values are below `atol`; the gauge alone passes what is noise to the
output as a whole. A tensor of another shape or dtype, a NaN or Inf that the golden does not have in the same place, a
NaN in the golden, and a golden that is far from its own truth fail whatever the figures say. Integers, and outputs
declared `exact`, are compared bit for bit and by nothing else.

The floor, for a set of n elements (the output, or a tile)
    * Low-precision output: the RMS error of rounding truth itself to that dtype. A small set can hold values that happen
      to be representable, so the floor is never below `spacing / sqrt(12)`, the expectation for values at random.
    * FP32 output: the RMS error of the golden, and in a tile never below the golden's relative error over the whole
      output; and never below `FP32_NOISE` of the truth, which is what the order of summation alone can do. This lower
      bound is also the floor of a computation that is FP32 throughout; a slip to FP16 or BF16 is a hundred times larger.
    * No set has a floor below `FP32_NOISE` times the RMS of the whole output: a tile of zeros, or of values that cancel,
      is judged by the scale of its surroundings.
    * A truth that the golden cannot resolve (its error is a quarter of the truth's RMS or more; above all a truth of
      zeros, where terms cancel exactly) has no scale to be relative to. `atol` is then the floor.

The limits are those of a full tile, 256 elements. The RMS of fewer elements scatters more: their limit is multiplied by
`sqrt(256 / n)`, and contract and ULP bound hold what that lets through. An empty output passes when its shape and dtype
are right.

Tiles are 16x16 over the last two dimensions, the block that cube and vector units work on. Dimensions of size 1 do not
count, so `[tokens, heads, 1]` is tiled over tokens and heads. Where one side is shorter than 16 the other grows, so that
a tile keeps its 256 elements: a vector is cut into runs of 256, `[n, 4]` into `64x4`.

A ULP is the spacing of `ulp_dtype` at `max(|truth|, RMS of the row)`. `ulp_dtype` is by default the output's dtype, and
for an FP32 output of low-precision inputs that of the inputs. For FP32 inputs it is `FP32_NOISE` of that scale.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

import torch

from .records import Output

TILE = 16

FP32_NOISE = 2.0**-19
"""Relative error that FP32 summation may leave in any order. A running sum of K random terms has a relative RMS error of
0.41 * sqrt(K) * 2**-24: this is K = 6000."""

Span = tuple[tuple[int, int], ...]
"""(start, stop) for each dimension of an output."""


@dataclass(frozen=True)
class OutputVerdict:
    """What `compare` found. Figures of elements that are not finite are left out.

    passed, reasons   `reasons` has a sentence for everything that broke, and is empty exactly when `passed`
    max_abs, max_rel  largest |y - golden|, and |y - golden| / |golden| where the golden is not 0
    worst_index       the element that is furthest from what it may be; () for a scalar or an empty output
    violations        elements that break the contract
    flips             those among them that the gauge's ULP bound still covers
    rmse_ratio        RMSE(y - truth) / floor
    worst_tile_ratio  the same for the tile that is closest to (or furthest above) its limit, and
    worst_tile        where that tile is: (start, stop) for each dimension of the output
    max_ulp           largest |y - truth| in ULP
    bias              mean of y - truth, relative to the RMS of truth
    golden_ratio      RMSE(golden - truth) / floor: what the budget has to leave room for
    diagnosis         what the pattern of errors looks like, or ''
    """

    name: str
    passed: bool
    reasons: list[str]
    max_abs: float = 0.0
    max_rel: float = 0.0
    worst_index: tuple[int, ...] = ()
    violations: int = 0
    flips: int = 0
    rmse_ratio: float = 0.0
    worst_tile_ratio: float = 0.0
    worst_tile: Span = ()
    max_ulp: float = 0.0
    bias: float = 0.0
    golden_ratio: float = 0.0
    diagnosis: str = ""

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON: tuples become lists, and a figure that is not finite a string."""

        def plain(value):
            if isinstance(value, (list, tuple)):
                return [plain(item) for item in value]
            if isinstance(value, float) and not math.isfinite(value):
                return str(value)
            return value

        return {field.name: plain(getattr(self, field.name)) for field in fields(self)}


def compare(
    name: str,
    actual: torch.Tensor,
    golden: torch.Tensor,
    truth: torch.Tensor | None,
    spec: Output,
    input_dtype: torch.dtype | None = None,
) -> OutputVerdict:
    """Judges `actual`, the output `name` of a kernel, as the head of this module describes.

    actual       what the kernel wrote, any shape; elements it never wrote are NaN
    golden       same shape and dtype
    truth        same shape, FP64; not looked at (may be None) for integers and exact outputs
    input_dtype  of the operator's floating-point inputs; says whether an FP32 output comes of low precision
    """
    if actual.shape != golden.shape:
        return OutputVerdict(name, False, [f"shape: got {list(actual.shape)}, the golden is {list(golden.shape)}"])
    if actual.dtype != golden.dtype:
        return OutputVerdict(name, False, [f"dtype: got {actual.dtype}, the golden is {golden.dtype}"])
    if not golden.numel():
        return OutputVerdict(name, True, [])
    actual, golden = actual.detach().cpu(), golden.detach().cpu()
    if spec.exact or not golden.is_floating_point():
        return _compare_bits(name, actual, golden)
    if truth is None or truth.shape != golden.shape:
        shape = None if truth is None else list(truth.shape)
        return OutputVerdict(name, False, [f"truth: its shape is {shape}, the golden is {list(golden.shape)}"])
    return _compare_figures(name, actual, golden, truth.detach().cpu().double(), spec, input_dtype)


def floor(golden: torch.Tensor, truth: torch.Tensor, atol: float = Output.atol) -> float:
    """The RMSE against truth that the best possible kernel would have; see the head of this module.

    golden and truth have one shape and hold finite values; the dtype of golden is the output's.
    """
    if not golden.numel():
        return 0.0
    first, second, least = _floor_squares(golden.double(), truth.double(), golden.dtype, atol)
    return math.sqrt(max(first.mean().item(), second.mean().item(), least))


def spacing(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Distance between neighbouring numbers of `dtype` at each of `values` (FP64), as FP64."""
    info = torch.finfo(dtype)
    exponent = values.contiguous().view(torch.int64) & 0x7FF0_0000_0000_0000
    return exponent.view(torch.float64).clamp_(min=info.smallest_normal).mul_(info.eps)


def is_low_precision(dtype: torch.dtype | None) -> bool:
    """Whether `dtype` is a floating-point type of less than 32 bits."""
    return dtype is not None and dtype.is_floating_point and dtype.itemsize < 4


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
        lead, row, col = _unravel(tile, (math.prod(self.lead), self.down, self.across))
        corner = [(i, i + 1) for i in _unravel(lead, self.lead)]
        corner.append((row * self.height, min((row + 1) * self.height, self.rows)))
        corner.append((col * self.width, min((col + 1) * self.width, self.cols)))
        spans = [(0, size) for size in self.shape]
        for dim, span in zip(reversed(self.kept), reversed(corner)):
            spans[dim] = span
        return tuple(spans)


def tile_ratios(
    actual: torch.Tensor, golden: torch.Tensor, truth: torch.Tensor, atol: float = Output.atol
) -> tuple[Tiling, torch.Tensor]:
    """RMSE over floor for each tile: the tiling, and the ratios as [leading, tiles down, tiles across], FP64.

    NaN for a tile with an element that is NaN, or Inf where the golden is not.
    """
    tiling = Tiling(golden.shape)
    y, g, t = actual.double(), golden.double(), truth.double()
    agreed = (y.isfinite() & g.isfinite()) | (~y.isfinite() & ((y == g) | g.isnan()))
    sound = y.isfinite() & g.isfinite() & t.isfinite()
    zero = torch.zeros((), dtype=torch.float64)
    y, g, t = (x.where(sound, zero) for x in (y, g, t))
    error = (y - t).square_().where(agreed, zero + math.nan)
    return tiling, _tile_ratios(tiling, error, *_floor_squares(g, t, golden.dtype, atol))


def where(spans: Span) -> str:
    """A block as it would be written to index the output: `[3, 0:16, 48:64]`."""
    return "[" + ", ".join(map(span, spans)) + "]"


def span(run: tuple[int, int]) -> str:
    """One dimension of a block: `3` or `0:16`."""
    start, stop = run
    return str(start) if stop == start + 1 else f"{start}:{stop}"


def _compare_bits(name: str, actual: torch.Tensor, golden: torch.Tensor) -> OutputVerdict:
    if golden.is_floating_point() and golden.isnan().any():
        return OutputVerdict(name, False, [_nan_in_golden(golden)])
    integer = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[golden.dtype.itemsize]
    wrong = actual.contiguous().view(integer) != golden.contiguous().view(integer)
    violations = int(wrong.sum())
    if not violations:
        return OutputVerdict(name, True, [])
    error = (actual.double() - golden.double()).abs().nan_to_num_(nan=math.inf)
    index = _unravel(int(wrong.double().flatten().argmax()), golden.shape)
    tiling = Tiling(golden.shape)
    tile = int(tiling.sums(wrong.double()).argmax())
    reasons = [
        f"exact: {violations} of {golden.numel()} elements differ from the golden in their bits; the first at "
        f"{list(index)}: got {actual[index].item()}, golden {golden[index].item()}"
    ]
    unwritten = wrong & _untouched(actual)
    if unwritten.any():
        reasons.append(f"{int(unwritten.sum())} elements still have the value they started with: never written")
    from .diagnose import diagnose

    return OutputVerdict(
        name,
        False,
        reasons,
        max_abs=error.max().item(),
        max_rel=(error / golden.double().abs()).nan_to_num_(nan=0.0, posinf=0.0).max().item(),
        worst_index=index,
        violations=violations,
        worst_tile=tiling.span(tile),
        diagnosis=diagnose(actual, golden, golden.double(), wrong),
    )


def _compare_figures(
    name: str,
    actual: torch.Tensor,
    golden: torch.Tensor,
    truth: torch.Tensor,
    spec: Output,
    input_dtype: torch.dtype | None,
) -> OutputVerdict:
    store, shape, count = golden.dtype, golden.shape, golden.numel()
    y, g, t = actual.double(), golden.double(), truth
    reasons, misfits = _finiteness(y, g, t)
    if misfits is not None:
        # Judge what can be judged: elsewhere all three agree, and add nothing to any figure.
        finite = y.isfinite() & g.isfinite() & t.isfinite()
        y, g, t = (x.where(finite, torch.zeros((), dtype=x.dtype)) for x in (y, g, t))

    # Contract
    error = (y - g).abs_()
    size = g.abs()
    allowed = (size * spec.rtol).add_(spec.atol)
    broken = error > allowed
    violations = int(broken.sum())
    max_abs = error.max().item()
    max_rel = (error / size).nan_to_num_(nan=0.0, posinf=0.0).max().item()
    worst = int((error / allowed).nan_to_num_(nan=0.0, posinf=math.inf).argmax())

    # Gauge
    squares = _floor_squares(g, t, store, spec.atol)
    least = squares[2]
    base = math.sqrt(max(squares[0].mean().item(), squares[1].mean().item(), least))
    error = y - t
    rms = math.sqrt(t.square().mean().item())
    bias = error.mean().item() / rms if rms else 0.0
    tiling = Tiling(shape)
    error_squares = error.square()
    rmse = math.sqrt(error_squares.mean().item())
    golden_rmse = math.sqrt((g - t).square_().mean().item())
    ratio = _quotient(rmse, base)
    ratios = _tile_ratios(tiling, error_squares, *squares)
    scatter = _scatter(tiling.counts())
    tile = int((ratios / scatter).argmax())
    tile_ratio = ratios.flatten()[tile].item()
    tile_limit = spec.worst_tile * scatter.expand_as(ratios).flatten()[tile].item()
    unit, ulp_name = _ulp(t, tiling, store, spec, input_dtype, least)
    ulps = error.abs_().div_(unit)
    furthest = int(ulps.argmax())
    max_ulp = ulps.flatten()[furthest].item()

    flips = int((broken & (ulps <= spec.max_ulp)).sum())
    granted = math.ceil(spec.flips * count)  # a grant is at least one element, however small the output
    if violations > flips or violations > granted:
        index = _unravel(worst, shape)
        text = (
            f"contract: {violations} of {count} elements are further from the golden than "
            f"{spec.atol:g} + {spec.rtol:g} * |golden|; the worst at {list(index)}: "
            f"got {y[index].item():.6g}, golden {g[index].item():.6g}"
        )
        if spec.flips:
            text += f" (flips: {flips} within {spec.max_ulp:g} ULP, {granted} granted)"
        reasons.append(text)
    budget = spec.budget * _scatter(count)
    if ratio > budget:
        text = f"gauge: RMSE against truth is {rmse:.3g}, {ratio:.3g} times the floor {base:.3g}; the budget is {budget:.3g}"
        if _quotient(golden_rmse, base) > budget:
            text += f" (the golden itself has {_quotient(golden_rmse, base):.3g}: the budget leaves its dtype flow no room)"
        reasons.append(text)
    if tile_ratio > tile_limit:
        reasons.append(
            f"worst tile: RMSE of {where(tiling.span(tile))} is {tile_ratio:.3g} times its floor; the limit is {tile_limit:.3g}"
        )
    if max_ulp > spec.max_ulp:
        index = _unravel(furthest, shape)
        reasons.append(
            f"worst element: {list(index)} is {max_ulp:.3g} {ulp_name} from truth; the limit is {spec.max_ulp:g}: "
            f"got {y[index].item():.6g}, truth {t[index].item():.6g}"
        )
    tolerable = max(2.0**-4, 2 * torch.finfo(store).eps) * rms + spec.atol
    if golden_rmse > tolerable:
        reasons.append(
            f"golden: its RMSE against truth is {golden_rmse:.3g}, where truth has RMS {rms:.3g}: one of the two is wrong"
        )

    diagnosis = ""
    if len(reasons) == 1 and granted < violations == flips <= math.ceil(1e-4 * count):
        diagnosis = f"rounding flips of an intermediate: all within {spec.max_ulp:g} ULP of truth"
    elif reasons:
        from .diagnose import diagnose

        wrong = broken | (ulps > spec.max_ulp)
        if misfits is not None:
            wrong |= misfits
        diagnosis = diagnose(actual, golden, t, wrong, base, input_dtype)
    if misfits is not None:
        worst = int(misfits.double().flatten().argmax())
    elif not violations:
        worst = furthest
    return OutputVerdict(
        name,
        not reasons,
        reasons,
        max_abs=max_abs,
        max_rel=max_rel,
        worst_index=_unravel(worst, shape),
        violations=violations,
        flips=flips,
        rmse_ratio=ratio,
        worst_tile_ratio=tile_ratio,
        worst_tile=tiling.span(tile),
        max_ulp=max_ulp,
        bias=bias,
        golden_ratio=_quotient(golden_rmse, base),
        diagnosis=diagnosis,
    )


def _finiteness(y: torch.Tensor, g: torch.Tensor, t: torch.Tensor) -> tuple[list[str], torch.Tensor | None]:
    """Sentences on NaN and Inf, and where y is at odds with g in them; None when all three are finite throughout."""
    # A sum is finite when all its terms are (and rarely not although they are): one pass instead of three masks.
    if math.isfinite(y.sum().item()) and math.isfinite(g.sum().item()) and math.isfinite(t.sum().item()):
        return [], None
    reasons = []
    if g.isnan().any():
        reasons.append(_nan_in_golden(g))
    odd = g.isfinite() & ~t.isfinite()
    if odd.any():
        reasons.append(f"truth: {int(odd.sum())} elements are not finite where the golden is, in {where(box(odd))}")
    nan = y.isnan() & ~g.isnan()
    if nan.all():
        reasons.append("NaN everywhere: the kernel never wrote this output")
    elif nan.any():
        reasons.append(f"NaN: {int(nan.sum())} elements, in {where(box(nan))}, were never written or were computed as NaN")
    inf = (y.isinf() | g.isinf()) & (y != g) & ~nan
    if inf.any():
        first = _unravel(int(inf.double().flatten().argmax()), y.shape)
        reasons.append(
            f"Inf: {int(inf.sum())} elements, in {where(box(inf))}; the first at {list(first)}: "
            f"got {y[first].item():.6g}, golden {g[first].item():.6g}"
        )
    return reasons, nan | inf


def _floor_squares(
    g: torch.Tensor, t: torch.Tensor, store: torch.dtype, atol: float
) -> tuple[torch.Tensor, torch.Tensor, float]:
    """(a, b, least): the squared floor of any set of elements is max(mean(a), mean(b), least). g and t are FP64."""
    own = (g - t).square_()
    size = t.square()
    own_mean, size_mean = own.mean().item(), size.mean().item()
    least = atol**2 if own_mean >= size_mean / 16 else FP32_NOISE**2 * size_mean
    if is_low_precision(store):
        rounded = t.to(store).double()
        # Where truth rounds to Inf the golden has its say; the floor takes the spacing.
        first = (rounded - t).where(rounded.isfinite(), torch.zeros((), dtype=t.dtype)).square_()
        return first, spacing(t, store).square_().div_(12), least
    relative = own_mean / size_mean if size_mean else 0.0
    return own, size.mul_(max(relative, FP32_NOISE**2)), least


def _tile_ratios(
    tiling: Tiling, error_squares: torch.Tensor, first: torch.Tensor, second: torch.Tensor, least: float
) -> torch.Tensor:
    base = torch.maximum(tiling.sums(first), tiling.sums(second))
    base = torch.maximum(base, tiling.counts() * least).clamp_(min=torch.finfo(torch.float64).tiny)
    return tiling.sums(error_squares).div_(base).sqrt_()


def _ulp(
    t: torch.Tensor, tiling: Tiling, store: torch.dtype, spec: Output, input_dtype: torch.dtype | None, least: float
) -> tuple[torch.Tensor, str]:
    """The unit of `max_ulp` for each element, and what it is called."""
    rows = tiling.sheets(t)
    scale = torch.maximum(rows.abs(), rows.square().mean(-1, keepdim=True).sqrt_()).view(t.shape)
    dtype = spec.ulp_dtype or (store if is_low_precision(store) or not is_low_precision(input_dtype) else input_dtype)
    if is_low_precision(dtype):
        unit, name = spacing(scale, dtype), f"ULP of {str(dtype).removeprefix('torch.')}"
    else:
        unit, name = scale.mul_(FP32_NOISE), "ULP (2^-19 of its scale)"
    return unit.clamp_(min=max(math.sqrt(least), torch.finfo(torch.float64).tiny)), name


def _scatter(count):
    """By how much the limit of a set of `count` elements (a number or a tensor) is wider than that of a full tile."""
    if isinstance(count, torch.Tensor):
        return (TILE * TILE / count).clamp_(min=1.0).sqrt_()
    return math.sqrt(max(1.0, TILE * TILE / count))


def _quotient(a: float, b: float) -> float:
    return a / b if b else (math.inf if a else 0.0)


def _nan_in_golden(g: torch.Tensor) -> str:
    return f"golden: {int(g.isnan().sum())} elements are NaN, in {where(box(g.isnan()))}"


def lines(mask: torch.Tensor) -> list[torch.Tensor]:
    """For each dimension, at which of its indices `mask` holds something."""
    dims = range(mask.dim())
    return [mask.sum([i for i in dims if i != dim]) > 0 if mask.dim() > 1 else mask for dim in dims]


def box(mask: torch.Tensor) -> Span:
    """The smallest block that holds all of `mask`, which holds something."""
    hits = [line.nonzero().flatten() for line in lines(mask)]
    return tuple((int(hit[0]), int(hit[-1]) + 1) for hit in hits)


def _untouched(x: torch.Tensor) -> torch.Tensor:
    """Where x has the value that an output starts with (a bool has none to spare)."""
    if x.dtype == torch.bool:
        return torch.zeros_like(x)
    return x.isnan() if x.is_floating_point() else x == torch.iinfo(x.dtype).min


def _unravel(index: int, shape) -> tuple[int, ...]:
    place = []
    for size in reversed(tuple(shape)):
        index, at = divmod(index, size)
        place.append(at)
    return tuple(reversed(place))
