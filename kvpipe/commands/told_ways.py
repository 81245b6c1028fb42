"""Planned changes in the words of a server's line: each set of settings once."""

from __future__ import annotations

from collections.abc import Sequence

from kvpipe.answers.remedies import LENGTH, SURELY_RUNS, Advice
from kvpipe.answers.ways_in_words import by_sureness
from kvpipe.engines.pasted_line import words_of
from kvpipe.pipeline import Prepared
from kvpipe.request.want import requests_asked

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


def told_ways(ways: Sequence[Advice], is_whole: bool = True) -> str:
    """Those that surely fit first. is_whole: nothing is known to come on top; else none is sure."""
    if is_whole or not ways:
        return by_sureness([(told_way(way), way.is_sure) for way in ways], ", or ")
    told = ", or ".join(dict.fromkeys(words_of(way.changes) for way in ways))
    return f"Planned without the draft, and may fit: {told}"


def cuts_short(way: Advice, prepared: Prepared) -> bool:
    """Whether a way leaves too little of the length to be named first: who asks for users asks for
    their length, too, and a tenth of it is no answer."""
    length = way.changes.get(LENGTH)
    if length is None:
        return False
    tenth = prepared.resolved.limits.max_model_len // 10
    return requests_asked(prepared.config.want) > 1 or length < tenth


def distinct_ways(ways: list[Advice]) -> list[Advice]:
    """The first of those that change the same settings."""
    found: dict[frozenset[str], Advice] = {}
    for way in ways:
        found.setdefault(frozenset(way.changes), way)
    return list(found.values())
