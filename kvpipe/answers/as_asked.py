"""Whether the device that was named serves the load as it was asked for, by the same memory that
`kvpipe run` plans with: fits, may not fit, does not fit."""

from __future__ import annotations

from kvpipe.answers.cache_range import cache_words, poorest
from kvpipe.answers.finding import Finding
from kvpipe.answers.low_end import missing_at_low_end
from kvpipe.answers.trials import Trial, replanned
from kvpipe.cache.load import Load, by_both
from kvpipe.cache.plan import Plan
from kvpipe.errors import KvpipeError
from kvpipe.pipeline import Prepared
from kvpipe.text.figures import count, size

QUESTION = "as asked"
SEQS = "scheduler.max_num_seqs"


def as_asked(prepared: Prepared, load: Load) -> Finding:
    most = prepared.resolved.max_num_seqs
    trial = _planned(prepared, load, most)
    limit, setting = _missing(trial, load), ""
    if load.requests > most and not isinstance(trial, str):
        limit = _missing(_planned(prepared, load, load.requests), load)
        if not limit and trial.plan.capacity is not None:
            limit = f"{by_both(trial.plan.capacity.requests_running, most)}: {SEQS}={most}"
            setting = f"{SEQS}={load.requests}"
    word = "does not fit" if limit else "fits"
    if not limit and (short := _short(trial, load)):
        word, limit = "may not fit", f"at worst {size(short)} are missing"
    device, parallel = prepared.resolved.device, prepared.resolved.parallel
    ranks = f"TP {parallel.tp}, PP {parallel.pp}"
    ranks += f", DP {parallel.dp}" if parallel.dp > 1 else ""
    return Finding(
        question=QUESTION,
        answer=f"{device.name}, {ranks}: {word}{_of_cache(trial)}",
        limit=limit,
        setting=setting,
        value=word.replace(" ", "_"),
        unit="status",
    )


def _planned(prepared: Prepared, load: Load, max_num_seqs: int) -> Trial | str:
    """The request for that length and scheduler, or why there is no plan of it."""
    changes = {"scheduler.max_model_len": load.length}
    if max_num_seqs != prepared.resolved.max_num_seqs:
        changes[SEQS] = max_num_seqs
    try:
        return replanned(prepared, changes)
    except KvpipeError as error:
        return error.lines()[0]


def _missing(trial: Trial | str, load: Load) -> str:
    return trial if isinstance(trial, str) else missing_blocks(trial.plan, load.requests)


def missing_blocks(plan: Plan, requests: int) -> str:
    """Why that many requests of the planned length do not fit; "" where they do."""
    if plan.capacity is None:
        return ""
    needed, usable = plan.capacity.blocks_of(requests), plan.capacity.usable_blocks
    if needed <= usable:
        return ""
    return f"memory: {count(needed, 'block')} needed, {usable:,} can be given out"


def _short(trial: Trial | str, load: Load) -> int:
    """Bytes beyond the low end of the estimate."""
    if isinstance(trial, str):
        return 0
    return missing_at_low_end(trial.plan, trial.profile, load.requests)


def _of_cache(trial: Trial | str) -> str:
    return "" if isinstance(trial, str) else f", {cache_words(poorest(trial.profile))}"
