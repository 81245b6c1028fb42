"""Rhythm: how a spec's block counts go with the length of a request, so that two plans can be
compared at every length by looking at a few.

    blocks   full          a window: like full, then up and down by a block for ever
      |        _-              _- - - - - -
      |     _-              _-
      |  _-              _-
      +------------ n    +-----|----------- n
                              turn
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Stretch:
    """Lengths from `start` tokens on, up to the next stretch. period: tokens after which the count
    has changed by one and the same number, wherever in the stretch; None: by no such number."""

    start: int
    period: int | None


@dataclass(frozen=True, kw_only=True)
class Rhythm:
    """stretches: in ascending order, the first from length 1. edges: (r, m): between two lengths of
    one stretch the count changes only at a length n with n % m == r % m for one of them."""

    stretches: tuple[Stretch, ...]
    edges: tuple[tuple[int, int], ...] = ()

    def period_at(self, length: int) -> int | None:
        """Of the stretch in which a length lies."""
        return next(s.period for s in reversed(self.stretches) if s.start <= length)


def rhythm(*turns: tuple[int, int | None], edges: tuple[tuple[int, int], ...] = ()) -> Rhythm:
    """From (start, period) pairs in ascending order of their start; of equal starts the last."""
    last = dict(turns)
    stretches = tuple(Stretch(start=start, period=period) for start, period in last.items())
    return Rhythm(stretches=stretches, edges=edges)


CONSTANT = rhythm((1, 1))
