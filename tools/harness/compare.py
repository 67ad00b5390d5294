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
    * Low-precision output: the RMS error of rounding truth itself to that dtype. A small set can hold values that
      happen to be representable, so the floor is never below `spacing / sqrt(12)`, the expectation at random.
    * FP32 output: the RMS error of the golden, and in a tile never below the golden's relative error over the whole
      output; and never below `FP32_NOISE` of the truth, which is what the order of summation alone can do. This
      bound is also the floor of a computation that is FP32 throughout: a slip to FP16 or BF16 is a hundred times it.
    * No set has a floor below `FP32_NOISE` times the RMS of the whole output: a tile of zeros, or of values that
      cancel, is judged by the scale of its surroundings.
    * A truth that the golden cannot resolve (its error is a quarter of the truth's RMS or more; above all a truth of
      zeros, where terms cancel exactly) has no scale to be relative to. `atol` is then the floor.

The limits are those of a full tile, 256 elements. The RMS of fewer elements scatters more: their limit is multiplied by
`sqrt(256 / n)`, and contract and ULP bound hold what that lets through. An empty output passes when its shape and dtype
are right.

Tiles are 16x16 over the last two dimensions, the block that cube and vector units work on. Dimensions of size 1 do not
count, so `[tokens, heads, 1]` is tiled over tokens and heads. Where one side is shorter than 16 the other grows, so
that a tile keeps its 256 elements: a vector is cut into runs of 256, `[n, 4]` into `64x4`.

A ULP is the spacing of `ulp_dtype` at `max(|truth|, RMS of the row)`. `ulp_dtype` is by default the output's dtype, and
for an FP32 output of low-precision inputs that of the inputs. For FP32 inputs it is `FP32_NOISE` of that scale.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

import torch

from .diagnose import diagnose
from .floors import FP32_NOISE, floor, floor_squares, is_low_precision, spacing
from .records import Output
from .tiling import TILE, Span, Tiling, box, unravel, where

__all__ = ["OutputVerdict", "compare", "floor", "tile_ratios"]


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
    return tiling, _tile_ratios(tiling, error, *floor_squares(g, t, golden.dtype, atol))


def _compare_bits(name: str, actual: torch.Tensor, golden: torch.Tensor) -> OutputVerdict:
    if golden.is_floating_point() and golden.isnan().any():
        return OutputVerdict(name, False, [_nan_in_golden(golden)])
    integer = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[golden.dtype.itemsize]
    wrong = actual.contiguous().view(integer) != golden.contiguous().view(integer)
    violations = int(wrong.sum())
    if not violations:
        return OutputVerdict(name, True, [])
    error = (actual.double() - golden.double()).abs().nan_to_num_(nan=math.inf)
    index = unravel(int(wrong.double().flatten().argmax()), golden.shape)
    tiling = Tiling(golden.shape)
    tile = int(tiling.sums(wrong.double()).argmax())
    first = f"{list(index)}: got {actual[index].item()}, golden {golden[index].item()}"
    reasons = [f"exact: {violations} of {golden.numel()} elements differ from the golden; the first at {first}"]
    unwritten = wrong & _untouched(actual)
    if unwritten.any():
        reasons.append(f"{int(unwritten.sum())} elements still have the value they started with: never written")
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
    y, g, t = actual.double(), golden.double(), truth
    reasons, misfits = _finiteness(y, g, t)
    if misfits is not None:
        # Judge what can be judged: elsewhere all three agree, and add nothing to any figure.
        finite = y.isfinite() & g.isfinite() & t.isfinite()
        y, g, t = (x.where(finite, torch.zeros((), dtype=x.dtype)) for x in (y, g, t))
    contract = _Contract(y, g, spec)
    gauge = _Gauge(y, g, t, golden.dtype, spec, input_dtype)
    flips = int((contract.broken & (gauge.ulps <= spec.max_ulp)).sum())
    granted = math.ceil(spec.flips * y.numel())  # a grant is at least one element, however small the output
    if contract.violations > min(flips, granted):
        reasons.append(contract.reason(y, g, flips, granted))
    reasons += gauge.reasons(y, t)

    diagnosis = ""
    if len(reasons) == 1 and granted < contract.violations == flips <= math.ceil(1e-4 * y.numel()):
        diagnosis = f"rounding flips of an intermediate: all within {spec.max_ulp:g} ULP of truth"
    elif reasons:
        wrong = contract.broken | (gauge.ulps > spec.max_ulp)
        if misfits is not None:
            wrong |= misfits
        diagnosis = diagnose(actual, golden, t, wrong, gauge.floor, input_dtype)
    if misfits is not None:
        worst = int(misfits.double().flatten().argmax())
    else:
        worst = contract.worst if contract.violations else gauge.furthest
    return OutputVerdict(
        name,
        not reasons,
        reasons,
        max_abs=contract.max_abs,
        max_rel=contract.max_rel,
        worst_index=unravel(worst, y.shape),
        violations=contract.violations,
        flips=flips,
        rmse_ratio=gauge.ratio,
        worst_tile_ratio=gauge.tile_ratio,
        worst_tile=gauge.tile,
        max_ulp=gauge.max_ulp,
        bias=gauge.bias,
        golden_ratio=gauge.golden_ratio,
        diagnosis=diagnosis,
    )


class _Contract:
    """The figures of y (FP64) against the golden g (FP64): which elements are `broken`, and which is worst."""

    def __init__(self, y: torch.Tensor, g: torch.Tensor, spec: Output):
        self.spec = spec
        error, size = (y - g).abs_(), g.abs()
        allowed = (size * spec.rtol).add_(spec.atol)
        self.broken = error > allowed
        self.violations = int(self.broken.sum())
        self.max_abs = error.max().item()
        self.max_rel = (error / size).nan_to_num_(nan=0.0, posinf=0.0).max().item()
        self.worst = int((error / allowed).nan_to_num_(nan=0.0, posinf=math.inf).argmax())

    def reason(self, y: torch.Tensor, g: torch.Tensor, flips: int, granted: int) -> str:
        """What broke, and where it is worst."""
        spec, index = self.spec, unravel(self.worst, y.shape)
        text = (
            f"contract: {self.violations} of {y.numel()} elements are further from the golden than "
            f"{spec.atol:g} + {spec.rtol:g} * |golden|; the worst at {list(index)}: "
            f"got {y[index].item():.6g}, golden {g[index].item():.6g}"
        )
        return text + (f" (flips: {flips} within {spec.max_ulp:g} ULP, {granted} granted)" if spec.flips else "")


class _Gauge:
    """The figures of y against the truth t, both FP64, in units of what is attainable; g is the golden, FP64."""

    def __init__(
        self,
        y: torch.Tensor,
        g: torch.Tensor,
        t: torch.Tensor,
        store: torch.dtype,
        spec: Output,
        input_dtype: torch.dtype | None,
    ):
        self.spec, self.store = spec, store
        squares = floor_squares(g, t, store, spec.atol)
        self.floor = math.sqrt(max(squares[0].mean().item(), squares[1].mean().item(), squares[2]))
        error, tiling = y - t, Tiling(y.shape)
        self.size = math.sqrt(t.square().mean().item())
        self.bias = error.mean().item() / self.size if self.size else 0.0
        error_squares = error.square()
        self.rmse = math.sqrt(error_squares.mean().item())
        self.golden_rmse = math.sqrt((g - t).square_().mean().item())
        self.ratio, self.golden_ratio = _quotient(self.rmse, self.floor), _quotient(self.golden_rmse, self.floor)

        ratios, scatter = _tile_ratios(tiling, error_squares, *squares), _scatter(tiling.counts())
        worst = int((ratios / scatter).argmax())
        self.tile = tiling.span(worst)
        self.tile_ratio = ratios.flatten()[worst].item()
        self.tile_limit = spec.worst_tile * scatter.expand_as(ratios).flatten()[worst].item()

        unit, self.ulp_name = _ulp(t, tiling, store, spec, input_dtype, squares[2])
        self.ulps = error.abs_().div_(unit)
        self.furthest = int(self.ulps.argmax())
        self.max_ulp = self.ulps.flatten()[self.furthest].item()

    def reasons(self, y: torch.Tensor, t: torch.Tensor) -> list[str]:
        """A sentence for each limit that is exceeded."""
        spec, found = self.spec, []
        budget = spec.budget * _scatter(y.numel())
        if self.ratio > budget:
            text = (
                f"gauge: RMSE against truth is {self.rmse:.3g}, {self.ratio:.3g} times the floor {self.floor:.3g}; "
                f"the budget is {budget:.3g}"
            )
            if self.golden_ratio > budget:
                text += f" (the golden itself has {self.golden_ratio:.3g}: the budget leaves its dtype flow no room)"
            found.append(text)
        if self.tile_ratio > self.tile_limit:
            found.append(
                f"worst tile: RMSE of {where(self.tile)} is {self.tile_ratio:.3g} times its floor; "
                f"the limit is {self.tile_limit:.3g}"
            )
        if self.max_ulp > spec.max_ulp:
            index = unravel(self.furthest, y.shape)
            found.append(
                f"worst element: {list(index)} is {self.max_ulp:.3g} {self.ulp_name} from truth; "
                f"the limit is {spec.max_ulp:g}: got {y[index].item():.6g}, truth {t[index].item():.6g}"
            )
        if self.golden_rmse > max(2.0**-4, 2 * torch.finfo(self.store).eps) * self.size + spec.atol:
            found.append(
                f"golden: its RMSE against truth is {self.golden_rmse:.3g}, where truth has RMS {self.size:.3g}: "
                "one of the two is wrong"
            )
        return found


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
        where_nan = where(box(nan))
        reasons.append(f"NaN: {int(nan.sum())} elements, in {where_nan}, were never written or were computed as NaN")
    inf = (y.isinf() | g.isinf()) & (y != g) & ~nan
    if inf.any():
        first = unravel(int(inf.double().flatten().argmax()), y.shape)
        reasons.append(
            f"Inf: {int(inf.sum())} elements, in {where(box(inf))}; the first at {list(first)}: "
            f"got {y[first].item():.6g}, golden {g[first].item():.6g}"
        )
    return reasons, nan | inf


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


def _untouched(x: torch.Tensor) -> torch.Tensor:
    """Where x has the value that an output starts with (a bool has none to spare)."""
    if x.dtype == torch.bool:
        return torch.zeros_like(x)
    return x.isnan() if x.is_floating_point() else x == torch.iinfo(x.dtype).min
