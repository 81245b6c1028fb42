"""What to change so that it fits: every change is planned before it is named, least change first.

A plan costs about a millisecond (preparing it four), so candidates are tried, not reasoned about.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Any

from kvpipe.answers.halvings import caches_of_8_bits, fewer_seqs, smaller_batches
from kvpipe.answers.log_memory import share_is_known
from kvpipe.answers.oversized import sizes_of_card
from kvpipe.answers.trials import ANY, Goal, Trial, asked_of_a_copy, tried
from kvpipe.cache.plan import Plan
from kvpipe.engines.base import Engine
from kvpipe.engines.defaults import chunked_beyond
from kvpipe.errors import KvpipeError
from kvpipe.pipeline import Prepared, plan_with
from kvpipe.specs.edges import largest, smallest

PLENTY = 2**50  # bytes
LENGTH = "scheduler.max_model_len"
MOST_NAMED = 6  # ways out that a message names
HIGHEST_SHARE = 97  # hundredths of a card that may be advised; more leaves no room for the rest
MOST_RANKS = 16
SURELY_RUNS = "the longest that surely runs"
_SAMPLING = ("auto", "estimate")  # profilings that charge what sampling takes
_CONVERTS_FP8 = (8, 0)  # compute capability: vLLM reads weights of 8 bits from there on


@dataclass(frozen=True, kw_only=True)
class Advice:
    """changes: settings by key; written: as the user would type them. promise: what they bring
    about, in words. trial: with them."""

    changes: Mapping[str, Any]
    written: str
    promise: str
    trial: Trial = field(repr=False)

    def __str__(self) -> str:
        return self.written

    @property
    def plan(self) -> Plan:
        return self.trial.plan

    @property
    def is_sure(self) -> bool:
        return self.trial.is_sure


Candidate = Callable[[Prepared, Goal], Advice | None]


def advice(
    prepared: Prepared, changes: Mapping[str, Any], words: str, goal: Goal = ANY
) -> Advice | None:
    """The change as advice, if a fresh plan with it meets the goal; else None."""
    trial = tried(prepared, changes)
    if trial is None or not goal.is_met(trial):
        return None
    length = trial.plan.limits.max_model_len
    if words and length < trial.plan.requested_len:  # auto, which takes what there is
        words += f"; requests of {length:,} tokens"
    written = prepared.as_typed(changes)
    return Advice(changes=dict(changes), written=written, promise=words, trial=trial)


def surest(find: Callable[[Goal], Advice | None], goal: Goal = ANY) -> Advice | None:
    """What surely meets the goal; else what meets it by the middle of an estimate."""
    return find(replace(goal, surely=True)) or find(goal)


def ways_out(prepared: Prepared, goal: Goal = ANY) -> list[Advice]:
    """At most MOST_NAMED changes of one setting with which the request meets the goal, on a card
    that has what is taken by hand, and a longer length beside the one that surely runs. Where the
    memory is an estimate: what surely does first."""
    found: list[list[Advice]] = []
    for candidate in CANDIDATES:
        if ways := _ways_of(candidate, prepared, goal):
            found.append(ways)
        if len(found) == MOST_NAMED:
            break
    return sorted((way for ways in found for way in ways), key=_in_order)


def _in_order(way: Advice) -> tuple[bool, float]:
    """What is sure first; of what is not, what leaves most room, since the estimate may be off."""
    held = way.plan.capacity
    if way.is_sure or held is None:
        return not way.is_sure, 0.0
    return True, -held.usable_blocks / max(1, held.peak_blocks)


def _ways_of(candidate: Candidate, prepared: Prepared, goal: Goal) -> list[Advice]:
    """What surely meets the goal; else what meets it by the middle of an estimate; of lengths
    both, since one that surely runs may be too short for any use."""
    ways: list[Advice] = []
    for each in (replace(goal, surely=True), goal):
        way = candidate(prepared, each)
        if way is None or way.trial.profile.over_at_worst_bytes:
            continue
        if way.changes not in [known.changes for known in ways]:
            ways.append(way)
        if candidate is not _length:
            break
    return ways


def _users(prepared: Prepared, goal: Goal) -> Advice | None:
    """As many requests at once as were asked for, where the scheduler allows fewer."""
    asked = asked_of_a_copy(prepared)
    if asked <= prepared.resolved.max_num_seqs:
        return None
    return advice(prepared, {"scheduler.max_num_seqs": asked}, "as many as were asked for", goal)


def _length(prepared: Prepared, goal: Goal) -> Advice | None:
    return longest(prepared, {}, goal)


def longest(prepared: Prepared, changes: Mapping[str, Any], goal: Goal) -> Advice | None:
    """The changes with the longest length that runs with them, by planning for `auto`; with a
    shorter one where that does not meet the goal (several users, the low end of an estimate)."""
    found = tried(prepared, {**changes, LENGTH: "auto"})
    if found is None:
        return None
    length, beside = found.plan.limits.max_model_len, _beside_seqs(found.prepared)

    def at(tokens: int) -> Advice | None:
        words = SURELY_RUNS if goal.surely and tokens < length else "the longest that runs"
        words += beside
        return advice(prepared, {**changes, LENGTH: tokens}, words, goal)

    if whole := at(length):
        return whole
    shorter = largest(1, length - 1, lambda tokens: at(tokens) is not None)
    return None if shorter is None else at(shorter)


def _beside_seqs(prepared: Prepared) -> str:
    """Of a length: sampling for fewer requests at once would leave room for more tokens."""
    samples = prepared.config.plugins["profiling"].name in _SAMPLING
    return f" with max_num_seqs={prepared.resolved.max_num_seqs}" if samples else ""


def _longer(prepared: Prepared, goal: Goal) -> Advice | None:
    """Old releases hold a whole prompt in a step, up to a length from which on they cut prompts:
    what fits is not monotonic there."""
    version = prepared.config.plugins["engine"].make(Engine).rules.version
    beyond = chunked_beyond(version) if version else 0
    asked = prepared.resolved.limits.max_model_len
    longer = beyond + 1
    if not beyond or asked >= longer or longer > prepared.resolved.model.context_length:
        return None
    words = f"longer: beyond {beyond:,} tokens prompts are cut, and a step takes less"
    return advice(prepared, {LENGTH: longer}, words, goal)


def _share(prepared: Prepared, goal: Goal) -> Advice | None:
    """The smallest hundredth of the card."""
    is_estimate = prepared.config.plugins["profiling"].name in (*_SAMPLING, "utilization")
    is_set = prepared.config.cache.kv_cache_memory_bytes is not None
    if is_set or prepared.resolved.device.type == "cpu":
        return None
    if not (is_estimate or share_is_known(prepared)):
        return None
    key = "cache.gpu_memory_utilization"
    lowest = ceil(100 * prepared.resolved.gpu_memory_utilization)

    def at(hundredths: int) -> Advice | None:
        return advice(prepared, {key: hundredths / 100}, "of the card", goal)

    least = smallest(lowest + 1, HIGHEST_SHARE, lambda hundredths: at(hundredths) is not None)
    return _free_share(prepared, at) if least is None else at(least)


def _free_share(prepared: Prepared, at: Callable[[int], Advice | None]) -> Advice | None:
    """What other processes leave, where a release asks for its whole share at the start."""
    held = prepared.raw["profiling"].get("other_instances_bytes") or 0
    total = prepared.resolved.device.total_bytes
    free = 100 * (total - held) // total if isinstance(held, int) else 0
    return at(free) if 0 < free < 100 * prepared.resolved.gpu_memory_utilization else None


def _bytes(prepared: Prepared, goal: Goal) -> Advice | None:
    """As many bytes as one request needs, where the user sets them, or a budget does; where more
    were set than the card has, as many as that has."""
    key = _size_key(prepared)
    if not key:
        return None
    for change, words in sizes_of_card(prepared):
        if found := advice(prepared, change, words, goal):
            return found
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
        if found := advice(prepared, {key: blocks * width}, "one request of the full length", goal):
            return found
    return None


def _size_key(prepared: Prepared) -> str:
    """The setting that gives the cache so many bytes ("": a device does)."""
    if prepared.config.cache.kv_cache_memory_bytes is not None:
        return "cache.kv_cache_memory_bytes"
    plugin, device = prepared.config.plugins["profiling"].name, prepared.resolved.device.type
    return "profiling.budget_bytes" if (plugin, device) == ("auto", "cpu") else ""


def _override(prepared: Prepared, goal: Goal) -> Advice | None:
    """As many blocks as the memory holds, where the user said another number."""
    if prepared.config.cache.num_gpu_blocks_override is None:
        return None
    change = {"cache.num_gpu_blocks_override": None}
    return advice(prepared, change, "as many blocks as the memory holds", goal)


def _block(prepared: Prepared, goal: Goal) -> Advice | None:
    """The largest halving of a block that the user set: a request holds whole ones."""
    key, size = "cache.block_size", prepared.config.cache.block_size
    if size == "auto":
        return None
    while (size := size // 2) >= 1:
        if found := advice(prepared, {key: size}, "smaller blocks", goal):
            return found
    return None


def _first(
    prepared: Prepared, tries: Iterable[Mapping[str, Any]], words: str, goal: Goal
) -> Advice | None:
    """Of several changes the first that helps."""
    found = (advice(prepared, changes, words, goal) for changes in tries)
    return next(filter(None, found), None)


def _batch(prepared: Prepared, goal: Goal) -> Advice | None:
    """The largest halving of the batch that helps."""
    return _first(prepared, smaller_batches(prepared), "fewer tokens in flight", goal)


def _requests(prepared: Prepared, goal: Goal) -> Advice | None:
    """Where sampling for all requests at once takes the room: the largest halving that helps, or
    exactly as many as were asked for, which costs those who asked nothing."""
    if prepared.config.plugins["profiling"].name not in _SAMPLING:
        return None
    asked = asked_of_a_copy(prepared)
    words = "fewer requests sampled at once"
    words += f", all {asked:,} that were asked for" if asked > 1 else ""
    return _first(prepared, fewer_seqs(prepared, asked), words, goal)


def _ranks(prepared: Prepared, goal: Goal) -> Advice | None:
    """Twice the ranks, and so on, of devices alike."""
    parallel = prepared.config.parallel
    if parallel.rank_memory_bytes is not None or prepared.resolved.device.type == "cpu":
        return None
    key, tp = "parallel.tensor_parallel_size", parallel.tensor_parallel_size
    while (tp := tp * 2) <= MOST_RANKS:
        if found := advice(prepared, {key: tp}, f"{tp} ranks", goal):
            return found
    return None


def _cache(prepared: Prepared, goal: Goal) -> Advice | None:
    """A cache of 8 bits, where the card has such floats."""
    return _first(prepared, caches_of_8_bits(prepared), "cache of 8 bits", goal)


def _weights(prepared: Prepared, goal: Goal) -> Advice | None:
    """Weights of fewer bits, where the model's own are served: 8, then 4."""
    model, device = prepared.resolved.model, prepared.resolved.device
    if model.is_converted or model.quantized_with or device.type != "cuda":
        return None
    converts = (device.compute_capability or (0, 0)) >= _CONVERTS_FP8
    for choice, words in (("fp8", "weights of 8 bits"), ("awq", "needs a checkpoint of 4 bits")):
        if choice == "fp8" and not converts:
            continue
        if found := advice(prepared, {"weights": choice}, words, replace(goal, surely=False)):
            return found if found.is_sure or not goal.surely else None
    return None


CANDIDATES: tuple[Candidate, ...] = (
    _users,
    _requests,
    _length,
    _longer,
    _share,
    _bytes,
    _override,
    _block,
    _batch,
    _cache,
    _weights,
    _ranks,
)
