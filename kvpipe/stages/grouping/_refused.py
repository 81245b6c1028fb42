"""A refusal in the figures of fresh plans.

Equal slots are chosen for the length and the memory at hand: with another length or memory a
request has other groups, and may take less. What a refusal says, that length and those bytes, is
therefore tried, and moved to where it holds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from kvpipe.errors import DoesNotFit, KvpipeError
from kvpipe.specs.edges import largest, smallest
from kvpipe.stages.grouping.base import GroupingRequest

Plan = Callable[[GroupingRequest], object]  # raises where a request does not fit


def longest_len(request: GroupingRequest, told: int | None, plan: Plan) -> int | None:
    """In tokens; None where no length fits. told: what one grouping says of it."""
    return _longest(
        told or 0,
        request.limits.max_model_len,
        lambda n: _fits(replace(request, limits=request.limits.with_length(n)), plan),
    )


def needed_bytes(request: GroupingRequest, told: DoesNotFit, plan: Plan) -> int:
    """Of a rank."""
    return _least(
        max(told.needed_bytes),
        max(request.memory),
        lambda num: _fits(replace(request, memory=(num,) * len(request.memory)), plan),
    )


def _fits(request: GroupingRequest, plan: Plan) -> bool:
    try:
        plan(replace(request, fit=False))
    except KvpipeError:
        return False
    return True


def _longest(told: int, asked: int, fits: Callable[[int], bool]) -> int | None:
    if told and not fits(told):
        return largest(1, told - 1, fits)
    if told + 1 < asked and fits(told + 1):
        return largest(told + 1, asked - 1, fits)
    return told or None


def _least(told: int, given: int, fits: Callable[[int], bool]) -> int:
    """Among bytes that are more than were given: those do not fit."""
    if not fits(told):
        return smallest(told + 1, 2 * told, fits) or told
    if told - 1 > given and fits(told - 1):
        return smallest(given + 1, told - 1, fits) or told
    return told
