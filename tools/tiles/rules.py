"""How a broken rule is told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, Mapping


@dataclass(frozen=True)
class Violation:
    """One rule that a tile breaks.

    rule     short name: `align`, `range`, `order`, `divide`, `rank`, or the memory that overflows (`L0A`, `L1`, `UB`, …)
    says     the rule with the numbers that break it
    nearest  the nearest values, by field, that keep this rule while all other fields stay as they are
    """

    rule: str
    says: str
    nearest: Mapping[str, int]

    def __str__(self) -> str:
        values = ", ".join(f"{field} = {value}" for field, value in self.nearest.items())
        return f"{self.rule}: {self.says}" + (f"; nearest: {values}" if values else "")


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def ceil_align(value: int, step: int) -> int:
    return ceil_div(value, step) * step


def nearest_multiple(value: int, step: int) -> int:
    """The positive multiple of `step` that is nearest to `value` (of two, the smaller)."""
    below = value // step * step
    return max(step, below if value - below <= below + step - value else below + step)


def multiple(found: list[Violation], field: str, value: int, step: int, why: str) -> None:
    """`value` is a positive multiple of `step`."""
    if value <= 0 or value % step:
        found.append(Violation("align", f"{field} = {value}, takes multiples of {step} ({why})", {field: nearest_multiple(value, step)}))


def fits(
    found: list[Violation],
    memory: str,
    size: int,
    formula: str,
    need: Callable[..., int],
    fields: Mapping[str, int],
    steps: Mapping[str, int],
) -> None:
    """`need(**fields)` bytes go into `memory` of `size` bytes. The first of `steps` that can cure it alone is the nearest."""
    needed = need(**fields)
    if needed <= size:
        return
    nearest = {}
    for field, step in steps.items():
        low, high = 0, fields[field] // step  # the largest multiple of `step` that fits, by bisection
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if need(**{**fields, field: middle * step}) <= size else (low, middle - 1)
        if low:
            nearest = {field: low * step}
            break
    found.append(Violation(memory, f"{formula} = {needed:,} bytes, {memory} holds {size:,}", nearest))
