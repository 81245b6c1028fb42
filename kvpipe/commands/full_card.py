"""A start that ended since other processes hold the card, or since the card ran out.

What is said is planned: the share of the card that is left, and the same line on a card of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import floor
from typing import Any

from kvpipe.answers.remedies import advice, ways_out
from kvpipe.answers.ways_in_words import by_sureness
from kvpipe.commands.beside_the_cache import smaller_cache, told_smaller
from kvpipe.commands.filled_card import leaner_ways, told_leaner
from kvpipe.commands.trouble import Trouble
from kvpipe.engines.pasted_line import words_of
from kvpipe.logs.engine_log import EngineLog
from kvpipe.pipeline import Prepared
from kvpipe.text.figures import GIB

_SHARE, _LENGTH = "cache.gpu_memory_utilization", "scheduler.max_model_len"
_ALONE = {"profiling.other_instances_bytes": 0}
_FLAG = "--gpu-memory-utilization"
_STOP = "Stop them (nvidia-smi lists them)"
_FREED = "once the card is free"


def of_full_card(log: EngineLog, prepared: Prepared | None) -> Iterator[Trouble]:
    """prepared: the request, which counts what others hold (None: too little is said for one)."""
    if log.short_of is None and log.ran_out is None:
        return
    said = _not_free(log) if log.short_of is not None else _ran_out(log)
    if prepared is None:
        yield Trouble(text=f"{said}{_by_hand(log)}", stops=True)
    elif log.short_of is None and log.cache_was_sized:
        yield _beside_the_cache(said, log, prepared)
    elif log.held_by_others:
        yield _beside_others(said, log, prepared)
    else:
        yield _alone(said, log, prepared)


# --- what the log says ---
def _not_free(log: EngineLog) -> str:
    free, total, asked = log.short_of, log.least("total"), log.least("requested")
    of_all = f" of {total.num_bytes / GIB:.2f}" if total is not None else ""
    share = f"{_FLAG} {log.utilization:g}" if log.utilization else "it"
    assert free is not None and asked is not None
    return (
        f"the card had {free.num_bytes / GIB:.2f}{of_all} GiB free when the engine started, and "
        f"{share} asks for {asked.num_bytes / GIB:.2f}{_others(log)}"
    )


def _ran_out(log: EngineLog) -> str:
    found = log.ran_out
    assert found is not None
    of_all = f" of {found.total / GIB:.2f} GiB" if found.total is not None else ""
    free = f" with {found.free / GIB:.2f}{of_all} free" if found.free is not None else of_all
    mine = f"; the engine itself held {found.mine / GIB:.2f} GiB" if found.mine is not None else ""
    when = " after the cache was sized" if log.cache_was_sized else ""
    return (
        f"the card ran out of memory{when}: {found.asked / GIB:.2f} GiB more were asked for{free}"
        f"{mine}{_others(log)}"
    )


def _others(log: EngineLog) -> str:
    held = log.held_by_others
    return f": other processes hold {held / GIB:.2f} GiB" if held else ""


def _highest_share(log: EngineLog) -> float:
    """Hundredths of the card that the others leave, rounded down."""
    total = log.least("total")
    return floor(100 * (1 - log.held_by_others / total.num_bytes)) / 100 if total else 0.0


def _by_hand(log: EngineLog) -> str:
    if not log.held_by_others:
        return ""
    if log.engine != "vllm":  # whose flags are others
        return f". {_STOP}"
    if log.short_of is None and log.cache_was_sized:
        return f". {_STOP}, or give the cache less: a lower {_FLAG}"
    return f". {_STOP}; beside them {_FLAG} can be at most {_highest_share(log):.2f}"


# --- what was planned ---
def _beside_the_cache(said: str, log: EngineLog, prepared: Prepared) -> Trouble:
    """Nothing that gives a larger cache than the one that ran out."""
    parts = [said]
    if log.held_by_others:
        is_enough = log.held_by_others >= log.lacking
        freed = f"more than the {log.lacking / GIB:.2f} GiB lacking" if is_enough else "some of it"
        parts.append(f"{_STOP}: that frees {freed}")
    way = smaller_cache(log, prepared)
    fewer = "a lower --max-num-seqs takes less outside it, too"
    if way is None:
        parts.append(f"The cache must be smaller: lower {_FLAG}; {fewer}")
        return Trouble(text=". ".join(parts), stops=True)
    beside = "Beside them " if log.held_by_others else ""
    parts.append(f"{beside}{told_smaller(way, log)}; {fewer}")
    return Trouble(text=". ".join(parts), stops=True, change=way.changes)


def _beside_others(said: str, log: EngineLog, prepared: Prepared) -> Trouble:
    share = _highest_share(log)
    if log.short_of is None and share >= prepared.resolved.gpu_memory_utilization:
        return _alone(f"{said}. {_STOP}", log, prepared)  # its share leaves room for the others
    within = _planned(prepared, {_SHARE: share}) if share else None
    alone = _planned(prepared, _ALONE)
    text = f"{said}. {_STOP}: {_told_alone(alone)}. "
    if within is not None:
        text += f"Beside them {words_of(within)} fits, by estimate"
        return Trouble(text=text, stops=True, change=within)
    room = share * prepared.resolved.device.total_bytes
    weights = prepared.resolved.weight_bytes_a_rank
    no_room = f"the weights alone take {weights / GIB:.2f}" if weights >= room else (
        "that leaves no room for a cache beside the weights"
    )  # fmt: skip
    text += f"Beside them {_FLAG} can be at most {share:.2f}, {room / GIB:.2f} GiB, and {no_room}"
    return Trouble(text=text, stops=True, change=alone, first=_FREED if alone is not None else "")


def _told_alone(alone: Mapping[str, Any] | None) -> str:
    if alone is None:
        return "alone on the card the engine does not start, either"
    more = words_of({key: value for key, value in alone.items() if key not in _ALONE})
    return f"alone on the card {more or 'this line'} fits, by estimate"


def _alone(said: str, log: EngineLog, prepared: Prepared) -> Trouble:
    """The engine's own process filled the card."""
    weights, total = prepared.resolved.weight_bytes_a_rank, prepared.resolved.device.total_bytes
    if weights >= total or advice(prepared, {}, "") is None:
        ways = [way for way in ways_out(prepared) if not _takes_more(way.changes, prepared)]
        told = by_sureness([(words_of(way.changes), way.is_sure) for way in ways], ", or ")
        text = f"{said}. {_weights(prepared)}. {told}"
        return Trouble(text=text, stops=True, change=dict(ways[0].changes) if ways else None)
    leaner = leaner_ways(prepared, log.lacking)
    text = f"{said}. {_weights(prepared)}. No cache was sized yet, so no share of the card mends it"
    if not leaner:
        return Trouble(text=f"{text}. No change that was planned takes less", stops=True)
    words = [(told_leaner(each), each.way.is_sure) for each in leaner]
    text += f". {by_sureness(words, ', or ')}"
    return Trouble(text=text, stops=True, change=dict(leaner[0].way.changes))


def _takes_more(changes: Mapping[str, Any], prepared: Prepared) -> bool:
    """More of a card that ran out."""
    return bool(changes.get(_SHARE, 0.0) > prepared.resolved.gpu_memory_utilization)


def _planned(prepared: Prepared, changes: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The changes, with a shorter context where it takes one; None where nothing fits."""
    if advice(prepared, changes, "") is not None:
        return changes
    longest = advice(prepared, {**changes, _LENGTH: "auto"}, "")
    if longest is None:
        return None
    shorter = {**changes, _LENGTH: longest.plan.limits.max_model_len}
    return shorter if advice(prepared, shorter, "") is not None else None


def _weights(prepared: Prepared) -> str:
    size = prepared.resolved.weight_bytes_a_rank
    return f"the weights take {size / GIB:.2f} GiB a card" if size else ""
