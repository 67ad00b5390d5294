"""What error the best possible kernel would have; the head of compare.py says why."""

from __future__ import annotations

import math

import torch

from .records import Output

FP32_NOISE = 2.0**-19
"""Relative error that FP32 summation may leave in any order. A running sum of K random terms has a relative RMS error
of 0.41 * sqrt(K) * 2**-24: this is K = 6000."""


def floor(golden: torch.Tensor, truth: torch.Tensor, atol: float = Output.atol) -> float:
    """The RMSE against truth that the best possible kernel would have; see the head of compare.py.

    golden and truth have one shape and hold finite values; the dtype of golden is the output's.
    """
    if not golden.numel():
        return 0.0
    first, second, least = floor_squares(golden.double(), truth.double(), golden.dtype, atol)
    return math.sqrt(max(first.mean().item(), second.mean().item(), least))


def floor_squares(
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


def spacing(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Distance between neighbouring numbers of `dtype` at each of `values` (FP64), as FP64."""
    info = torch.finfo(dtype)
    exponent = values.contiguous().view(torch.int64) & 0x7FF0_0000_0000_0000
    return exponent.view(torch.float64).clamp_(min=info.smallest_normal).mul_(info.eps)


def is_low_precision(dtype: torch.dtype | None) -> bool:
    """Whether `dtype` is a floating-point type of less than 32 bits."""
    return dtype is not None and dtype.is_floating_point and dtype.itemsize < 4
