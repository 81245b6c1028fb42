"""What a user says beside a log that says otherwise: a log is of one start, with its own settings.

The log is read as it says itself; what was said is then planned from the log's memory, by what the
estimate says the change is worth. A card that cannot hold what the log says was never the log's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from kvpipe.answers.pasted_request import PastedRequest
from kvpipe.answers.remedies import LENGTH, Advice, advice, longest, surest
from kvpipe.answers.trials import replanned
from kvpipe.commands.read_start import held_by
from kvpipe.commands.trouble import Trouble
from kvpipe.engines.pasted_line import in_flags, words_of
from kvpipe.errors import KvpipeError
from kvpipe.logs.engine_log import EngineLog
from kvpipe.pipeline import Prepared, prepare
from kvpipe.request.changed import changed
from kvpipe.text.figures import GIB

_SECTIONS = ("cache", "scheduler", "parallel")
_RANKS = "parallel.tensor_parallel_size"
_SHARE = "cache.gpu_memory_utilization"
_DTYPE = "cache.cache_dtype"  # fp8 and fp8_e4m3 are one
_HELD = ("weights", "draft_weights", "activations", "non_torch", "available_kv", "pools")
APART = 0.05  # share by which the total that is printed differs from a shipped card's
_ESTIMATE = {"profiling": "estimate"}


@dataclass(frozen=True, kw_only=True)
class Otherwise:
    """said, theirs: settings by key, as the user has them and as the log has them."""

    said: Mapping[str, Any]
    theirs: Mapping[str, Any]


def as_the_log_says(pasted: PastedRequest) -> tuple[PastedRequest, Otherwise | None]:
    """The request with the log's own settings, and what was said instead of them."""
    log, prepared = pasted.log, pasted.prepared
    if log is None:
        return pasted, None
    settings = {**_by_its_weights(log, prepared), **_settings(log)}
    theirs = {key: value for key, value in settings.items() if key in prepared.said}
    found = {key: value for key, value in theirs.items() if _differs(prepared, key, value)}
    if not found:
        return pasted, None
    said = {key: _of_raw(prepared, key) for key in found}
    try:
        made = prepare(changed(prepared.raw, found))
    except KvpipeError:
        return pasted, None
    own = replace(made, said=prepared.said - found.keys(), words=prepared.words)
    return replace(pasted, prepared=own), Otherwise(said=said, theirs=found)


def of_said(prepared: Prepared, otherwise: Otherwise) -> Trouble:
    """prepared: as the log says. What the settings that were said would bring, planned."""
    said = otherwise.said
    head = f"the log is of {words_of(otherwise.theirs)}, and {words_of(said)} was said"
    whole = advice(prepared, said, "")
    if whole is not None:
        sure = "" if whole.is_sure else ", and may fit"
        text = f"{head}: planned from the log's memory{sure}, {_held(whole)}"
        return Trouble(text=text, change=whole.changes)
    way = None if LENGTH in said else _longest(prepared, said)
    text = f"{head}: from the log's memory that does not fit{_why(prepared, said)}"
    if way is None:
        return Trouble(text=text, stops=True)
    text += f". Planned: {words_of(way.changes)}, {_held(way)}"
    return Trouble(text=text, stops=True, change=way.changes)


def of_another_card(pasted: PastedRequest) -> Trouble | None:
    """Where the log cannot be of the card that was said."""
    log, prepared = pasted.log, pasted.prepared
    device = prepared.resolved.device
    if log is None or device.type == "cpu" or not _says_device(prepared):
        return None
    why = _too_much(log, device.total_bytes) or _other_total(log, device.total_bytes)
    if not why:
        return None
    head = f"the log is not of {device.name}, which has {device.total_bytes / GIB:.2f} GiB: {why}"
    whole = advice(prepared, _ESTIMATE, "")
    way = whole or _longest(prepared, _ESTIMATE)
    if way is None:
        text = f"{head}. By estimate these settings do not fit on {device.name}"
        return Trouble(text=text, stops=True)
    change = {key: value for key, value in way.changes.items() if key not in _ESTIMATE}
    words = words_of(change) or "these settings"
    text = f"{head}. On {device.name} {words} would fit, by estimate: {_held(way)}"
    return Trouble(text=text, stops=True, change=way.changes)


def instead_of_line(pasted: PastedRequest) -> str:
    """What was said beside a pasted line that says otherwise ("": nothing)."""
    prepared, command = pasted.prepared, pasted.command
    if command is None or pasted.log is not None:
        return ""
    found = {
        key: value
        for key, value in command.settings.items()
        if key.partition(".")[0] in _SECTIONS and key in prepared.said
        if _differs(prepared, key, value)
    }
    if not found:
        return ""
    said = {key: _of_raw(prepared, key) for key in found}
    return f"planned with {words_of(said)}, as was said; the line has {words_of(found)}"


# --- what differs ---
def _settings(log: EngineLog) -> Mapping[str, Any]:
    own = {
        k: v for k, v in log.settings.items() if k.partition(".")[0] in _SECTIONS and v != "auto"
    }
    return own if log.utilization is None else {**own, _SHARE: log.utilization}


def _by_its_weights(log: EngineLog, prepared: Prepared) -> Mapping[str, Any]:
    """One rank, where the log does not say how many it had and printed the weights of the whole
    model, though several were said."""
    printed, said = log.most("weights"), prepared.resolved.parallel.tp
    if printed is None or said == 1 or len(log.ranks) > 1:
        return {}
    try:
        whole = prepare(changed(prepared.raw, {_RANKS: 1})).resolved.weight_bytes_a_rank
    except KvpipeError:
        return {}
    return {_RANKS: 1} if abs(printed.num_bytes - whole) <= APART * whole else {}


def _of_raw(prepared: Prepared, key: str) -> Any:
    section, _, name = key.partition(".")
    return getattr(getattr(prepared.config, section), name)


def _differs(prepared: Prepared, key: str, theirs: Any) -> bool:
    if key == _DTYPE:
        return prepared.resolved.cache_dtype[:3] != str(theirs)[:3]
    return bool(_of_raw(prepared, key) != theirs)


def _says_device(prepared: Prepared) -> bool:
    return any(key.partition(".")[0] == "device" for key in prepared.said)


def _too_much(log: EngineLog, total: int) -> str:
    """What the poorest reading of its own figures needs of a card."""
    held = [
        sum(figures[name].num_bytes for name in _HELD if name in figures)
        for figures in log.ranks.values()
    ]
    most = max(held, default=0)
    return f"its weights and its cache are {most / GIB:.2f} GiB a card" if most > total else ""


def _other_total(log: EngineLog, total: int) -> str:
    found = log.least("total")
    if found is None or abs(found.num_bytes - total) <= APART * total:
        return ""
    return f"its card has {found.num_bytes / GIB:.2f} GiB"


# --- what was planned ---
def _longest(prepared: Prepared, changes: Mapping[str, Any]) -> Advice | None:
    return surest(partial(longest, prepared, changes))


def _held(way: Advice) -> str:
    held = way.plan.capacity
    return "it fits" if held is None else held_by(way.plan, held)


def _why(prepared: Prepared, said: Mapping[str, Any]) -> str:
    """The first line of what refuses it."""
    try:
        replanned(prepared, said)
    except KvpipeError as error:
        return f" ({in_flags(error.lines()[0]).rstrip('.')})"
    return ""
