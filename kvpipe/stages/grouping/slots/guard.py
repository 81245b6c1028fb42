"""Never worse: no length at which a request takes more bytes than under another plan.

Between two edges of their rhythms (see `specs/rhythm.py`) no count changes, and in a stretch of
lengths the difference of two plans changes by one number a common period. So it is least in the
first period of a stretch or in the last, and there every edge is looked at.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import lcm

from kvpipe.cache.plan import KVCacheGroupSpec
from kvpipe.specs.base import KVCacheSpec, RequestLimits
from kvpipe.specs.rhythm import Rhythm

MOST_LENGTHS = 20_000  # that are looked at; beyond it the comparison is given up
TELLING = (1, 17, 129, 513, 1025)  # lengths at which a plan that is worse is worse most often
STEPS = (256, 2048, 8192)  # tokens in flight at which peaks are compared, beside the run's own


@dataclass(frozen=True, kw_only=True)
class Demand:
    """Blocks that one request takes, by a layer of each table, and bytes of a block."""

    specs: tuple[KVCacheSpec, ...]
    slot_bytes: int

    @classmethod
    def of(cls, groups: Iterable[KVCacheGroupSpec], slot_bytes: int) -> Demand:
        specs = tuple([group.layer_spec(group.layer_names[0]) for group in groups])
        return cls(specs=specs, slot_bytes=slot_bytes)


def coarser(mine: Demand, other: Demand) -> bool:
    """Whether each table is another's with as many tokens a block, or a multiple of them, and slots
    are no larger. Such a plan is never worse: each block that tokens touch has in it a smaller one
    that they touch, too, and no two share one."""
    left = list(other.specs)
    for spec in mine.specs:
        finer = (i for i, its in enumerate(left) if its.same_type(spec) and _divides(its, spec))
        found = next(finer, None)
        if found is None:
            return False
        del left[found]
    return mine.slot_bytes <= other.slot_bytes


def _divides(finer: KVCacheSpec, spec: KVCacheSpec) -> bool:
    if spec.is_state:  # a state is no run of tokens
        return spec.block_size == finer.block_size
    return not spec.block_size % finer.block_size


@dataclass(frozen=True, kw_only=True)
class Load:
    """What is compared: the request decodes, or reads its prompt (in_flight) under these limits."""

    limits: RequestLimits
    in_flight: bool

    @cached_property
    def _shorter(self) -> dict[int, RequestLimits]:
        return {}

    def blocks(self, spec: KVCacheSpec, length: int) -> int:
        if not self.in_flight:
            return spec.steady_blocks(length, self.limits)
        limits = self._shorter.get(length)
        if limits is None:
            limits = self._shorter[length] = self.limits.with_length(length)
        return spec.peak_blocks(limits)


@dataclass(frozen=True, kw_only=True)
class Worse:
    """length: in tokens, of a request that takes more; 0 where it is not known whether one does."""

    load: Load
    length: int


def loads(limits: RequestLimits) -> list[Load]:
    batches = dict.fromkeys((limits.max_num_batched_tokens, *STEPS))
    at_peak = [
        Load(limits=replace(limits, max_num_batched_tokens=batch), in_flight=True)
        for batch in batches
    ]
    return [Load(limits=limits, in_flight=False), *at_peak]


_Counted = list[tuple[int, int]]  # number of a spec, tables that have it


class Guard:
    """Compares plans with the same others again and again: counts are remembered."""

    def __init__(self, limits: RequestLimits) -> None:
        self.limits, self.loads = limits, loads(limits)
        self._number: dict[KVCacheSpec, int] = {}
        self._specs: list[KVCacheSpec] = []
        self._blocks: list[dict[tuple[int, int], int]] = [{} for _ in self.loads]
        self._rhythms: dict[tuple[int, int], Rhythm | None] = {}

    def worse(self, mine: Demand, other: Demand) -> Worse | None:
        """Where a request takes more bytes under `mine` than under `other`; None where it takes at
        most as many at every length from 1 to the longest, decoding and reading."""
        if coarser(mine, other):
            return None
        ours, its = self._counted(mine), self._counted(other)
        sides = ours, mine.slot_bytes, its, other.slot_bytes
        longest = self.limits.max_model_len
        telling = [n for n in TELLING if n < longest] + [longest]
        for load in (0, 1):
            if (found := self._first_worse(load, telling, *sides)) is not None:
                return found
        for load in range(len(self.loads)):
            rhythms = [self._rhythm(load, spec) for spec in dict(ours + its)]
            known = [each for each in rhythms if each is not None]
            lengths = lengths_that_decide(known, longest) if len(known) == len(rhythms) else None
            if lengths is None:
                return Worse(load=self.loads[load], length=0)
            if (found := self._first_worse(load, lengths, *sides)) is not None:
                return found
        return None

    def _counted(self, demand: Demand) -> _Counted:
        numbers = []
        for spec in demand.specs:
            number = self._number.setdefault(spec, len(self._specs))
            if number == len(self._specs):
                self._specs.append(spec)
            numbers.append(number)
        return list(Counter(numbers).items())

    def _first_worse(
        self,
        load: int,
        lengths: Iterable[int],
        ours: _Counted,
        my_slot: int,
        its: _Counted,
        its_slot: int,
    ) -> Worse | None:
        count = self._count
        for n in lengths:
            mine = sum([count(load, spec, n) * times for spec, times in ours]) * my_slot
            if mine > sum([count(load, spec, n) * times for spec, times in its]) * its_slot:
                return Worse(load=self.loads[load], length=n)
        return None

    def _count(self, load: int, spec: int, length: int) -> int:
        known, key = self._blocks[load], (spec, length)
        found = known.get(key)
        if found is None:
            found = known[key] = self.loads[load].blocks(self._specs[spec], length)
        return found

    def _rhythm(self, load: int, spec: int) -> Rhythm | None:
        key = (load, spec)
        if key not in self._rhythms:
            asked = self.loads[load]
            self._rhythms[key] = self._specs[spec].rhythm(asked.limits, asked.in_flight)
        return self._rhythms[key]


def lengths_that_decide(rhythms: Sequence[Rhythm], longest: int) -> list[int] | None:
    """Lengths of 1 to `longest` at which the difference of plans with these rhythms is least, and
    others; None where they are too many to look at."""
    starts = sorted({s.start for each in rhythms for s in each.stretches if s.start <= longest})
    edges = {(r % m, m) for each in rhythms for r, m in each.edges}
    found: set[int] = set()
    for start, stop in zip(starts, [*starts[1:], longest + 1], strict=True):
        for low, high in _windows(rhythms, start, stop):
            found.add(low)
            if sum((high - low) // m for _, m in edges) > MOST_LENGTHS:
                return None
            found.update(n for edge in edges for n in _at_edges(edge, low, high))
    return sorted(found)


def _windows(rhythms: Sequence[Rhythm], start: int, stop: int) -> Iterator[tuple[int, int]]:
    """The first and the last common period of a stretch, or all of it."""
    periods = [each.period_at(start) for each in rhythms]
    common = lcm(*(period for period in periods if period))
    if None in periods or stop - start <= 2 * common:
        yield start, stop
    else:
        yield start, start + common
        yield stop - common, stop


def _at_edges(edge: tuple[int, int], low: int, high: int) -> range:
    rest, every = edge
    return range(low + (rest - low) % every, high, every)
