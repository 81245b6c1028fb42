"""Prefix grain: prefixes are shared in common multiples of all tables' block sizes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import gcd, lcm

from kvpipe.specs.base import KVCacheSpec, RequestLimits
from kvpipe.stages.grouping.slots.kinds import Life

MOST_CHOICES = 6


def grain(specs: Iterable[KVCacheSpec], limits: RequestLimits) -> int:
    """Tokens of a step in which prefixes are shared; 0 where none can be."""
    listed = list(dict.fromkeys(specs))
    if not listed or not all(spec.caches_prefixes(limits) for spec in listed):
        return 0
    return lcm(*(spec.tokens_per_block(limits) for spec in listed))


def choices(lives: Sequence[Life], most: int, limits: RequestLimits) -> list[tuple[Life, ...]]:
    """The lives with block sizes of which any may stand side by side: their common multiple is at
    most `most` tokens, or the least that there is."""
    spans = [_spans(life, limits) for life in lives]
    fixed = lcm(*(min(s.values()) for s, life in zip(spans, lives, strict=True) if life.is_fixed))
    least = lcm(*(min(s.values()) for s in spans))
    step = lcm(fixed, gcd(*(min(s.values()) for s in spans)))
    found: dict[tuple[frozenset[int], ...], None] = {}
    for common in range(step, max(most, least) + 1, step):
        sets = tuple(frozenset(t for t, span in s.items() if not common % span) for s in spans)
        if all(sets):
            found[sets] = None
    largest = [one for one in found if not any(_within(one, other) for other in found)]
    largest.sort(key=lambda sets: -sum(map(len, sets)))
    return [_narrowed(lives, sets) for sets in largest[:MOST_CHOICES]]


def _spans(life: Life, limits: RequestLimits) -> dict[int, int]:
    """Tokens of a block -> tokens of a request that one index of its table stands for."""
    return {t: life.counted(t).tokens_per_block(limits) for t in life.sizes}


def _within(one: tuple[frozenset[int], ...], other: tuple[frozenset[int], ...]) -> bool:
    return one != other and all(a <= b for a, b in zip(one, other, strict=True))


def _narrowed(lives: Sequence[Life], sets: tuple[frozenset[int], ...]) -> tuple[Life, ...]:
    found = [life.within(sizes) for life, sizes in zip(lives, sets, strict=True)]
    return tuple(life for life in found if life is not None)
