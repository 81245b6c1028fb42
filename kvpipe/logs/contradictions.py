"""Figures of one log that cannot all be true, with the lines they stand in."""

from __future__ import annotations

from collections.abc import Iterator

from kvpipe.logs.engine_log import EngineLog
from kvpipe.logs.figures import Figure
from kvpipe.text.figures import GIB

SLACK = GIB // 20  # bytes: engines round what they add up, too
_PARTS = ("weights", "activations", "non_torch")


def contradictions(log: EngineLog) -> Iterator[str]:
    """One sentence each; nothing where the figures go together."""
    for rank, figures in sorted(log.ranks.items()):
        where = f" on {rank}" if rank else ""
        if {"pool_check", "pools"} <= figures.keys():
            yield from _pools(log, figures["pools"], figures["pool_check"], where)
        if {"available_kv", "requested", *_PARTS} <= figures.keys():
            yield from _sum(log, dict(figures), where)


def _pools(log: EngineLog, pools: Figure, check: Figure, where: str) -> Iterator[str]:
    """The log's own sum is of the pools of the model, without a draft's or states."""
    if pools.high + SLACK < check.low:
        yield (
            f"its arrays{where} add up to {_gib(pools)}, and it gives {_gib(check)} itself"
            f"{_lines(log, 'k', 'pool_check')}: is a line missing?"
        )


def _sum(log: EngineLog, figures: dict[str, Figure], where: str) -> Iterator[str]:
    charged = sum(figures[name].num_bytes for name in _PARTS)
    graphs = figures["graphs"].num_bytes if "graphs" in figures else 0
    left = figures["requested"].num_bytes - charged
    said = figures["available_kv"].num_bytes
    if min(abs(left - said), abs(left - graphs - said)) > SLACK:
        yield (
            f"of {_gib(figures['requested'])} requested{where}, weights, activations and memory "
            f"outside torch leave {left / GIB:.2f} GiB, and the cache is said to have "
            f"{_gib(figures['available_kv'])}{_lines(log, 'requested', 'available_kv')}"
        )


def _gib(figure: Figure) -> str:
    return f"{figure.num_bytes / GIB:.2f} GiB"


def _lines(log: EngineLog, *names: str) -> str:
    """` (lines 12 and 40)`."""
    found = [f"{log.said[name].line:,}" for name in names if name in log.said]
    return f" (lines {' and '.join(found)})" if len(found) > 1 else ""
