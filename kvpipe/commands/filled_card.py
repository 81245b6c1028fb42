"""A card that the engine's own process filled before it had sized a cache: weights and what a step
takes. No share of the card matters yet, so what is told takes less of both, and was planned.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kvpipe.answers.halvings import fewer_seqs, smaller_batches
from kvpipe.answers.more_room import changes_for_room
from kvpipe.answers.remedies import Advice, advice
from kvpipe.answers.trials import tried
from kvpipe.engines.pasted_line import words_of
from kvpipe.pipeline import Prepared
from kvpipe.stages.profiling.base import MemoryProfile
from kvpipe.text.figures import GIB

_RANKS = "parallel.tensor_parallel_size"
_MOST_RANKS = 16


@dataclass(frozen=True, kw_only=True)
class Leaner:
    """way: with which it fits. freed_bytes: so much less stands beside the cache of a card."""

    way: Advice
    freed_bytes: int


def leaner_ways(prepared: Prepared, lacking: int) -> list[Leaner]:
    """Of each kind of change the least that takes so many bytes less of a card, planned: what
    surely fits first, then what changes no result."""
    before = tried(prepared, {})
    if before is None:
        return []
    held = _beside(before.profile)
    found: list[Leaner] = []
    for kind in (fewer_seqs, smaller_batches, _lighter_weights, _more_ranks):
        tries = [advice(prepared, changes, "") for changes in kind(prepared)]
        ways = [
            Leaner(way=way, freed_bytes=freed)
            for way in filter(None, tries)
            if (freed := held - _beside(way.trial.profile)) >= max(1, lacking)
        ]
        found += sorted(ways, key=lambda each: not each.way.is_sure)[:1]
    return sorted(found, key=lambda each: not each.way.is_sure)


def told_leaner(each: Leaner) -> str:
    return f"{words_of(each.way.changes)} ({each.freed_bytes / GIB:.2f} GiB less beside it)"


def _beside(profile: MemoryProfile) -> int:
    """Bytes of the fullest card that are no cache."""
    return max(sum(item.num_bytes for item in rank.charged) for rank in profile.ranks)


def _lighter_weights(prepared: Prepared) -> Iterator[Mapping[str, Any]]:
    yield from (changes for changes in changes_for_room(prepared) if "weights" in changes)


def _more_ranks(prepared: Prepared) -> Iterator[Mapping[str, Any]]:
    ranks = prepared.resolved.parallel.tp
    while (ranks := 2 * ranks) <= _MOST_RANKS:
        yield {_RANKS: ranks}
