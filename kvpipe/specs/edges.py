"""Where something stops to hold: bisection over whole numbers.

What is asked must hold up to an edge, or from it on: what fits at a length fits at every shorter
one, a share of the card that suffices suffices if it is larger.
"""

from __future__ import annotations

from collections.abc import Callable


def largest(low: int, high: int, holds: Callable[[int], bool]) -> int | None:
    """The largest n in low..high that holds, if all smaller ones do; None: not even low, or there
    is none."""
    if high < low:
        return None
    if holds(high):
        return high
    below, above = low - 1, high  # below holds (or is no candidate), above does not
    while above - below > 1:
        middle = (below + above) // 2
        below, above = (middle, above) if holds(middle) else (below, middle)
    return below if below >= low else None


def smallest(low: int, high: int, holds: Callable[[int], bool]) -> int | None:
    """The smallest n in low..high that holds, if all larger ones do; None: not even high, or there
    is none."""
    if high < low or not holds(high):
        return None
    below, above = low - 1, high  # above holds, below does not (or is no candidate)
    while above - below > 1:
        middle = (below + above) // 2
        below, above = (below, middle) if holds(middle) else (middle, above)
    return above
