"""Figures at every length between two stops, as closed forms that were read off plans.

Along a stretch of a spec's rhythm a figure is `base + slope * length`, and a step at each edge:

    base + slope * length + sum of height * floor((length - r) / m)

Slope and heights are the differences of plans of neighbouring lengths. Every form is checked with
the plans of the stops that it passes, of its ends and of a few lengths at random; where one of them
says otherwise the stretch stays without: there, stops alone are known.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice, pairwise

from kvpipe.cache.plan import Plan
from kvpipe.page.counts import Alike, Counts, most_held_before
from kvpipe.specs.edges import largest

Counted = tuple[Counts, Plan] | None  # of a length; None: refused there, or not known beside it
_MOST_OF_A_STRETCH, _RANDOM_CHECKS, _TRIED = 4, 2, 64


@dataclass(frozen=True, kw_only=True)
class Form:
    """steps: (height, r, m)."""

    base: int
    slope: int = 0
    steps: tuple[tuple[int, int, int], ...] = ()

    def at(self, length: int) -> int:
        stepped = (height * ((length - r) // m) for height, r, m in self.steps)
        return self.base + self.slope * length + sum(stepped)


@dataclass(frozen=True, kw_only=True)
class Piece:
    """Lengths first to last, both known. held_before: the most blocks that a shorter request holds
    while it decodes; period: tokens after which the blocks of one have changed by one number."""

    first: int
    last: int
    alike: Alike
    figures: dict[str, Form]
    held_before: int
    period: int


@dataclass(kw_only=True)
class Lengths:
    """Plans of one combination of the other sliders, by length; each is made once."""

    plan: Callable[[int], Counted]
    _made: dict[int, Counted] = field(default_factory=dict, repr=False)

    def at(self, length: int) -> Counted:
        if length not in self._made:
            self._made[length] = self.plan(length)
        return self._made[length]

    def counts(self, length: int) -> Counts | None:
        found = self.at(length)
        return found[0] if found else None

    def alike(self, length: int) -> Alike | None:
        found = self.counts(length)
        return found.alike if found else None


def pieces_of(lengths: Lengths, stops: Sequence[int]) -> Iterator[Piece]:
    """stops: the slider's, in order; those that are refused end what is known."""
    known = [stop for stop in stops if lengths.at(stop)]
    if not known:
        return
    first, counts = known[0], lengths.counts(known[0])
    assert counts is not None
    last = _last_known(lengths, known[-1], stops)
    starts = sorted(n for n in counts.starts if first < n <= last)
    for low, above in pairwise([first, *starts, last + 1]):
        for start, end in islice(_alike_stretches(lengths, low, above - 1), _MOST_OF_A_STRETCH):
            piece = _piece(lengths, start, end, stops)
            if piece is not None:
                yield piece


def _last_known(lengths: Lengths, known: int, stops: Sequence[int]) -> int:
    """Longer than the last stop that is served there may be some before the next one."""
    beyond = [stop for stop in stops if stop > known]
    if not beyond:
        return known
    return largest(known, beyond[0], lambda n: lengths.at(n) is not None) or known


def _alike_stretches(lengths: Lengths, low: int, high: int) -> Iterator[tuple[int, int]]:
    """Cut where what must be alike is not: a verdict turns, a flag is said. Of other groups nothing
    is known in between."""
    while low <= high:
        here, there = lengths.alike(low), lengths.alike(high)
        if here is None or there is None or here.layout != there.layout:
            return
        end = largest(low, high, lambda n, here=here: lengths.alike(n) == here) or low  # type: ignore[misc]
        yield low, end
        low = end + 1


def _piece(lengths: Lengths, first: int, last: int, stops: Sequence[int]) -> Piece | None:
    found = lengths.at(first)
    if found is None or first == last:
        return None
    counts, plan = found
    forms = _forms(lengths, counts, first, last)
    if forms is None:
        return None
    chance = random.Random(first * 31 + last)
    checked = {stop for stop in stops if first <= stop <= last} | {first, last}
    checked |= {chance.randint(first, last) for _ in range(_RANDOM_CHECKS)}
    for length in checked:
        there = lengths.counts(length)
        if there is None or there.alike != counts.alike:
            return None
        if there.figures.keys() - forms.keys():
            return None
        if any(form.at(length) != there.figures.get(name, 0) for name, form in forms.items()):
            return None
    return Piece(
        first=first,
        last=last,
        alike=counts.alike,
        figures=forms,
        held_before=most_held_before(plan, counts, first),
        period=counts.period,
    )


def _forms(lengths: Lengths, counts: Counts, first: int, last: int) -> dict[str, Form] | None:
    """None where a stretch is too short to see each of its edges alone."""
    edges = [edge for edge in counts.edges if _within(edge, first, last)]
    quiet = _step(edges, first, last, ())
    slopes = _difference(lengths, quiet) if quiet is not None else None
    if slopes is None:
        return None
    heights: dict[tuple[int, int], dict[str, int]] = {}
    for edge in edges:
        at = _step(edges, first, last, (edge, *heights), edge)
        rise = _difference(lengths, at) if at is not None else None
        if rise is None or at is None:
            return None
        also = [slopes, *(rises for other, rises in heights.items() if _is_on(other, at))]
        heights[edge] = {
            name: rise.get(name, 0) - sum(other.get(name, 0) for other in also)
            for name in {*rise, *slopes}
        }
    names = set(counts.figures) | {name for rise in heights.values() for name in rise}
    return {name: _form(name, counts, first, slopes, heights) for name in names}


def _form(
    name: str,
    counts: Counts,
    first: int,
    slopes: dict[str, int],
    heights: dict[tuple[int, int], dict[str, int]],
) -> Form:
    rises = {edge: rise.get(name, 0) for edge, rise in heights.items()}
    steps = tuple((height, *edge) for edge, height in rises.items() if height)
    form = Form(base=0, slope=slopes.get(name, 0), steps=steps)
    base = counts.figures.get(name, 0) - form.at(first)
    return Form(base=base, slope=form.slope, steps=steps)


def _is_on(edge: tuple[int, int], length: int) -> bool:
    return length % edge[1] == edge[0]


def _within(edge: tuple[int, int], first: int, last: int) -> bool:
    """Whether the step is met after the first length."""
    return first + 1 + (edge[0] - first - 1) % edge[1] <= last


def _step(
    edges: Sequence[tuple[int, int]],
    first: int,
    last: int,
    known: Sequence[tuple[int, int]],
    on: tuple[int, int] | None = None,
) -> int | None:
    """A length in first + 1 .. last on the edge `on`, and on no other that is not known yet."""
    start, stride = first + 1, 1
    if on is not None:
        start, stride = first + 1 + (on[0] - first - 1) % on[1], on[1]
    for length in range(start, min(last + 1, start + _TRIED * stride), stride):
        if all(edge in known or not _is_on(edge, length) for edge in edges):
            return length
    return None


def _difference(lengths: Lengths, length: int) -> dict[str, int] | None:
    """Of every figure from the length before to this one."""
    before, here = lengths.counts(length - 1), lengths.counts(length)
    if before is None or here is None:
        return None
    names = {*before.figures, *here.figures}
    return {name: here.figures.get(name, 0) - before.figures.get(name, 0) for name in names}
