"""What holds for every request: each function gives what is wrong with one, or "".

Not among them, because it is not so (docs/capacity.md says it): a larger block size, another engine
or more speculative tokens may fit more or less; a higher TP may hold fewer requests in all where KV
heads are replicated.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from fuzz.promises import (
    the_causes_add_up_to_the_memory,
    the_manager_takes_what_is_printed,
    the_saved_config_is_the_same_request,
)
from fuzz.requests import DEFAULT_LENGTH, DEFAULT_MEMORY, Settings, fitted, planned
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
    return _length_is_wrong(told, settings) or _bytes_are_wrong(told, settings)


def _length_is_wrong(told: DoesNotFit, settings: Settings) -> str:
    longest = told.longest_len
    found = re.search(r"Lower it to ([\d,]+)", str(told))
    if (int(found[1].replace(",", "")) if found else None) != longest:
        return f"longest_len {longest} is not what is said: {told}"
    if longest is None:
        one = _runs(planned(settings, length=1))
        return f"one token fits, and no length is said to: {told}" if one else ""
    if not _runs(planned(settings, length=longest)):
        return f"longest_len {longest:,} does not run"
    more = _runs(planned(settings, length=longest + 1))
    return f"longest_len {longest:,}, and one token more runs" if more else ""


def _bytes_are_wrong(told: DoesNotFit, settings: Settings) -> str:
    needed = max(told.needed_bytes, default=0)
    if needed <= settings.get("memory", DEFAULT_MEMORY):
        return f"needs {told.needed_bytes}, has {told.available_bytes}, and does not fit"
    if not isinstance(again := planned(settings, memory=needed), Plan):
        return f"needs {needed:,} bytes, and does not fit in them: {again}"
    if isinstance(planned(settings, memory=needed - 1), Plan):
        return f"needs {needed:,} bytes, and fits in one less"
    return ""


def _runs(plan: object) -> bool:
    """Whether a request of the planned length is ever scheduled: some engines start without."""
    return isinstance(plan, Plan) and (plan.capacity is None or _requests(plan) > 0)


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


def auto_is_the_longest_that_fits(settings: Settings) -> str:
    length, auto = settings.get("length", DEFAULT_LENGTH), fitted(settings)
    if auto is None:
        return ""
    if not isinstance(auto, Plan):
        there = planned(settings, length=1)
        return f"auto finds no length, and one token fits: {auto}" if _runs(there) else ""
    found = auto.limits.max_model_len
    if not isinstance(planned(settings, length=found), Plan):
        return f"auto says {found:,}, which does not fit"
    if found < length and _runs(planned(settings, length=found + 1)):
        return f"auto says {found:,}, and one token more fits"
    return ""


def tensor_parallelism_never_enlarges_a_rank(settings: Settings) -> str:
    tp = settings.get("parallel.tensor_parallel_size", 1)
    return _no_larger(settings, "parallel.tensor_parallel_size", 2 * tp)


def elements_of_a_byte_never_enlarge_a_page(settings: Settings) -> str:
    if settings.get("cache.cache_dtype", "auto") not in ("auto", "float32"):
        return ""
    if settings.get("engine", "kvpipe") == "kvpipe":
        return ""  # equal slots round otherwise, by up to a slot a table: docs/slots.md
    return _no_larger(settings, "cache.cache_dtype", "fp8_e4m3")


def _no_larger(settings: Settings, key: str, value: object) -> str:
    """What is wrong where this one setting makes a rank need more."""
    one, two = planned(settings), planned({**settings, key: value})
    if isinstance(one, Plan) and isinstance(two, DoesNotFit):
        return f"fits, and not with {key}={value}: {two}"
    if isinstance(one, Plan) and isinstance(two, Plan) and _size(two) > _size(one):
        return f"{_size(one):,} bytes needed, {_size(two):,} with {key}={value}"
    return ""


def _size(plan: Plan) -> int:
    """Of a block, on the largest rank. Equal slots of fewer tables are larger, and a request takes
    fewer of them: there, of all that one takes."""
    if plan.slots is not None:
        return max(rank.required_bytes for rank in plan.ranks)
    return max(rank.config.bytes_per_block for rank in plan.ranks)


def _requests(plan: Plan) -> int:
    return plan.capacity.requests_at_peak if plan.capacity else 0


Invariants = tuple[Callable[[Settings], str], ...]
# Of every memory and length, and, since they take longer, of every request once.
OF_EACH: Invariants = (
    more_memory_never_fits_less,
    shorter_fits_where_longer_fits,
    advice_is_exact,
    blocks_lie_in_the_memory,
)
ONCE: Invariants = (
    auto_is_the_longest_that_fits,
    tensor_parallelism_never_enlarges_a_rank,
    elements_of_a_byte_never_enlarge_a_page,
    the_manager_takes_what_is_printed,
    the_causes_add_up_to_the_memory,
    the_saved_config_is_the_same_request,
)
ALL: Invariants = (*OF_EACH, *ONCE)


def broken(settings: Settings, invariants: Invariants = ALL) -> str:
    """The first that does not hold, in words; "" where all do."""
    for invariant in invariants:
        if said := invariant(settings):
            return f"{invariant.__name__}: {said}"
    return ""
