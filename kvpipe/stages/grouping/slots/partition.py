"""One life, one slot size: for each number of tables, the tables that cost least.

Exact where the life has one kind, or few layers of several kinds; for many layers of several kinds
the best of three ways to mix them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice, product
from math import prod

from kvpipe.stages.grouping.slots.kinds import Kind, Life
from kvpipe.stages.grouping.slots.packing import Fill, Packing, undominated
from kvpipe.stages.grouping.slots.weights import Weights

MOST_STATES = 256  # parts of the layers of several kinds
MOST_FILLS = 64  # ways to fill a table with them
BALANCED = range(1, 9)


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """One table: tokens of its blocks, and layers of each kind of the life."""

    tokens: int
    counts: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Tables:
    """weight: of all chunks together, a byte of the slot. deal: the chunks, which are worked out
    for the few tables that become a plan."""

    weight: int
    deal: Callable[[], tuple[Chunk, ...]]

    def and_also(self, other: Tables) -> Tables:
        return Tables(weight=self.weight + other.weight, deal=lambda: self.deal() + other.deal())


NONE = Tables(weight=0, deal=tuple)
Found = dict[int, Tables]  # number of tables -> the cheapest so many, each cheaper than fewer


def cheapest(life: Life, slot: int, most: int, weights: Weights) -> Found:
    """At most `most` tables; {} where not even those hold every layer."""
    if len(life.kinds) == 1:
        return _of_one_kind(life, slot, most, weights)
    if (fills := few_fills(life, slot, weights)) is not None:
        counts = tuple(kind.count for kind in life.kinds)
        least = -(-weights.least(life, slot) // slot)
        return _packed(Packing(counts, undominated(fills), most, least), counts)
    found: Found = {}
    for number, tables in _mixed(life, slot, most, weights):
        _keep(found, number, tables)
    return _improving(found)


def _of_one_kind(life: Life, slot: int, most: int, weights: Weights) -> Found:
    """The same for all slots that hold equally many layers of each block size."""
    (kind,) = life.kinds
    fits = tuple([min(kind.count, slot // kind.page(t)) for t in life.sizes])
    key = id(life), fits, min(most, kind.count)
    found = weights.tables.get(key)
    if found is None:
        packing = Packing((kind.count,), undominated(_of_kind(life, kind, slot, weights)), most)
        found = weights.tables[key] = _packed(packing, (kind.count,))
    return found


def few_fills(life: Life, slot: int, weights: Weights) -> list[Fill] | None:
    """Every way to fill one table; None where the layers' parts or the ways are too many."""
    if len(life.kinds) == 1:
        return list(_fills(life, slot, weights))
    if prod(kind.count + 1 for kind in life.kinds) > MOST_STATES:
        return None
    fills = list(islice(_fills(life, slot, weights), MOST_FILLS + 1))
    return fills if len(fills) <= MOST_FILLS else None


def _sizes(life: Life, slot: int) -> tuple[int, ...]:
    """Block sizes worth a table: of those in which it can hold every layer, the largest."""
    whole = sum(1 for tokens in life.sizes if life.all_layers(tokens) <= slot)
    return life.sizes[max(0, whole - 1) :]


def _fills(life: Life, slot: int, weights: Weights) -> Iterator[Fill]:
    for tokens in _sizes(life, slot):
        weight = weights.weigh(life, tokens)
        for counts in _full(slot, [(k.count, k.page(tokens)) for k in life.kinds]):
            yield Fill(layers=counts, weight=weight, tokens=tokens)


def _full(slot: int, kinds: list[tuple[int, int]]) -> Iterator[tuple[int, ...]]:
    """Counts of each (at most, page) whose pages fit into the slot; the last takes what is left."""
    *first, (most, page) = kinds
    for counts in product(*(range(min(m, slot // p) + 1) for m, p in first)):
        left = slot - sum(n * p for n, (_, p) in zip(counts, first, strict=True))
        if left >= 0 and (last := min(most, left // page)) + sum(counts):
            yield (*counts, last)


def _packed(packing: Packing, counts: tuple[int, ...]) -> Found:
    found = _of(packing, counts, 0, len(counts))
    found.pop(0, None)
    return found


def _of(packing: Packing, layers: tuple[int, ...], at: int, kinds: int) -> Found:
    """The tables of so many layers, which are the life's kinds from number `at` on."""

    def tables_of(number: int, weight: int) -> Tables:
        def deal() -> tuple[Chunk, ...]:
            behind = kinds - at - len(layers)
            return tuple(
                Chunk(tokens=fill.tokens, counts=(*[0] * at, *taken, *[0] * behind))
                for fill, taken in packing.chosen(layers, number)
            )

        return Tables(weight=weight, deal=deal)

    return {number: tables_of(number, weight) for number, weight in packing.improvements(layers)}


# --- several kinds of many layers ----------------------------------------------------------------
def _mixed(life: Life, slot: int, most: int, weights: Weights) -> Iterator[tuple[int, Tables]]:
    """Each kind apart; the minor kinds together in one table, with layers of the first; all kinds
    dealt evenly over a few tables."""
    kinds, (first, *minor) = len(life.kinds), life.kinds
    packings = [
        Packing((kind.count,), undominated(_of_kind(life, kind, slot, weights)), most)
        for kind in life.kinds
    ]
    apart: Found = {0: NONE}
    for at, (kind, packing) in enumerate(zip(life.kinds, packings, strict=True)):
        apart = together(apart, _of(packing, (kind.count,), at, kinds), most)
    yield from apart.items()
    for tokens in _sizes(life, slot):
        room = slot - sum(kind.count * kind.page(tokens) for kind in minor)
        if room < 0:
            break
        beside = min(first.count, room // first.page(tokens))
        chunk = Chunk(tokens=tokens, counts=(beside, *(kind.count for kind in minor)))
        one = {1: _one(life, [chunk], weights)}
        rest = _of(packings[0], (first.count - beside,), 0, kinds)
        yield from together(one, rest, most).items()
    for number in BALANCED:
        if number <= most and (chunks := _dealt(life, slot, number)):
            yield number, _one(life, chunks, weights)


def _one(life: Life, chunks: list[Chunk], weights: Weights) -> Tables:
    weight = sum(weights.weigh(life, chunk.tokens) for chunk in chunks)
    return Tables(weight=weight, deal=lambda: tuple(chunks))


def _of_kind(life: Life, kind: Kind, slot: int, weights: Weights) -> list[Fill]:
    return [
        Fill(layers=(fit,), weight=weights.weigh(life, tokens), tokens=tokens)
        for tokens in life.sizes
        if (fit := min(kind.count, slot // kind.page(tokens)))
    ]


def _dealt(life: Life, slot: int, tables: int) -> list[Chunk]:
    """Every kind in equal parts; [] where they do not fit."""
    chunks: list[Chunk] = []
    for i in range(tables):
        counts = tuple([len(range(i, kind.count, tables)) for kind in life.kinds])
        if not any(counts):
            break
        if chunks and counts == chunks[-1].counts:
            chunks.append(chunks[-1])
        elif tokens := _most_tokens(life, slot, counts):
            chunks.append(Chunk(tokens=tokens, counts=counts))
        else:
            return []
    return chunks


def _most_tokens(life: Life, slot: int, counts: tuple[int, ...]) -> int:
    """Of a block in which so many layers fit into the slot; 0 where they do not."""
    kinds = list(zip(counts, life.kinds, strict=True))
    fitting = (t for t in reversed(life.sizes) if sum([n * k.page(t) for n, k in kinds]) <= slot)
    return next(fitting, 0)


# --- both ----------------------------------------------------------------------------------------
def together(one: Found, other: Found, most: int) -> Found:
    """The tables of both, at most so many, each cheaper than fewer."""
    found: Found = {}
    for a, mine in one.items():
        for b, its in other.items():
            if a + b <= most:
                _keep(found, a + b, mine.and_also(its))
    return _improving(found)


def _keep(found: Found, number: int, tables: Tables) -> None:
    if number not in found or tables.weight < found[number].weight:
        found[number] = tables


def _improving(found: Found) -> Found:
    kept: Found = {}
    least = None
    for number in sorted(found):
        if least is None or found[number].weight < least:
            kept[number], least = found[number], found[number].weight
    return kept
