"""The tables of one slot size for requests that may hold only so many blocks.

Where the cheapest tables take too much at some length, others that cost a little more may not. So
here a way to deal the layers is kept unless another one is as good in all: what it costs, its
tables, and the blocks of a request of each length that is capped. What the layers that are left
take at least is set aside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product

from kvpipe.stages.grouping.slots.ceiling import Ceiling
from kvpipe.stages.grouping.slots.kinds import Life
from kvpipe.stages.grouping.slots.packing import Fill, dealt, rests_of
from kvpipe.stages.grouping.slots.partition import Chunk, Tables, cheapest, few_fills
from kvpipe.stages.grouping.slots.scale import fewest_tables
from kvpipe.stages.grouping.slots.weights import Weights

MOST_WAYS = 64  # that are kept of each part of the layers, cheapest first
ANY_COST = 1 << 200

Taken = tuple[int, ...]  # cost in units of `weights.ONE`, tables, blocks under each ceiling


@dataclass(frozen=True, kw_only=True)
class Caps:
    """What all tables together may take. cost: less than that (None: any). tables: their number.
    ceilings: of requests of some lengths."""

    slot: int
    cost: int | None
    tables: int
    ceilings: Sequence[Ceiling]

    def rooms(self) -> Taken:
        most = ANY_COST if self.cost is None else self.cost - 1
        return most, self.tables, *(each.most_bytes // self.slot for each in self.ceilings)

    def least(self, life: Life, weights: Weights) -> Taken:
        """That the tables of a life take, whichever they are."""
        blocks = [ceiling.fewest(life, self.slot) for ceiling in self.ceilings]
        return weights.least_cost(life, self.slot), fewest_tables(life, self.slot), *blocks


@dataclass(frozen=True)
class Way:
    taken: Taken
    weight: int = 0
    fills: tuple[Fill, ...] = ()
    lives: tuple[Tables, ...] = ()

    def and_also(self, other: Way) -> Way:
        return Way(
            tuple(map(int.__add__, self.taken, other.taken)),
            self.weight + other.weight,
            self.fills + other.fills,
            self.lives + other.lives,
        )


def ways(lives: Sequence[Life], caps: Caps, weights: Weights) -> list[Way]:
    """Tables for all lives, cheapest first."""
    rooms = caps.rooms()
    found = [Way((0,) * len(rooms))]
    left = [caps.least(life, weights) for life in lives]
    for number, life in enumerate(lives):
        others = _less(rooms, *left[:number], *left[number + 1 :])
        its = list(_of_life(life, caps, weights, others))
        both = [one.and_also(more) for one, more in product(found, its)]
        found = _best(both, _less(rooms, *left[number + 1 :]))
    return found


def _less(rooms: Taken, *taken: Taken) -> Taken:
    return tuple(room - sum(each) for room, *each in zip(rooms, *taken, strict=True))


def _of_life(life: Life, caps: Caps, weights: Weights, rooms: Taken) -> Iterator[Way]:
    fills = few_fills(life, caps.slot, weights)
    if fills is None:  # too many mixtures: the few that are looked for anyway
        for number, tables in cheapest(life, caps.slot, caps.tables, weights).items():
            chunks = tables.deal()
            blocks = [sum(c.weigh(life, chunk.tokens) for chunk in chunks) for c in caps.ceilings]
            cost = tables.weight * caps.slot + number * weights.price
            yield Way((cost, number, *blocks), tables.weight, lives=(tables,))
        return
    steps = _undominated([_step(life, fill, caps, weights) for fill in fills])
    counts = tuple(kind.count for kind in life.kinds)
    for way in _dealings(life, steps, rooms):
        deal: Callable[[], tuple[Chunk, ...]] = partial(_chunks, counts, way.fills)
        yield Way(way.taken, way.weight, lives=(Tables(weight=way.weight, deal=deal),))


def _step(life: Life, fill: Fill, caps: Caps, weights: Weights) -> Way:
    blocks = [ceiling.weigh(life, fill.tokens) for ceiling in caps.ceilings]
    cost = fill.weight * caps.slot + weights.price
    return Way((cost, 1, *blocks), fill.weight, (fill,))


def _chunks(counts: tuple[int, ...], fills: Sequence[Fill]) -> tuple[Chunk, ...]:
    found = dealt(counts, list(fills))
    return tuple([Chunk(tokens=fill.tokens, counts=taken) for fill, taken in found])


def _undominated(steps: Sequence[Way]) -> list[Way]:
    """Without tables that another one holds as many layers as, for no more of anything."""
    kept: list[Way] = []
    for step in sorted(steps, key=lambda s: (s.taken, [-n for n in s.fills[0].layers])):
        layers = step.fills[0].layers
        if not any(
            all(map(int.__ge__, other.fills[0].layers, layers)) and _no_more(other, step)
            for other in kept
        ):
            kept.append(step)
    return kept


def _dealings(life: Life, steps: Sequence[Way], rooms: Taken) -> list[Way]:
    """Ways to hold all layers: table after table, each as often as it pays."""
    counts = tuple(kind.count for kind in life.kinds)
    roomy = _rooms_of_parts(life, steps, rooms)
    known: list[list[Way]] = [[Way((0,) * len(rooms))], *([] for _ in roomy[1:])]
    for step in steps:
        rests = rests_of(counts, step.fills[0].layers)
        for state in range(1, len(roomy)):
            more = [way.and_also(step) for way in known[rests[state]]]
            if more:
                known[state] = _best(known[state] + more, roomy[state])
    return known[-1]


def _rooms_of_parts(life: Life, steps: Sequence[Way], rooms: Taken) -> list[Taken]:
    """For each part of the layers what its tables may take: the layers that are left pay at least
    their share, by bytes, of the table that suits them best."""
    pages = [kind.page(life.sizes[0]) for kind in life.kinds]

    def width(layers: Sequence[int]) -> int:
        return sum(map(int.__mul__, layers, pages))

    counts = [kind.count for kind in life.kinds]
    whole, widths = width(counts), [width(step.fills[0].layers) for step in steps]
    parts = [whole - width(part) for part in product(*(range(n + 1) for n in counts))]
    best = [
        min(
            zip((step.taken[at] for step in steps), widths, strict=True),
            key=lambda share: share[0] / share[1],
            default=(0, 1),
        )
        for at in range(len(rooms))
    ]
    return [
        tuple(
            room + -left * taken // width for room, (taken, width) in zip(rooms, best, strict=True)
        )
        for left in parts
    ]


def _best(found: list[Way], rooms: Taken) -> list[Way]:
    kept: list[Way] = []
    for way in sorted(found, key=lambda way: way.taken):
        if len(kept) == MOST_WAYS:
            break
        fits = all(map(int.__le__, way.taken, rooms))
        if fits and not any(_no_more(other, way) for other in kept):
            kept.append(way)
    return kept


def _no_more(other: Way, way: Way) -> bool:
    return all(map(int.__le__, other.taken, way.taken))
