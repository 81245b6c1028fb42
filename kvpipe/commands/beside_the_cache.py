"""A card that ran out after the engine had sized its cache: what leaves room beside the cache.

The cache of that start is known, so nothing here gives a larger one: the setting that sizes it is
lowered, until the cache is smaller by what was lacking, and the plan with it must say so.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from math import ceil, floor
from typing import Any

from kvpipe.answers.remedies import LENGTH, Advice, advice
from kvpipe.answers.trials import Goal, tried
from kvpipe.cache.plan import Plan
from kvpipe.engines.pasted_line import words_of
from kvpipe.logs.engine_log import EngineLog
from kvpipe.pipeline import Prepared
from kvpipe.text.figures import GIB, MIB

SHARE = "cache.gpu_memory_utilization"
_BYTES, _BLOCKS = "cache.kv_cache_memory_bytes", "cache.num_gpu_blocks_override"
EDGE = 1e-9  # of a hundredth: 0.9 is 90 of them


def smaller_cache(log: EngineLog, prepared: Prepared) -> Advice | None:
    """The setting with a cache that leaves what was lacking; with a shorter context where it takes
    one. None: the log does not say how large the cache was, or nothing can be left."""
    had = log.least("available_kv")
    if had is None:
        return None
    goal = Goal(promise=partial(_is_at_most, had.num_bytes - log.lacking))
    change = _lowered(log, prepared, had.num_bytes)
    if change is None:
        return None
    if (whole := advice(prepared, change, "", goal)) is not None:
        return whole
    longest = tried(prepared, {**change, LENGTH: "auto"})
    if longest is None:
        return None
    shorter = {**change, LENGTH: longest.plan.limits.max_model_len}
    return advice(prepared, shorter, "", goal)


def told_smaller(way: Advice, log: EngineLog) -> str:
    """In words, with what it is worth."""
    had = log.least("available_kv")
    assert had is not None
    freed = had.num_bytes - _largest(way.plan)
    return f"{words_of(way.changes)} makes the cache {freed / GIB:.2f} GiB smaller (planned)"


def _is_at_most(num_bytes: int, plan: Plan) -> bool:
    return _largest(plan) <= num_bytes


def _largest(plan: Plan) -> int:
    return max(rank.config.size_bytes for rank in plan.ranks)


def _lowered(log: EngineLog, prepared: Prepared, had: int) -> Mapping[str, Any] | None:
    """The setting that decides how large the cache is, lowered by what was lacking."""
    cache = prepared.config.cache
    if cache.num_gpu_blocks_override is not None:
        return _fewer_blocks(cache.num_gpu_blocks_override, log.lacking, prepared)
    if cache.kv_cache_memory_bytes is not None:
        fewer = min(had, cache.kv_cache_memory_bytes) - max(MIB, log.lacking)
        return {_BYTES: fewer // MIB * MIB} if fewer >= MIB else None
    total, share = log.least("total"), prepared.resolved.gpu_memory_utilization
    card = total.num_bytes if total is not None else prepared.resolved.device.total_bytes
    enough = floor(100 * (share - log.lacking / card) + EDGE)
    hundredths = min(enough, ceil(100 * share - EDGE) - 1)
    return {SHARE: hundredths / 100} if hundredths > 0 else None


def _fewer_blocks(blocks: int, lacking: int, prepared: Prepared) -> Mapping[str, Any] | None:
    trial = tried(prepared, {})
    if trial is None:
        return None
    width = max(rank.config.bytes_per_block for rank in trial.plan.ranks)
    return {_BLOCKS: blocks - max(1, ceil(lacking / width))}
