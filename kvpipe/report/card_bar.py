"""A rank's memory to scale, in characters, and what each of them stands for."""

from __future__ import annotations

from kvpipe.cache.plan import Plan
from kvpipe.stages.profiling.base import RankMemory
from kvpipe.text.figures import size

_MARKS = {"weights": "W", "activations": "A", "KV cache": "K", "free": "."}


def bar(rank: RankMemory, plan: Plan, columns: int) -> str:
    parts = _parts(rank, plan)
    cells = _cells([num for _, num in parts], columns)
    return "".join(_mark(name) * n for (name, _), n in zip(parts, cells, strict=True))


def legend(rank: RankMemory, plan: Plan) -> str:
    named = [f"{_mark(name)} {name} {size(num)}" for name, num in _parts(rank, plan)]
    return f"{', '.join(named)} of {size(rank.total.num_bytes)}"


def legend_in_brief(rank: RankMemory, plan: Plan) -> str:
    """Without the bytes."""
    return " ".join(f"{_mark(name)}={name}" for name, _ in _parts(rank, plan))


def _parts(rank: RankMemory, plan: Plan) -> list[tuple[str, int]]:
    """What the card holds, in bytes, in the order in which it is charged."""
    total, pool = rank.total.num_bytes, plan.ranks[0].config.size_bytes
    parts = [(item.name, item.num_bytes) for item in rank.charged if item.num_bytes]
    parts.append(("KV cache", pool))
    return [*parts, ("free", max(0, total - sum(num for _, num in parts)))]


def _mark(name: str) -> str:
    return _MARKS.get(name, name[0].upper())


def _cells(parts: list[int], columns: int) -> list[int]:
    """Columns in proportion, by the ends of the running sum, so that they add up to all of them."""
    total, ends, at = max(1, sum(parts)), [], 0
    for part in parts:
        at += part
        ends.append(round(columns * at / total))
    return [end - start for start, end in zip([0, *ends], ends, strict=False)]
