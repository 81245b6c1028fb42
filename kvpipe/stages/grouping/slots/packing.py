"""Layers of a few kinds into tables: the least weight of j tables, for every j and every part of
the layers.

A table that can hold `layers` of each kind costs the same however many it holds. So the cheapest j
tables for some layers are one table and the cheapest j - 1 for the rest: exact dynamic programming.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

NEVER = 1 << 200  # the weight of what cannot be


@dataclass(frozen=True, kw_only=True)
class Fill:
    """A table to which no layer can be added: layers of each kind, its weight, tokens a block."""

    layers: tuple[int, ...]
    weight: int
    tokens: int


def undominated(fills: Sequence[Fill]) -> list[Fill]:
    """Without those that another holds at least as much as, for no more."""
    kept: list[Fill] = []
    if fills and len(fills[0].layers) == 1:
        for fill in sorted(fills, key=lambda f: (f.weight, -f.layers[0], f.tokens)):
            if not kept or fill.layers > kept[-1].layers:
                kept.append(fill)
        return kept
    for fill in sorted(fills, key=lambda f: (f.weight, [-n for n in f.layers], f.tokens)):
        if not any(all(map(int.__le__, fill.layers, other.layers)) for other in kept):
            kept.append(fill)
    return kept


class Packing:
    """levels[j][s]: least weight of at most j tables that hold the layers of state s; the states
    are all parts of `counts`, the last of them all."""

    def __init__(
        self, counts: tuple[int, ...], fills: Sequence[Fill], most: int, least: int = 0
    ) -> None:
        """most: tables. least: weight that all layers have at least, so that no table more pays."""
        self.fills, self.counts = fills, counts
        self._rests = [rests_of(counts, fill.layers) for fill in fills]
        self.levels = [[0] + [NEVER] * self._number(counts)]
        least = max(least, self._least(counts))
        while len(self.levels) <= most and self.levels[-1][-1] > least:
            more = self._one_table_more(self.levels[-1])
            if more == self.levels[-1]:  # and so would each table after it
                break
            self.levels.append(more)

    def _number(self, layers: tuple[int, ...]) -> int:
        """Of a state, in the order in which the last count goes up first."""
        number = 0
        for count, held in zip(self.counts, layers, strict=True):
            number = number * (count + 1) + held
        return number

    def _least(self, counts: tuple[int, ...]) -> int:
        """Layers of one kind weigh no less, whatever the tables: each its share of the best."""
        if len(counts) > 1:
            return 0
        shares = (-(-counts[0] * f.weight // f.layers[0]) for f in self.fills)
        return min(shares, default=NEVER)

    def _one_table_more(self, before: list[int]) -> list[int]:
        new = before
        for fill, rests in zip(self.fills, self._rests, strict=True):
            weight = fill.weight
            new = list(map(min, new, [before[rest] + weight for rest in rests]))
        new[0] = 0
        return new

    def improvements(self, layers: tuple[int, ...]) -> Iterator[tuple[int, int]]:
        """(tables, weight) that hold these layers, each lighter than fewer tables."""
        state, last = self._number(layers), NEVER
        for tables, level in enumerate(self.levels):
            if level[state] < last:
                last = level[state]
                yield tables, last

    def chosen(self, layers: tuple[int, ...], tables: int) -> list[tuple[Fill, tuple[int, ...]]]:
        """The tables of an improvement, fewest tokens first, and which layers lie in each."""
        state, fills = self._number(layers), []
        for level in range(tables, 0, -1):
            weight, before = self.levels[level][state], self.levels[level - 1]
            if weight == before[state]:
                continue
            fill, rests = next(
                (f, rests)
                for f, rests in zip(self.fills, self._rests, strict=True)
                if before[rests[state]] + f.weight == weight
            )
            fills.append(fill)
            state = rests[state]
        return dealt(layers, fills)


def dealt(layers: tuple[int, ...], fills: list[Fill]) -> list[tuple[Fill, tuple[int, ...]]]:
    """Which of the layers lie in each table, fewest tokens first."""
    left, found = layers, []
    for fill in sorted(fills, key=lambda f: (f.tokens, f.layers)):
        taken = tuple(map(min, fill.layers, left))
        left = _less(left, taken)
        found.append((fill, taken))
    return [(fill, taken) for fill, taken in found if any(taken)]


def _less(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    return tuple([x - y if x > y else 0 for x, y in zip(a, b, strict=True)])


def rests_of(counts: tuple[int, ...], layers: tuple[int, ...]) -> list[int]:
    """Of each state, the number of the state that is left after a table with so many layers."""
    rests = [0]
    for count, held in zip(counts, layers, strict=True):
        ahead = [0] * min(held, count + 1) + list(range(count + 1 - held))
        rests = [rest * (count + 1) + left for rest in rests for left in ahead]
    return rests
