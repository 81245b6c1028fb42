"""More room for the same request, each way planned: a higher share of the card, an 8-bit cache,
8-bit weights. The last two change what the model computes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from math import floor
from typing import Any

from kvpipe.answers.halvings import caches_of_8_bits, has_fp8
from kvpipe.answers.log_memory import share_is_known
from kvpipe.answers.remedies import (
    LENGTH,
    Advice,
    advice,
    longest,
    surest,
)
from kvpipe.answers.trials import Goal
from kvpipe.cache.plan import Plan
from kvpipe.pipeline import Prepared

LEAST = 1.02  # times the tokens: what is told as more
SHARE = 0.95  # of the card: what stays is for what grows after the cache was sized


def more_room(prepared: Prepared) -> Iterator[Advice]:
    """Ways with which the request fits; where it does not, a longer one than without them."""
    if prepared.resolved.device.type == "cpu":
        return
    for changes in changes_for_room(prepared):
        found = surest(partial(_way, prepared, changes))
        if found is not None:
            yield found


def more_tokens(prepared: Prepared) -> Iterator[Advice]:
    """Ways with which a request that fits holds more of itself at once, with how much more."""
    before = advice(prepared, {}, "")
    held = None if before is None else _at_once(before.plan)
    if not held or prepared.resolved.device.type == "cpu":
        return
    twice = 2 * prepared.resolved.parallel.tp
    for changes in (*changes_for_room(prepared), {"parallel.tensor_parallel_size": twice}):
        found = surest(partial(advice, prepared, changes, ""))
        more = 0.0 if found is None else _at_once(found.plan) / held
        if found is not None and more >= LEAST:
            yield replace(found, promise=f"{floor(100 * more) / 100:.2f} times the tokens")


def _at_once(plan: Plan) -> float:
    """Requests of the planned length, and parts of one."""
    held = plan.capacity
    return held.usable_blocks / held.steady_blocks if held is not None else 0.0


def _way(prepared: Prepared, changes: Mapping[str, Any], goal: Goal) -> Advice | None:
    if whole := advice(prepared, changes, "", goal):
        return whole
    before, after = longest(prepared, {}, goal), longest(prepared, changes, goal)
    if before is None or after is None or after.changes[LENGTH] <= before.changes[LENGTH]:
        return None
    return replace(after, promise="")


def changes_for_room(prepared: Prepared) -> Iterator[Mapping[str, Any]]:
    """One setting each: what changes no result first."""
    resolved = prepared.resolved
    is_estimate = prepared.config.plugins["profiling"].name in ("auto", "estimate")
    is_set = prepared.config.cache.kv_cache_memory_bytes is not None
    is_given = not is_set and (is_estimate or share_is_known(prepared))
    is_free = not prepared.raw["profiling"].get("other_instances_bytes")
    if is_given and is_free and resolved.gpu_memory_utilization < SHARE:
        yield {"cache.gpu_memory_utilization": SHARE}
    yield from caches_of_8_bits(prepared)
    if has_fp8(prepared) and not resolved.model.quantized_with and not resolved.model.load_as:
        yield {"weights": "fp8"}
