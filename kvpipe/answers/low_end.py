"""What a load lacks where the memory is an estimate and turns out to be the least of its range."""

from __future__ import annotations

from kvpipe.cache.plan import Plan, RankPlan
from kvpipe.specs.edges import largest
from kvpipe.stages.profiling.base import MemoryProfile


def missing_at_low_end(plan: Plan, profile: MemoryProfile, requests: int = 1) -> int:
    """Bytes, on the rank that lacks most, that a running load of so many requests of the planned
    length would need beyond the low end of the estimate; 0 where it is served there, too, and
    where the memory is no estimate."""
    return profile.lacking_at_worst_bytes(
        [_needed_bytes(plan, rank, requests) for rank in plan.ranks]
    )


def users_at_low_end(plan: Plan, profile: MemoryProfile, users: int) -> int:
    """Of so many that run by the best value, those that run there, too."""
    return largest(1, users, lambda n: not missing_at_low_end(plan, profile, n)) or 0


def _needed_bytes(plan: Plan, rank: RankPlan, requests: int) -> int:
    """What the engine's own check asks for one request, or the blocks of all, and those that no
    request gets (the null block)."""
    if plan.capacity is None:
        return rank.required_bytes
    reserved = plan.num_blocks - plan.capacity.usable_blocks
    blocks = plan.capacity.blocks_of(requests) if requests > 1 else 0
    held = blocks * rank.config.bytes_per_block
    return max(held, rank.required_bytes) + reserved * rank.config.bytes_per_block
