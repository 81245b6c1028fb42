"""Lengths by bisection: what fits at a length fits at every shorter one."""

from __future__ import annotations

from collections.abc import Callable


def longest_length(fits: Callable[[int], bool], longest: int) -> int | None:
    """The largest n in 1..longest with fits(n), which holds for every shorter length, too."""
    if fits(longest):
        return longest
    low, high = 0, longest  # low fits (or is nothing), high does not
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low or None
