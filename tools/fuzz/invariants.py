"""What holds for every request: each function gives what is wrong with one, or "".

Not among them, because it is not so: a larger block size, another engine or more speculative tokens
may fit more or less; a higher TP may hold fewer requests in all where KV heads are replicated.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from fuzz.requests import DEFAULT_LENGTH, DEFAULT_MEMORY, Settings, planned
from kvpipe.cache.plan import Plan
from kvpipe.errors import DoesNotFit


def more_memory_never_fits_less(settings: Settings) -> str:
    here = planned(settings)
    memory = settings.get("memory", DEFAULT_MEMORY)
    if not isinstance(here, Plan):
        return ""
    for more in (memory + 1, memory * 2):
        there = planned(settings, memory=more)
        if not isinstance(there, Plan):
            return f"fits in {memory:,} bytes and not in {more:,}: {there}"
        if there.num_blocks < here.num_blocks:
            return f"{here.num_blocks:,} blocks in {memory:,}, {there.num_blocks:,} in {more:,}"
        if _requests(there) < _requests(here):
            return f"{_requests(here)} requests in {memory:,} bytes, {_requests(there)} in {more:,}"
    return ""


def shorter_fits_where_longer_fits(settings: Settings) -> str:
    length = settings.get("length", DEFAULT_LENGTH)
    if isinstance(planned(settings), Plan):
        for shorter in {length - 1, length // 2} - {0}:
            if not isinstance(there := planned(settings, length=shorter), Plan):
                return f"{length:,} tokens fit and {shorter:,} do not: {there}"
    return ""


def advice_is_exact(settings: Settings) -> str:
    """The longest length fits and one token more does not; so do the bytes that are said."""
    told = planned(settings)
    if not isinstance(told, DoesNotFit):
        return ""
    if (longest := told.longest_len) is not None:
        if not isinstance(planned(settings, length=longest), Plan):
            return f"longest_len {longest:,} does not fit"
        if isinstance(planned(settings, length=longest + 1), Plan):
            return f"longest_len {longest:,}, and one token more fits"
        if wrong := _said_is_wrong(told, longest, settings):
            return wrong
    elif isinstance(planned(settings, length=1), Plan):
        return f"one token fits, and no length is said to: {told}"
    if not told.needed_bytes or max(told.needed_bytes) <= settings.get("memory", DEFAULT_MEMORY):
        return f"needs {told.needed_bytes}, has {told.available_bytes}, and does not fit"
    needed = max(told.needed_bytes)
    if not isinstance(again := planned(settings, memory=needed), Plan):
        return f"needs {needed:,} bytes, and does not fit in them: {again}"
    if isinstance(planned(settings, memory=needed - 1), Plan):
        return f"needs {needed:,} bytes, and fits in one less"
    return ""


def _said_is_wrong(told: DoesNotFit, longest: int, settings: Settings) -> str:
    """The length that the message names is longest_len, or, of an engine that admits lengths which
    it can never schedule, the shorter one that runs."""
    found = re.search(r"Lower it to ([\d,]+)", str(told))
    said = int(found[1].replace(",", "")) if found else 0
    if not said or said > longest:
        return f"longest_len {longest:,} is not what is said: {told}"
    there = planned(settings, length=said)
    if not isinstance(there, Plan) or not _requests(there):
        return f"the length that is said, {said:,}, does not run: {told}"
    if said < longest and (more := planned(settings, length=said + 1)) and _runs(more):
        return f"{said:,} is said, and one token more runs: {told}"
    return ""


def _runs(plan: object) -> bool:
    return isinstance(plan, Plan) and _requests(plan) > 0


def blocks_lie_in_the_memory(settings: Settings) -> str:
    plan, memory = planned(settings), settings.get("memory", DEFAULT_MEMORY)
    if not isinstance(plan, Plan):
        return ""
    for number, rank in enumerate(plan.ranks):
        used = plan.num_blocks * rank.config.bytes_per_block
        if used > memory:
            return f"rank {number}: {used:,} bytes of blocks in {memory:,}"
    capacity = plan.capacity
    if capacity is not None and capacity.requests_at_peak > capacity.requests_steady:
        return f"{capacity.requests_at_peak} at peak, {capacity.requests_steady} in steady state"
    return ""


def tensor_parallelism_never_enlarges_a_rank(settings: Settings) -> str:
    tp = settings.get("parallel.tensor_parallel_size", 1)
    one, two = planned(settings), planned({**settings, "parallel.tensor_parallel_size": 2 * tp})
    if isinstance(one, Plan) and isinstance(two, DoesNotFit):
        return f"fits at TP {tp} and not at {2 * tp}: {two}"
    if isinstance(one, Plan) and isinstance(two, Plan) and _page(two) > _page(one):
        return f"{_page(one):,} bytes a block at TP {tp}, {_page(two):,} at {2 * tp}"
    return ""


def _page(plan: Plan) -> int:
    return max(rank.config.bytes_per_block for rank in plan.ranks)


def _requests(plan: Plan) -> int:
    return plan.capacity.requests_at_peak if plan.capacity else 0


CHEAP: tuple[Callable[[Settings], str], ...] = (
    more_memory_never_fits_less,
    shorter_fits_where_longer_fits,
    advice_is_exact,
    blocks_lie_in_the_memory,
)
ALL = (*CHEAP, tensor_parallelism_never_enlarges_a_rank)


def broken(settings: Settings, invariants: tuple[Callable[[Settings], str], ...] = ALL) -> str:
    """The first that does not hold, in words; "" where all do."""
    for invariant in invariants:
        if said := invariant(settings):
            return f"{invariant.__name__}: {said}"
    return ""
