"""Whether the device that was named serves the load as it was asked for, by the same memory that
`kvpipe run` plans with: fits, may not fit, does not fit."""

from __future__ import annotations

from dataclasses import dataclass

from kvpipe.answers.cache_range import cache_words, poorest
from kvpipe.answers.finding import Finding
from kvpipe.answers.low_end import missing_at_low_end
from kvpipe.answers.served import Held, served, straddling_words
from kvpipe.answers.trials import Trial, planned_or_why
from kvpipe.cache.load import Load, by_both
from kvpipe.cache.plan import Plan
from kvpipe.errors import KvpipeError
from kvpipe.pipeline import Prepared, prepare
from kvpipe.request.changed import changed
from kvpipe.text.figures import count, size

QUESTION = "as asked"
LENGTH, SEQS = "scheduler.max_model_len", "scheduler.max_num_seqs"


@dataclass(frozen=True, kw_only=True)
class AsAsked:
    """serves: by the best value of the memory, as exit codes go."""

    finding: Finding
    serves: bool


def as_asked(prepared: Prepared, load: Load) -> AsAsked:
    most = prepared.resolved.max_num_seqs
    trial = planned_or_why(prepared, {LENGTH: load.length})
    limit, setting = missing_of(trial, load.requests), ""
    if load.requests > most and not isinstance(trial, str):
        more = planned_or_why(prepared, {LENGTH: load.length, SEQS: load.requests})
        limit = missing_of(more, load.requests)
        if not limit and trial.plan.capacity is not None:
            limit = f"{by_both(trial.plan.capacity.requests_running, most)}: {SEQS}={most}"
            setting = f"{SEQS}={load.requests}"
    word, serves = "does not fit" if limit else "fits", not limit
    if not limit and (short := _short(trial, load)):
        word, limit = "may not fit", f"at worst {size(short)} are missing"
    elif limit and load.requests <= most and (high := _held_at_high_end(prepared, load)):
        word, limit = "may not fit", f"{limit}; {straddling_words(high)}"
    device, parallel = prepared.resolved.device, prepared.resolved.parallel
    ranks = f"TP {parallel.tp}, PP {parallel.pp}"
    ranks += f", DP {parallel.dp}" if parallel.dp > 1 else ""
    finding = Finding(
        question=QUESTION,
        answer=f"{device.name}, {ranks}: {word}{_of_cache(trial)}",
        limit=limit,
        setting=setting,
        value=word.replace(" ", "_"),
        unit="status",
    )
    return AsAsked(finding=finding, serves=serves)


def missing_of(trial: Trial | str, requests: int) -> str:
    """Why that many requests of the planned length do not fit; "" where they do."""
    return trial if isinstance(trial, str) else _missing_blocks(trial.plan, requests)


def _missing_blocks(plan: Plan, requests: int) -> str:
    if plan.capacity is None:
        return ""
    needed, usable = plan.capacity.blocks_of(requests), plan.capacity.usable_blocks
    if needed <= usable:
        return ""
    each = max(rank.config.bytes_per_block for rank in plan.ranks)
    lacking = f"{size((needed - usable) * each)} more than there is"
    return f"memory: {count(needed, 'block')} needed, {usable:,} can be given out ({lacking})"


def _held_at_high_end(prepared: Prepared, load: Load) -> Held | None:
    """What the high end of the memory holds, where that is the load."""
    try:
        held = served(prepare(changed(prepared.raw, {LENGTH: load.length}))).high
    except KvpipeError:
        return None
    return held if held.users >= load.requests else None


def _short(trial: Trial | str, load: Load) -> int:
    """Bytes beyond the low end of the estimate."""
    if isinstance(trial, str):
        return 0
    return missing_at_low_end(trial.plan, trial.profile, load.requests)


def _of_cache(trial: Trial | str) -> str:
    return "" if isinstance(trial, str) else f", {cache_words(poorest(trial.profile))}"
