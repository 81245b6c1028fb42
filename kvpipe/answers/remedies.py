"""What to change so that it fits: every change is planned before it is named, least change first.

A plan costs about a millisecond (preparing it four), so candidates are tried, not reasoned about.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from math import ceil
from typing import Any

from kvpipe.answers.log_memory import profile_after, share_is_known
from kvpipe.cache.plan import Plan
from kvpipe.engines.base import Engine
from kvpipe.engines.defaults import chunked_beyond
from kvpipe.errors import DoesNotFit, KvpipeError
from kvpipe.pipeline import Prepared, plan_with, prepare

PLENTY = 2**50  # bytes
MOST_NAMED = 3  # ways out that a message names
HIGHEST_SHARE = 97  # hundredths of a card that may be advised; more leaves no room for the rest
MOST_RANKS = 16


@dataclass(frozen=True, kw_only=True)
class Advice:
    """changes: settings by key. promise: what they bring about, in words. plan: made with them."""

    changes: Mapping[str, Any]
    promise: str
    plan: Plan = field(repr=False)

    def __str__(self) -> str:
        return " ".join(f"{key}={value}" for key, value in self.changes.items())


Promise = Callable[[Plan], bool]


def fits(plan: Plan) -> bool:
    """A request of the planned length can run."""
    return plan.capacity is None or plan.capacity.requests_at_peak > 0


def advice(
    prepared: Prepared, changes: Mapping[str, Any], words: str, promise: Promise = fits
) -> Advice | None:
    """The change as advice, if a fresh plan with it keeps the promise; else None."""
    try:
        made = prepare(changed(prepared.raw, changes))
        memory = profile_after(prepared, made).available_kv_bytes
        plan = plan_with(made, memory, compared=())
    except KvpipeError:
        return None
    if not (fits(plan) and promise(plan)):
        return None
    return Advice(changes=dict(changes), promise=words, plan=plan)


def changed(raw: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Composed values with some settings replaced."""
    values = deepcopy(dict(raw))
    for key, value in changes.items():
        section, _, name = key.partition(".")
        values[section] = {**values[section], name: value}
    return values


def advised(prepared: Prepared, error: DoesNotFit) -> DoesNotFit:
    """The error with the changes that were planned and fit, as one more line."""
    line, changes = ways_line(prepared)
    return error.with_advice(line, changes)


def ways_line(prepared: Prepared) -> tuple[str, tuple[Mapping[str, Any], ...]]:
    """What fits, in words, and as changes."""
    ways = list(ways_out(prepared))
    told = "; ".join(f"{way} ({way.promise})" for way in ways)
    line = f"planned, and fits: {told}" if ways else "no single change of settings makes it fit"
    return line, tuple({**way.changes} for way in ways)


def ways_out(prepared: Prepared, promise: Promise = fits) -> Iterator[Advice]:
    """At most MOST_NAMED changes of one setting with which the request keeps the promise."""
    named = 0
    for candidate in (_length, _longer, _share, _bytes, _batch, _requests, _ranks):
        if named < MOST_NAMED and (way := candidate(prepared, promise)) is not None:
            named += 1
            yield way


def _length(prepared: Prepared, promise: Promise) -> Advice | None:
    """The longest length that runs, by planning for `auto`."""
    key = "scheduler.max_model_len"
    if prepared.raw["scheduler"]["max_model_len"] == "auto":
        return None
    found = advice(prepared, {key: "auto"}, "")
    if found is None:
        return None
    length = found.plan.limits.max_model_len
    return advice(prepared, {key: length}, "the longest that runs", promise)


def _longer(prepared: Prepared, promise: Promise) -> Advice | None:
    """Old releases hold a whole prompt in a step, up to a length from which on they cut prompts:
    what fits is not monotonic there."""
    version = prepared.config.plugins["engine"].make(Engine).rules.version
    beyond = chunked_beyond(version) if version else 0
    asked = prepared.resolved.limits.max_model_len
    longer = beyond + 1
    if not beyond or asked >= longer or longer > prepared.resolved.model.context_length:
        return None
    key = "scheduler.max_model_len"
    words = f"longer: beyond {beyond:,} tokens prompts are cut, and a step takes less"
    return advice(prepared, {key: longer}, words, promise)


def _share(prepared: Prepared, promise: Promise) -> Advice | None:
    """The smallest hundredth of the card."""
    is_estimate = prepared.config.plugins["profiling"].name in ("auto", "estimate", "utilization")
    is_set = prepared.config.cache.kv_cache_memory_bytes is not None
    if is_set or prepared.resolved.device.type == "cpu":
        return None
    if not (is_estimate or share_is_known(prepared)):
        return None
    key = "cache.gpu_memory_utilization"
    lowest = ceil(100 * prepared.resolved.gpu_memory_utilization)

    def at(hundredths: int) -> Advice | None:
        return advice(prepared, {key: hundredths / 100}, "of the card", promise)

    return _smallest(lowest, HIGHEST_SHARE, at) or _free_share(prepared, at)


def _free_share(prepared: Prepared, at: Callable[[int], Advice | None]) -> Advice | None:
    """What other processes leave, where a release asks for its whole share at the start."""
    held = prepared.raw["profiling"].get("other_instances_bytes") or 0
    total = prepared.resolved.device.total_bytes
    free = 100 * (total - held) // total if isinstance(held, int) else 0
    return at(free) if 0 < free < 100 * prepared.resolved.gpu_memory_utilization else None


def _bytes(prepared: Prepared, promise: Promise) -> Advice | None:
    """As many bytes as one request needs, where the user sets them."""
    if prepared.config.cache.kv_cache_memory_bytes is None:
        return None
    ranks = len(prepared.resolved.ranks)
    try:
        rich = plan_with(prepared, (PLENTY,) * ranks, compared=())
    except KvpipeError:
        return None
    if rich.capacity is None:
        return None
    width = max(rank.config.bytes_per_block for rank in rich.ranks)
    peak = sum(demand.peak_blocks for demand in rich.capacity.demands)
    key = "cache.kv_cache_memory_bytes"
    for blocks in (peak + 1, ceil(1.02 * peak) + 2):  # the null block; what old releases keep back
        if found := advice(
            prepared, {key: blocks * width}, "one request of the full length", promise
        ):
            return found
    return None


def _batch(prepared: Prepared, promise: Promise) -> Advice | None:
    """The largest halving of the batch that helps; engines take no fewer tokens than requests."""
    key, batch = "scheduler.max_num_batched_tokens", prepared.resolved.limits.max_num_batched_tokens
    least = max(256, prepared.resolved.max_num_seqs)
    while (batch := batch // 2) >= least:
        if found := advice(prepared, {key: batch}, "fewer tokens in flight", promise):
            return found
    return None


def _requests(prepared: Prepared, promise: Promise) -> Advice | None:
    """Where sampling for all requests at once takes the room."""
    if prepared.config.plugins["profiling"].name != "estimate":
        return None
    key, seqs = "scheduler.max_num_seqs", prepared.resolved.max_num_seqs
    while (seqs := seqs // 2) >= 16:
        if found := advice(prepared, {key: seqs}, "fewer requests sampled at once", promise):
            return found
    return None


def _ranks(prepared: Prepared, promise: Promise) -> Advice | None:
    """Twice the ranks, and so on, of devices alike."""
    parallel = prepared.config.parallel
    if parallel.rank_memory_bytes is not None or prepared.resolved.device.type == "cpu":
        return None
    key, tp = "parallel.tensor_parallel_size", parallel.tensor_parallel_size
    while (tp := tp * 2) <= MOST_RANKS:
        if found := advice(prepared, {key: tp}, f"{tp} ranks", promise):
            return found
    return None


def _smallest(low: int, high: int, at: Callable[[int], Advice | None]) -> Advice | None:
    """The smallest n in low+1..high that works, if all larger ones do; each is planned."""
    best = at(high) if high > low else None
    if best is None:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        found = at(middle)
        low, high, best = (low, middle, found) if found else (middle, high, best)
    return best
