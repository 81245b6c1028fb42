"""A server whose cache is full while requests wait: it runs, and nothing in its start says why it
is slow. What gives it more room is planned.
"""

from __future__ import annotations

from collections.abc import Iterator

from kvpipe.answers.more_room import more_tokens
from kvpipe.answers.ways_in_words import by_sureness, in_a_sentence
from kvpipe.commands.trouble import Trouble
from kvpipe.engines.pasted_line import words_of
from kvpipe.logs.engine_log import EngineLog
from kvpipe.logs.load import FULL
from kvpipe.pipeline import Prepared
from kvpipe.text.figures import count

MOST = 3  # ways that are named


def of_full_cache(log: EngineLog | None, prepared: Prepared | None) -> Iterator[Trouble]:
    """prepared: the request, by which more room is planned (None: it is only told)."""
    if log is None:
        return
    load = log.load
    if not load.full and not load.preempted:
        return
    said = _said(log) if load.full else ""
    if load.preempted:
        lost = f"{count(load.preempted, 'request')} lost their memory and were computed again"
        said = f"{said}; {lost}" if said else f"the cache ran full: {lost}"
    ways = list(more_tokens(prepared))[:MOST] if prepared is not None else []
    if not ways:
        yield Trouble(text=said)
        return
    told = by_sureness([(f"{words_of(w.changes)} ({w.promise})", w.is_sure) for w in ways], ", or ")
    text = f"{said}. More room: {in_a_sentence(told)}"
    yield Trouble(text=text, change=dict(ways[0].changes))


def _said(log: EngineLog) -> str:
    load = log.load
    return (
        f"the cache is full and requests wait, in {load.full:,} of {count(load.lines, 'line')} "
        f"(from {FULL:.0%} on): at the worst {load.running:,} run, {load.waiting:,} wait, "
        f"{load.usage:.1%} is in use"
    )
