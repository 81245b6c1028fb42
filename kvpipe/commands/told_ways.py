"""Planned changes in the words of a server's line: each set of settings once."""

from __future__ import annotations

from kvpipe.answers.remedies import SURELY_RUNS, Advice
from kvpipe.engines.pasted_line import words_of

_SELF_EVIDENT = {
    "scheduler.max_model_len",
    "cache.gpu_memory_utilization",
    "parallel.tensor_parallel_size",
}


def told_way(way: Advice) -> str:
    """With what it brings about, where that does not follow from the setting itself."""
    is_evident = set(way.changes) <= _SELF_EVIDENT and not way.promise.startswith(SURELY_RUNS)
    is_plain = not way.promise or is_evident
    return words_of(way.changes) + ("" if is_plain else f" ({way.promise})")


def distinct_ways(ways: list[Advice]) -> list[Advice]:
    """The first of those that change the same settings."""
    found: dict[frozenset[str], Advice] = {}
    for way in ways:
        found.setdefault(frozenset(way.changes), way)
    return list(found.values())
