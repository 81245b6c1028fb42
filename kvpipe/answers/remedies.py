"""What to change so that it fits: every change is planned before it is named, least change first.

A plan costs about a millisecond (preparing it four), so candidates are tried, not reasoned about.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import ceil
from typing import Any, Protocol

from kvpipe.answers.card_room import short_of_card
from kvpipe.answers.log_memory import profile_after, share_is_known
from kvpipe.cache.load import of_a_copy
from kvpipe.cache.plan import Plan
from kvpipe.engines.base import Engine
from kvpipe.engines.defaults import chunked_beyond
from kvpipe.errors import DoesNotFit, KvpipeError
from kvpipe.pipeline import Prepared, plan_with, prepare
from kvpipe.request.changed import changed
from kvpipe.request.want import requests_asked
from kvpipe.specs.edges import largest, smallest
from kvpipe.stages.profiling.base import MemoryProfile

PLENTY = 2**50  # bytes
MOST_NAMED = 4  # ways out that a message names
HIGHEST_SHARE = 97  # hundredths of a card that may be advised; more leaves no room for the rest
MOST_RANKS = 16
_CONVERTS_FP8 = (8, 0)  # compute capability: vLLM reads weights of 8 bits from there on


def told(changes: Mapping[str, Any]) -> str:
    """As it is written on a command line."""
    return " ".join(f"{k}={'null' if v is None else v}" for k, v in changes.items())


@dataclass(frozen=True, kw_only=True)
class Advice:
    """changes: settings by key. promise: what they bring about, in words. made, plan: with them."""

    changes: Mapping[str, Any]
    promise: str
    made: Prepared = field(repr=False)
    plan: Plan = field(repr=False)

    def __str__(self) -> str:
        return told(self.changes)


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A fresh plan of a request with some settings changed."""

    prepared: Prepared
    profile: MemoryProfile
    plan: Plan


Promise = Callable[[Plan], bool]


def fits(plan: Plan) -> bool:
    """A request of the planned length can run."""
    return plan.capacity is None or plan.capacity.requests_at_peak > 0


def advice(
    prepared: Prepared, changes: Mapping[str, Any], words: str, promise: Promise = fits
) -> Advice | None:
    """The change as advice, if a fresh plan with it keeps the promise and serves the users that
    were asked for; else None."""
    trial = tried(prepared, changes)
    if trial is None or not (promise(trial.plan) and _serves(trial)):
        return None
    return Advice(changes=dict(changes), promise=words, made=trial.prepared, plan=trial.plan)


def tried(prepared: Prepared, changes: Mapping[str, Any]) -> Trial | None:
    """The request with the changes, planned anew; None where it is refused, or holds nothing."""
    try:
        made = prepare(changed(prepared.raw, changes))
        profile = profile_after(prepared, made)
        plan = plan_with(made, profile.available_kv_bytes, compared=())
    except KvpipeError:
        return None
    return Trial(prepared=made, profile=profile, plan=plan) if fits(plan) else None


def _serves(trial: Trial) -> bool:
    """As many users at once as were asked for, by memory and by the scheduler."""
    held, most = trial.plan.capacity, trial.prepared.resolved.max_num_seqs
    return held is None or min(held.requests_running, most) >= asked_of_a_copy(trial.prepared)


def asked_of_a_copy(prepared: Prepared) -> int:
    """Of the users that were asked for, those of one copy of the ranks."""
    return of_a_copy(requests_asked(prepared.config.want), prepared.resolved.parallel.dp)


def advised(prepared: Prepared, error: DoesNotFit) -> DoesNotFit:
    """The error with the changes that were planned and fit, as one more line."""
    promise = partial(_can_be_allocated, error.available_bytes)
    line, changes = ways_line(prepared, promise if error.stage == "allocation" else fits)
    return error.with_advice(line, changes)


def _can_be_allocated(free: tuple[int, ...], plan: Plan) -> bool:
    """Whether the buffers of every rank that differs from the others fit in what is free here."""
    return sum(size for size in {rank.config.size_bytes for rank in plan.ranks}) <= min(free)


def ways_line(
    prepared: Prepared, promise: Promise = fits
) -> tuple[str, tuple[Mapping[str, Any], ...]]:
    """What fits and serves the users that were asked for, in words, and as changes."""
    return ways_told(list(ways_out(prepared, promise)))


class Way(Protocol):
    @property
    def changes(self) -> Mapping[str, Any]: ...
    @property
    def promise(self) -> str: ...


def ways_told(ways: Sequence[Way]) -> tuple[str, tuple[Mapping[str, Any], ...]]:
    """Planned ways in one line, and as changes."""
    words = "; ".join(f"{told(way.changes)} ({way.promise})" for way in ways)
    line = f"planned, and fits: {words}" if ways else "no single change of settings makes it fit"
    return line, tuple({**way.changes} for way in ways)


def ways_out(prepared: Prepared, promise: Promise = fits) -> Iterator[Advice]:
    """At most MOST_NAMED changes of one setting with which the request keeps the promise, on a card
    that has what is taken."""
    named = 0
    for candidate in CANDIDATES:
        way = candidate(prepared, promise) if named < MOST_NAMED else None
        if way is not None and not short_of_card(way.made, at_worst=True):
            named += 1
            yield way


def _users(prepared: Prepared, promise: Promise) -> Advice | None:
    """As many requests at once as were asked for, where the scheduler allows fewer."""
    asked = asked_of_a_copy(prepared)
    if asked <= prepared.resolved.max_num_seqs:
        return None
    return advice(prepared, {"scheduler.max_num_seqs": asked}, "as many as were asked for", promise)


def _length(prepared: Prepared, promise: Promise) -> Advice | None:
    """The longest length that runs, by planning for `auto`; a shorter one where that does not keep
    the promise (of several users)."""
    key = "scheduler.max_model_len"
    found = tried(prepared, {key: "auto"})
    if found is None:
        return None
    length = found.plan.limits.max_model_len

    def at(tokens: int) -> Advice | None:
        return advice(prepared, {key: tokens}, "the longest that runs", promise)

    if (whole := at(length)) is not None:
        return whole
    shorter = largest(1, length - 1, lambda tokens: at(tokens) is not None)
    return None if shorter is None else at(shorter)


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

    least = smallest(lowest + 1, HIGHEST_SHARE, lambda hundredths: at(hundredths) is not None)
    return _free_share(prepared, at) if least is None else at(least)


def _free_share(prepared: Prepared, at: Callable[[int], Advice | None]) -> Advice | None:
    """What other processes leave, where a release asks for its whole share at the start."""
    held = prepared.raw["profiling"].get("other_instances_bytes") or 0
    total = prepared.resolved.device.total_bytes
    free = 100 * (total - held) // total if isinstance(held, int) else 0
    return at(free) if 0 < free < 100 * prepared.resolved.gpu_memory_utilization else None


def _bytes(prepared: Prepared, promise: Promise) -> Advice | None:
    """As many bytes as one request needs, where the user sets them, or a budget does."""
    key = _size_key(prepared)
    if not key:
        return None
    ranks = len(prepared.resolved.ranks)
    try:
        rich = plan_with(prepared, (PLENTY,) * ranks, compared=())
    except KvpipeError:
        return None
    if rich.capacity is None:
        return None
    width = max(rank.config.bytes_per_block for rank in rich.ranks)
    peak = rich.capacity.peak_blocks
    for blocks in (peak + 1, ceil(1.02 * peak) + 2):  # the null block; what old releases keep back
        if found := advice(
            prepared, {key: blocks * width}, "one request of the full length", promise
        ):
            return found
    return None


def _size_key(prepared: Prepared) -> str:
    """The setting that gives the cache so many bytes ("": a device does)."""
    if prepared.config.cache.kv_cache_memory_bytes is not None:
        return "cache.kv_cache_memory_bytes"
    plugin, device = prepared.config.plugins["profiling"].name, prepared.resolved.device.type
    return "profiling.budget_bytes" if (plugin, device) == ("auto", "cpu") else ""


def _override(prepared: Prepared, promise: Promise) -> Advice | None:
    """As many blocks as the memory holds, where the user said another number."""
    if prepared.config.cache.num_gpu_blocks_override is None:
        return None
    change = {"cache.num_gpu_blocks_override": None}
    return advice(prepared, change, "as many blocks as the memory holds", promise)


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


def _weights(prepared: Prepared, promise: Promise) -> Advice | None:
    """Weights of fewer bits, where the model's own are served: 8, then 4."""
    model, device = prepared.resolved.model, prepared.resolved.device
    if model.is_converted or model.quantized_with or device.type != "cuda":
        return None
    converts = (device.compute_capability or (0, 0)) >= _CONVERTS_FP8
    for choice, words in (("fp8", "weights of 8 bits"), ("awq", "a checkpoint of 4 bits")):
        if choice == "fp8" and not converts:
            continue
        if found := advice(prepared, {"weights": choice}, words, promise):
            return found
    return None


CANDIDATES = (
    _users,
    _length,
    _longer,
    _share,
    _bytes,
    _override,
    _batch,
    _requests,
    _weights,
    _ranks,
)
