"""Round steps of an axis, and the values that it shows."""

from __future__ import annotations

from math import floor, log10

MOST_TICKS = 6


def round_step(whole: float, most: int = MOST_TICKS) -> float:
    """The smallest of 1, 2, 5 x 10^n that gives at most so many steps."""
    least = whole / most
    power = 10.0 ** floor(log10(least)) if least > 0 else 1.0
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least)


def ticks(whole: float) -> list[float]:
    """From 0 up to the whole, which is more than 0, in round steps."""
    step = round_step(whole)
    return [step * number for number in range(int(whole / step + 1e-9) + 1)]
