"""Two settings changed together, where no single one that keeps the length and the cards is enough.

Of the few that leave more room for the cache every pair is planned, and those that meet the goal
are told, at most MOST_TOLD of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

from kvpipe.answers.more_room import changes_for_room
from kvpipe.answers.remedies import LENGTH, Advice, advice
from kvpipe.answers.trials import Goal, asked_of_a_copy
from kvpipe.pipeline import Prepared

MOST_TOLD = 2
_RANKS = "parallel.tensor_parallel_size"
_SEQS = "scheduler.max_num_seqs"
_FEW = 16  # requests at once, where nobody said how many are served

Part = tuple[Mapping[str, Any], str]  # one setting, and what it means


def together(prepared: Prepared, goal: Goal, alone: Sequence[Advice]) -> list[Advice]:
    """alone: the changes of one setting that are told. Empty where one of them serves the same load
    on the same cards; else one more of them, or pairs of settings."""
    costly = {LENGTH, _RANKS}
    if prepared.resolved.device.type == "cpu" or any(not costly & {*way.changes} for way in alone):
        return []
    parts = list(_parts(prepared))
    one = _planned(prepared, goal, [(part,) for part in parts])
    return (one or _planned(prepared, goal, _pairs(parts)))[:MOST_TOLD]


def _planned(prepared: Prepared, goal: Goal, sets: Sequence[tuple[Part, ...]]) -> list[Advice]:
    """Those that meet the goal, what surely does first."""
    ways: list[Advice] = []
    for parts in sets:
        changes = {key: value for change, _ in parts for key, value in change.items()}
        way = advice(prepared, changes, ", ".join(words for _, words in parts), goal)
        if way is not None and not way.trial.profile.over_at_worst_bytes:
            ways.append(way)
    return sorted(ways, key=lambda way: not way.is_sure)


def _pairs(parts: Sequence[Part]) -> list[tuple[Part, ...]]:
    return [pair for pair in combinations(parts, 2) if {*pair[0][0]} != {*pair[1][0]}]


def _parts(prepared: Prepared) -> Iterator[Part]:
    """The settings one by one, what changes no result first."""
    few = max(_FEW, asked_of_a_copy(prepared))
    if few < prepared.resolved.max_num_seqs:
        yield {_SEQS: few}, "fewer requests sampled at once"
    for change in changes_for_room(prepared):
        yield change, _WORDS[next(iter(change))]
    model = prepared.resolved.model
    is_own = not (model.is_converted or model.quantized_with)
    if is_own and prepared.resolved.device.type == "cuda":
        yield {"weights": "awq"}, "needs a checkpoint of 4 bits"


_WORDS = {
    "cache.gpu_memory_utilization": "more of the card",
    "cache.cache_dtype": "a cache of 8 bits",
    "weights": "weights of 8 bits",
}
