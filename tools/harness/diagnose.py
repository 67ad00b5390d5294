"""Guesses from the pattern of errors what a kernel did wrong: a hint for the reader, never part of the verdict."""

from __future__ import annotations

import math

import torch

from .floors import is_low_precision
from .tiling import Tiling, lines, span

_WINDOW = 32  # rows and columns that are searched for low rank


def diagnose(
    actual: torch.Tensor,
    golden: torch.Tensor,
    truth: torch.Tensor,
    wrong: torch.Tensor,
    floor: float = 0.0,
    input_dtype: torch.dtype | None = None,
) -> str:
    """What the errors of a failed output look like, as a short phrase, or '' when they look like nothing known.

    actual, golden  one shape and dtype
    truth           the same shape, FP64
    wrong           the same shape, bool: elements that are wrong one by one
    floor           RMSE that is no error
    input_dtype     of the operator's inputs
    """
    found = _not_stored(actual, golden, wrong)
    if found:
        return found
    tiling = Tiling(golden.shape)
    y, g, t = (tiling.sheets(x.double()) for x in (actual, golden, truth))
    finite = y.isfinite() & g.isfinite() & t.isfinite()
    if not finite.all():
        y, g, t = (x.where(finite, torch.zeros((), dtype=x.dtype)) for x in (y, g, t))
    if not t.any():
        return ""
    noise = max(floor, 1e-12 * _rms(t))
    low = next((d for d in (golden.dtype, input_dtype) if is_low_precision(d)), torch.bfloat16)
    return (
        _stale_rows(y, g, tiling.sheets(wrong), noise)
        or _transposed(y, t, noise)
        or _truncation(y, t, noise, low)
        or _gain(y, t, noise)
        or _row_gain(y, t, noise)
        or _missing_term(y - t, golden.shape, noise)
        or _coarse_sum(y, t, tiling, noise)
    )


def _not_stored(y: torch.Tensor, g: torch.Tensor, wrong: torch.Tensor) -> str:
    """What shows in single elements: zeros, a tile or tail without a value, one wrong element, a mask's edge."""
    count = int(wrong.sum())
    unwritten = (y.isnan() & wrong) if y.is_floating_point() else torch.zeros_like(wrong)
    if not count:
        return ""
    if unwritten.all():
        return "nothing was written"
    if not y.any() and g.any():
        return "zeros"
    if count == 1:
        return "one NaN" if unwritten.any() else "one wrong element"
    if _mask_edge(y, g):
        return "mask off by one"
    zero = (y == 0) & wrong
    for missing, state in ((unwritten, "never written"), (zero, "zero")):
        if int(missing.sum()) >= 0.99 * count:
            return _place(missing, state)
    return ""


def _place(missing: torch.Tensor, state: str) -> str:
    """Names the block, or the several blocks, that were not stored."""
    runs = [_runs(line) for line in lines(missing)]
    where = ", ".join("+".join(span(run) for run in dim[:4]) + "+…" * (len(dim) > 4) for dim in runs)
    cut = [(dim, size) for dim, size in zip(runs, missing.shape) if dim != [(0, size)]]
    at_end = cut and all(len(dim) == 1 and dim[0][1] == size for dim, size in cut)
    what = "last tile" if at_end else "a tile" if all(len(dim) == 1 for dim in runs) else "several tiles"
    return f"{what} not stored: [{where}] is {state}"


def _runs(line: torch.Tensor) -> list[tuple[int, int]]:
    """(start, stop) of each run of True."""
    edges = torch.nn.functional.pad(line.to(torch.int8), (1, 1)).diff().nonzero().flatten().tolist()
    return list(zip(edges[::2], edges[1::2]))


def _mask_edge(y: torch.Tensor, g: torch.Tensor) -> bool:
    """Whether most rows have exactly one element that is zero on one side only."""
    tiling = Tiling(g.shape)
    per_row = ((tiling.sheets(y) == 0) != (tiling.sheets(g) == 0)).sum(-1).flatten()
    return len(per_row) >= 8 and int(per_row.max()) == 1 and int(per_row.sum()) >= len(per_row) / 2


def _stale_rows(y: torch.Tensor, g: torch.Tensor, wrong: torch.Tensor, noise: float) -> str:
    """A few rows that hold what belongs into another row."""
    cols = y.shape[-1]
    y, g, wrong = (x.reshape(-1, cols) for x in (y, g, wrong))
    rows = wrong.any(-1).nonzero().flatten()
    if cols < 2 or not 0 < len(rows) <= max(1, len(y) // 4):
        return ""
    for row in rows[:8].tolist():
        distance = (g - y[row]).square_().mean(-1).sqrt_()
        distance[row] = math.inf
        nearest = int(distance.argmin())
        if distance[nearest] <= 4 * max(noise, 2.0**-9 * _rms(y[row])) and _rms(y[row]):
            return f"stale row: row {row} holds row {nearest}"
    return ""


def _transposed(y: torch.Tensor, t: torch.Tensor, noise: float) -> str:
    """The last two dimensions in each other's place, in a square output or in memory."""
    lead, rows, cols = t.shape
    if rows < 2 or cols < 2:
        return ""
    other = t.mT.reshape(lead, rows, cols)
    return "transposed" if _rms(y - other) <= max(4 * noise, 0.01 * _rms(t)) else ""


def _gain(y: torch.Tensor, t: torch.Tensor, noise: float) -> str:
    """One factor on everything."""
    factor, rest = _fit(y, t)
    if rest <= 2 * noise * max(1.0, abs(factor)) and abs(factor - 1) * _rms(t) > noise:
        return f"gain {factor:.4g}"
    return ""


def _truncation(y: torch.Tensor, t: torch.Tensor, noise: float, low: torch.dtype) -> str:
    """The loss that comes of cutting off: half a unit on average, that is eps / 2 * E(1 / mantissa) = 0.36 * eps."""
    factor, rest = _fit(y, t)
    eps = torch.finfo(low).eps
    if 0.8 < (1 - factor) / (0.36 * eps) < 1.25 and rest <= 2 * max(noise, 0.2 * eps * _rms(t)):
        name = str(low).removeprefix("torch.").upper().replace("BFLOAT", "BF").replace("FLOAT", "FP")
        return f"truncating cast to {name} (gain {factor:.4f})"
    return ""


def _row_gain(y: torch.Tensor, t: torch.Tensor, noise: float) -> str:
    """One factor on each row."""
    if t.shape[-1] < 8 or t.shape[-2] * t.shape[0] < 2:
        return ""
    factor = (y * t).sum(-1, keepdim=True) / t.square().sum(-1, keepdim=True).clamp_min(1e-300)
    rest, error = _rms(y - factor * t), _rms(y - t)
    if rest <= max(1.5 * noise, 0.1 * error):
        return "a factor per row is off: the row's sum is coarse (BF16 accumulator) or its mask off by one"
    return ""


def _missing_term(error: torch.Tensor, shape: torch.Size, noise: float) -> str:
    """Errors of low rank: a sum has a term too few or too many.

    A window is looked at, since packed sequences and heads side by side each have a term of their own; its rows are
    those of the last dimension but one, or of the first (tokens, in `[tokens, heads, head_dim]`).
    """
    ways = [error]
    if len(shape) > 2:
        ways.append(error.reshape(shape[0], -1, shape[-1]).transpose(0, 1))
    for sheets in ways:
        sheet = sheets[int(sheets.square().sum((-1, -2)).argmax())]
        row, col = divmod(int(sheet.abs().argmax()), sheet.shape[1])
        top, left = (max(0, min(at - _WINDOW // 2, size - _WINDOW)) for at, size in zip((row, col), sheet.shape))
        window = sheet[top : top + _WINDOW, left : left + _WINDOW]
        if min(window.shape) < 16 or _rms(window) < 3 * noise:
            continue
        energy = torch.linalg.svdvals(window).square_()
        if energy[: len(energy) // 8].sum() >= 0.95 * energy.sum():
            return "mask off by one: a sum has a term too few or too many"
    return ""


def _coarse_sum(y: torch.Tensor, t: torch.Tensor, tiling: Tiling, noise: float) -> str:
    """Noise of about one size everywhere, as large as the rounding of a low-precision accumulator."""
    error, size = _rms(y - t), _rms(t)
    tiles = (tiling.sums((y - t).square_()) / tiling.counts()).sqrt_()
    even = (tiles > 0.2 * error).double().mean().item() > 0.5
    if not even or error < 1.5 * noise:
        return ""
    if 2.0**-10 < error / size < 2.0**-2:
        return "BF16 accumulator: noise of that size everywhere"
    if 2.0**-14 < error / size <= 2.0**-10:
        return "FP16 (or HF32) accumulator: noise of that size everywhere"
    return ""


def _fit(y: torch.Tensor, t: torch.Tensor) -> tuple[float, float]:
    """The factor on t that comes closest to y, and the RMS of what it leaves."""
    factor = float((y * t).sum() / t.square().sum())
    return factor, _rms(y - factor * t)


def _rms(x: torch.Tensor) -> float:
    return math.sqrt(x.square().mean().item())
