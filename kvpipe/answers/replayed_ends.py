"""Whether a replayed load is served at the ends of the memory's estimate, too: replayed there again
where what it held says nothing of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvpipe.answers.high_end import most_memory
from kvpipe.cache.plan import Plan
from kvpipe.errors import DoesNotFit
from kvpipe.pipeline import Prepared, plan_with
from kvpipe.stages.profiling.base import MemoryProfile

Serves = Callable[[Plan], bool]  # the whole load, replayed on a plan


@dataclass(frozen=True, kw_only=True)
class Replayed:
    """At the best value of the memory. held_blocks: most in use at once; serves: all of it."""

    plan: Plan
    held_blocks: int
    serves: bool


def status_at_ends(
    prepared: Prepared, profile: MemoryProfile, best: Replayed, serves: Serves
) -> str:
    """fits: at the low end, too; may_not_fit: the range straddles what the load needs;
    does_not_fit: not at the high end, either."""
    if not best.serves:
        most = most_memory(profile)
        is_more = bool(most) and min(most) > 0 and most != profile.available_kv_bytes
        may = is_more and _serves(prepared, most, serves)
        return "may_not_fit" if may else "does_not_fit"
    if profile.over_at_worst_bytes:
        return "may_not_fit"
    least = tuple(rank.available_kv.at_least for rank in profile.ranks)
    if least == profile.available_kv_bytes:
        return "fits"
    return "fits" if _serves(prepared, least, serves, best) else "may_not_fit"


def _serves(
    prepared: Prepared, memory: Sequence[int], serves: Serves, best: Replayed | None = None
) -> bool:
    """In that memory; without another replay where its blocks are as many as were held at once, of
    requests as long."""
    try:
        plan = plan_with(prepared, memory, compared=())
    except DoesNotFit:
        return False
    return (best is not None and _holds(plan, best)) or serves(plan)


def _holds(plan: Plan, best: Replayed) -> bool:
    if plan.limits.max_model_len < best.plan.limits.max_model_len:
        return False
    return plan.capacity is None or best.held_blocks <= plan.capacity.usable_blocks
