"""Which slot size: plans in ascending order of cost.

A slot that no table fills can shrink, which costs less: so only sizes that some table fills exactly
are candidates. They are taken in the order of what they cost at least, and a plan is given out
when no candidate that is left can cost less: the first is the cheapest of all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from math import gcd, prod

from kvpipe.stages.grouping.slots.capped import Caps, ways
from kvpipe.stages.grouping.slots.ceiling import Ceiling
from kvpipe.stages.grouping.slots.kinds import Life
from kvpipe.stages.grouping.slots.packing import NEVER
from kvpipe.stages.grouping.slots.partition import Chunk, Found, Tables, cheapest
from kvpipe.stages.grouping.slots.scale import fewest_tables
from kvpipe.stages.grouping.slots.weights import Weights

MOST_MIXTURES = 2_000  # of layers of several kinds in one table
MOST_MULTIPLES = 4_096


@dataclass(frozen=True, kw_only=True)
class SlotPlan:
    """lives: the tables of each life. cost: of the objective, in units of `weights.ONE`."""

    slot_bytes: int
    cost: int
    num_tables: int
    lives: tuple[Tables, ...]

    @property
    def tables(self) -> tuple[tuple[Chunk, ...], ...]:
        """For each life its chunks."""
        return tuple(tables.deal() for tables in self.lives)


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """What no plan may exceed. slot_bytes: of one slot. first_token_bytes: of a request of one
    token, which holds at least `first_blocks` blocks in each table (None: any). ceilings: of
    requests of some lengths, to tell which slots need no search. caps: of requests of lengths at
    which cheaper plans are known to take too much. cost: of a plan that is known already."""

    num_tables: int
    slot_bytes: int
    first_token_bytes: int | None = None
    first_blocks: int = 1
    ceilings: tuple[Ceiling, ...] = ()
    caps: tuple[Ceiling, ...] = ()
    cost: int | None = None

    def tables_of(self, slot: int) -> int:
        if self.first_token_bytes is None:
            return self.num_tables
        return min(self.num_tables, self.first_token_bytes // max(1, slot * self.first_blocks))


class Search:
    """choices: the lives with the block sizes that may stand side by side, one choice each."""

    def __init__(self, choices: Sequence[Sequence[Life]], weights: Weights) -> None:
        self.choices, self.weights = choices, weights
        # (choice, slot, most tables) -> cost of the cheapest plan, where it was looked for
        self._known: dict[tuple[int, int, int], int] = {}

    def plans(self, bounds: Bounds) -> Iterator[SlotPlan]:
        waiting: list[tuple[int, int, int, SlotPlan]] = []
        order = 0
        left = [(least, slot, which, False) for least, slot, which in self._candidates(bounds)]
        heapify(left)
        while left:
            least, slot, which, looked_at = heappop(left)
            while waiting and waiting[0][0] <= least:
                yield heappop(waiting)[-1]
            if bounds.cost is not None and least >= bounds.cost:
                break
            if not looked_at:
                if all(each.may_hold(self.choices[which], slot) for each in bounds.ceilings):
                    closer = self._least_with(self.choices[which], slot, bounds)
                    heappush(left, (max(least, closer), slot, which, True))
                continue
            plans = list(_of_slot(self.choices[which], slot, bounds, self.weights))
            if not bounds.caps:
                cost = min((plan.cost for plan in plans), default=NEVER)
                self._known[which, slot, bounds.tables_of(slot)] = cost
            for plan in plans:
                order += 1
                heappush(waiting, (plan.cost, plan.num_tables, order, plan))
        while waiting:
            yield heappop(waiting)[-1]

    def _least_with(self, lives: Sequence[Life], slot: int, bounds: Bounds) -> int:
        """What no plan with this slot costs less than: exact for lives of one kind, whose tables
        are found fast."""
        total, weights, most = 0, self.weights, bounds.tables_of(slot)
        for life in lives:
            least = weights.least_cost(life, slot)
            if len(life.kinds) == 1:
                found = cheapest(life, slot, most, weights).items()
                costs = [n * weights.price + tables.weight * slot for n, tables in found]
                least = min(costs, default=least)
            total += least
        return total

    def _candidates(self, bounds: Bounds) -> Iterator[tuple[int, int, int]]:
        """(least cost, slot, choice)."""
        for which, lives in enumerate(self.choices):
            narrowest = max(kind.page(life.sizes[0]) for life in lives for kind in life.kinds)
            slots = {slot for life in lives for slot in _fills(life, bounds.slot_bytes)}
            for slot in slots:
                if narrowest <= slot:
                    least = _least_cost(lives, slot, bounds, self.weights)
                    known = self._known.get((which, slot, bounds.tables_of(slot)), 0)
                    if least is not None:
                        yield max(least, known), slot, which


def _fills(life: Life, most: int) -> set[int]:
    """Bytes that a table of this life can fill exactly."""
    found = {m * k.page(t) for t in life.sizes for k in life.kinds for m in range(1, k.count + 1)}
    if len(life.kinds) > 1:
        found |= _mixtures(life, most)
    return {slot for slot in found if slot <= most}


def _mixtures(life: Life, most: int) -> set[int]:
    """Of several kinds: every mixture, or more sizes than all mixtures have, or some of them."""
    counts = [range(kind.count + 1) for kind in life.kinds]
    if prod(map(len, counts)) <= MOST_MIXTURES:
        return {slot for t in life.sizes for slot in _sums(life, t, most)} - {0}
    step = gcd(*(kind.page(t) for t in life.sizes for kind in life.kinds))
    if most // step <= MOST_MULTIPLES:
        return set(range(step, most + 1, step))
    first, *minor = life.kinds
    return {
        sum(kind.count * kind.page(t) for kind in minor) + m * first.page(t)
        for t in life.sizes
        for m in counts[0]
    }


def _sums(life: Life, tokens: int, most: int) -> set[int]:
    sums = {0}
    for kind in life.kinds:
        pages = range(0, (kind.count + 1) * kind.page(tokens), kind.page(tokens))
        sums = {one + more for one in sums for more in pages if one + more <= most}
    return sums


# --- what a slot size costs at least -------------------------------------------------------------
def _least_cost(lives: Sequence[Life], slot: int, bounds: Bounds, weights: Weights) -> int | None:
    """No plan with this slot costs less; None where it has more tables than it may."""
    if sum(fewest_tables(life, slot) for life in lives) > bounds.tables_of(slot):
        return None
    return sum(weights.least_cost(life, slot) for life in lives)


# --- the plans of one slot size ------------------------------------------------------------------
def _of_slot(
    lives: Sequence[Life], slot: int, bounds: Bounds, weights: Weights
) -> Iterator[SlotPlan]:
    """For each number of tables the cheapest plan, if it is cheaper than with fewer. Under caps
    every plan that is the best in something."""
    most = bounds.tables_of(slot)
    if bounds.caps:
        caps = Caps(slot=slot, cost=bounds.cost, tables=most, ceilings=bounds.caps)
        for way in ways(lives, caps, weights):
            cost, number, *_ = way.taken
            yield SlotPlan(slot_bytes=slot, cost=cost, num_tables=number, lives=way.lives)
        return
    fewest = [fewest_tables(life, slot) for life in lives]
    spare = most - sum(fewest)
    found: _Plans = {0: (0, ())}
    for life, few in zip(lives, fewest, strict=True):
        its = cheapest(life, slot, few + spare, weights)
        found = _beside(found, its, most)
    for number, (weight, tables) in found.items():
        cost = slot * weight + number * weights.price
        yield SlotPlan(slot_bytes=slot, cost=cost, num_tables=number, lives=tables)


_Plans = dict[int, tuple[int, tuple[Tables, ...]]]  # number of tables -> weight, tables a life


def _beside(found: _Plans, its: Found, most: int) -> _Plans:
    """One life more, at each number of tables."""
    both: _Plans = {}
    for a, (weight, tables) in found.items():
        for b, more in its.items():
            total = weight + more.weight
            if a + b <= most and (a + b not in both or total < both[a + b][0]):
                both[a + b] = (total, (*tables, more))
    return both
