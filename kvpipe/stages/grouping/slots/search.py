"""Which slot size: plans in ascending order of cost.

A slot that no table fills can shrink, which costs less: so only sizes that some table fills exactly
are candidates. They are taken in the order of what they cost at least, and a plan is given out
when no candidate that is left can cost less: the first is the cheapest of all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from math import gcd, prod

from kvpipe.stages.grouping.slots.kinds import Life
from kvpipe.stages.grouping.slots.partition import Chunk, Found, Tables, cheapest
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
    token, which holds at least `first_blocks` blocks in each table (None: any)."""

    num_tables: int
    slot_bytes: int
    first_token_bytes: int | None = None
    first_blocks: int = 1

    def tables_of(self, slot: int) -> int:
        if self.first_token_bytes is None:
            return self.num_tables
        return min(self.num_tables, self.first_token_bytes // max(1, slot * self.first_blocks))


def plans(
    choices: Sequence[Sequence[Life]], bounds: Bounds, weights: Weights
) -> Iterator[SlotPlan]:
    """choices: the lives with the block sizes that may stand side by side, one choice each."""
    waiting: list[tuple[int, int, int, SlotPlan]] = []
    order = 0
    for least, slot, which in sorted(_candidates(choices, bounds, weights)):
        while waiting and waiting[0][0] <= least:
            yield heappop(waiting)[-1]
        for plan in _of_slot(choices[which], slot, bounds, weights):
            order += 1
            heappush(waiting, (plan.cost, plan.num_tables, order, plan))
    while waiting:
        yield heappop(waiting)[-1]


def _candidates(
    choices: Sequence[Sequence[Life]], bounds: Bounds, weights: Weights
) -> Iterator[tuple[int, int, int]]:
    """(least cost, slot, choice)."""
    for which, lives in enumerate(choices):
        narrowest = max(kind.page(life.sizes[0]) for life in lives for kind in life.kinds)
        slots = {slot for life in lives for slot in _fills(life, bounds.slot_bytes)}
        for slot in slots:
            if narrowest <= slot and (least := _least_cost(lives, slot, bounds, weights)):
                yield least, slot, which


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
    tables = [_fewest_tables(life, slot) for life in lives]
    if sum(tables) > bounds.tables_of(slot):
        return None
    weight = sum(_least_weight(life, slot, weights) for life in lives)
    return weight + sum(tables) * weights.price


def _fewest_tables(life: Life, slot: int) -> int:
    """Whole slots that the layers need in their smallest blocks."""
    if len(life.kinds) == 1:
        return _fewest_whole(life, slot)
    return -(-life.all_layers(life.sizes[0]) // slot)


def _fewest_whole(life: Life, slot: int) -> int:
    """The same of one kind, whose layers are not cut in two. A layer fits: see `_candidates`."""
    (kind,) = life.kinds
    return -(-kind.count // max(1, slot // kind.page(life.sizes[0])))


def _least_weight(life: Life, slot: int, weights: Weights) -> int:
    """Bytes, weighed: every layer pays at least its share of the best table, of which no layers
    can fill more than fits into the slot, nor more than there are."""
    if life.is_fixed:  # one sort of table: whole tables of it
        return _fewest_tables(life, slot) * weights.weigh(life, life.sizes[0]) * slot
    if len(life.kinds) > 1:
        return min(w * max(slot, whole) for w, whole in weights.of_whole(life))
    (kind,) = life.kinds
    fits = ((weights.weigh(life, t), slot // kind.page(t)) for t in life.sizes)
    count = kind.count
    return min(-(-count * w * slot // min(count, fit)) for w, fit in fits if fit)


# --- the plans of one slot size ------------------------------------------------------------------
def _of_slot(
    lives: Sequence[Life], slot: int, bounds: Bounds, weights: Weights
) -> Iterator[SlotPlan]:
    """For each number of tables the cheapest plan, if it is cheaper than with fewer."""
    fewest = [_fewest_tables(life, slot) for life in lives]
    spare = bounds.tables_of(slot) - sum(fewest)
    most = sum(fewest) + spare
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
