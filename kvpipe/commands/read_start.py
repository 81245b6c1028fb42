"""What a start did with the memory, item by item: as its log says, else as it is estimated."""

from __future__ import annotations

from collections.abc import Iterator

from kvpipe.answers.log_answer import LogComparison
from kvpipe.cache.plan import Capacity, Plan
from kvpipe.engines.pasted_line import in_flags
from kvpipe.logs.engine_log import EngineLog
from kvpipe.notes import Note
from kvpipe.stages.profiling.base import MemoryProfile
from kvpipe.text.figures import GIB, count

_ITEMS = (
    ("total", "the card has"),
    ("requested", "the engine may use"),
    ("before_load", "free before loading"),
    ("weights", "weights"),
    ("draft_weights", "weights of the draft"),
    ("after_load", "free after loading"),
    ("activations", "activations"),
    ("non_torch", "outside torch"),
    ("graphs", "CUDA graphs"),
    ("available_kv", "left for the cache"),
    ("pools", "arrays of the cache"),
    ("after_pool", "free beside them"),
)
_LEAST = ("available_kv", "pools", "before_load", "after_load", "after_pool")


def engine_of(log: EngineLog) -> str:
    return log.engine + (f" {log.version}" if log.version else "")


def plugged_in(log: EngineLog) -> str:
    """Whose groups the engine ran with, where kvpipe's plug-in was asked."""
    if (size := log.settings.get("engine.layers_per_group")) is not None:
        return f"; its groups are those of kvpipe's plug-in, of {count(size, 'layer')} at most"
    return "; kvpipe's plug-in reported in it" if "kvpipe_report" in log.said else ""


def ended(log: EngineLog) -> str:
    if log.refused:
        return "a start that was refused"
    return "a start that failed" if log.short_of or log.ran_out else "a start"


def memory_of(log: EngineLog | None, profile: MemoryProfile | None) -> Iterator[str]:
    if log is not None and log.ranks:
        for name, words in _ITEMS:
            figure = log.least(name) if name in _LEAST else log.most(name)
            if figure is not None:
                yield f"{words} {figure.num_bytes / GIB:.2f} GiB"
        return
    if profile is None:
        return
    rank = min(profile.ranks, key=lambda each: each.available_kv_bytes)
    yield f"the card has {rank.total.num_bytes / GIB:.2f} GiB ({rank.total.how})"
    yield f"the engine may use {rank.requested.num_bytes / GIB:.2f} GiB"
    for item in (*rank.charged, rank.available_kv):
        span = ""
        if item.low_bytes is not None and item.high_bytes is not None:
            span = f": {item.low_bytes / GIB:.2f} to {item.high_bytes / GIB:.2f}"
        yield f"{item.name} {item.num_bytes / GIB:.2f} GiB ({item.how}{span})"


def defaults_of(notes: tuple[Note, ...]) -> Iterator[str]:
    """What the engine chose for a step where nobody did, in one line."""
    steps = ("scheduler.max_num_seqs", "scheduler.max_num_batched_tokens")
    told = [note.text for note in notes if not note.is_warning and note.knob.startswith(steps)]
    if told:
        yield in_flags("; ".join(told))


def held_by(plan: Plan, held: Capacity, where: str = "") -> str:
    """`1,450 blocks hold 2 requests of 8,192 tokens`."""
    requests, length = count(held.requests_steady, "request"), count(held.request_len, "token")
    return f"{count(plan.num_blocks, 'block')}{where} hold {requests} of {length}"


def capacity_of(
    compared: LogComparison | None, plan: Plan | None, copies: int = 1, max_num_seqs: int = 0
) -> Iterator[str]:
    """max_num_seqs: that a copy may run (0: not known)."""
    if plan is not None and plan.capacity is not None:
        where = f" on each of {copies:,} copies" if copies > 1 else ""
        longest = plan.capacity.longest_request
        words = f"{held_by(plan, plan.capacity, where)} at once, the longest {longest:,}"
        if 0 < max_num_seqs < plan.capacity.requests_steady:
            words += f"; --max-num-seqs lets {max_num_seqs:,} of them run"
        yield words
    if compared is not None and compared.agreeing and any(c.terms for c in compared.agreeing):
        best = compared.agreeing[-1]
        figures = ", ".join(f"{term.name} {term.printed}" for term in best.terms)
        supposed = f" with {' and '.join(best.supposed)}" if best.supposed else ""
        yield f"printed and reproduced by the rules of {best.engine}{supposed}: {figures}"
