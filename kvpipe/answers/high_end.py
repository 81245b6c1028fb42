"""What a load gets where the memory is an estimate and turns out to be the most of its range."""

from __future__ import annotations

from dataclasses import replace

from kvpipe.cache.plan import Capacity, Plan
from kvpipe.stages.profiling.base import MemoryProfile


def most_memory(profile: MemoryProfile) -> tuple[int, ...]:
    """Bytes of the cache, one entry a rank, at the high end of the estimate; () where there is
    none. Of a size set by hand, that size where its card has it once all beside it is as small as
    it may be."""
    if memory := profile.most_kv_bytes:
        return memory
    is_over = any(rank.overcommitted_bytes for rank in profile.ranks)
    is_room = not any(rank.over_at_best_bytes for rank in profile.ranks)
    return profile.available_kv_bytes if is_over and is_room else ()


def capacity_at_high_end(plan: Plan, profile: MemoryProfile) -> Capacity | None:
    """The plan's, in as many blocks as the most memory has; None where there is no more of it, or
    nothing is stored. Of the capacity's figures those alone that follow from blocks."""
    memory, cap = most_memory(profile), plan.capacity
    if not memory or cap is None:
        return None
    pairs = zip(plan.ranks, memory, strict=True)
    blocks = min(num_bytes // rank.config.bytes_per_block for rank, num_bytes in pairs)
    reserved = plan.num_blocks - cap.usable_blocks
    return replace(cap, usable_blocks=max(cap.usable_blocks, blocks - reserved))
