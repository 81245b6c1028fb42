"""Plan and profile -> hints: what costs memory or length here, and changes that may mend it."""

from __future__ import annotations

from collections.abc import Iterator

from kvpipe.cache.plan import Capacity, Plan, RankPlan
from kvpipe.notes import Hint, Proposal
from kvpipe.specs.base import cdiv
from kvpipe.stages.profiling.base import MemoryProfile, RankMemory
from kvpipe.text.figures import count, size

MANY_TIMES = 2.0  # peak over steady state from which on the peak is worth a warning
AS_THE_CARD_HAS = "as much as its share of the card leaves"
LEAST_BATCH = 256  # tokens


def plan_hints(plan: Plan, profile: MemoryProfile, max_num_seqs: int) -> Iterator[Hint]:
    """max_num_seqs: requests of a step, each of which takes a token of the batch."""
    if plan.capacity is not None:
        batches = _smaller_batches(plan, max_num_seqs)
        yield from _worse_than_full(plan, plan.capacity, batches)
        yield from _high_peak(plan, plan.capacity, batches)
    yield from _overcommitted(plan, profile)


def _smaller_batches(plan: Plan, max_num_seqs: int) -> tuple[Proposal, ...]:
    """Halvings of the batch, the largest first."""
    found, batch = [], plan.limits.max_num_batched_tokens // 2
    while batch >= max(LEAST_BATCH, max_num_seqs):
        found.append(Proposal(changes={"scheduler.max_num_batched_tokens": batch}))
        batch //= 2
    return tuple(found)


def _worse_than_full(plan: Plan, cap: Capacity, batches: tuple[Proposal, ...]) -> Iterator[Hint]:
    """Prompt tokens in flight that cost more than no window would.

    A window that starts inside a block takes one block more than full attention at lengths below
    window + tokens in flight. That is worth a line only where it cost length.
    """
    if plan.requested_len <= plan.limits.max_model_len:
        return
    in_flight = plan.limits.max_num_batched_tokens
    length = cdiv(cap.request_len, plan.limits.dcp * plan.limits.pcp)
    for index, (group, demand) in enumerate(zip(plan.groups, cap.demands, strict=True)):
        everything = cdiv(length, group.spec.block_size)
        if everything < demand.peak_blocks:
            yield Hint(
                about="a window that holds more than full attention",
                text=f"group {index} ({demand.kind}) holds less than full attention would: at "
                f"{cap.request_len:,} tokens its peak is {count(demand.peak_blocks, 'block')}, "
                f"full attention's {everything:,}, as {in_flight:,} prompt tokens are in flight",
                proposals=batches,
                is_warning=True,
            )


def _high_peak(plan: Plan, cap: Capacity, batches: tuple[Proposal, ...]) -> Iterator[Hint]:
    """Prompt tokens in flight that cost more than what stays."""
    if cap.steady_bytes and cap.peak_bytes >= MANY_TIMES * cap.steady_bytes:
        yield Hint(
            about="a peak far above the steady state",
            text=f"a request holds {cap.peak_bytes / cap.steady_bytes:.2f} times its steady bytes "
            f"while its prompt is read ({plan.limits.max_num_batched_tokens:,} tokens in flight)",
            proposals=batches,
            is_warning=True,
        )


def _overcommitted(plan: Plan, profile: MemoryProfile) -> Iterator[Hint]:
    """Blocks that were asked for beyond what the device has."""
    seen = set()
    for rank, memory in zip(plan.ranks, profile.ranks, strict=True):
        over = _beyond(rank, memory)
        key = (over, memory.total.num_bytes)
        if over > 0 and key not in seen:
            seen.add(key)
            yield Hint(
                about="more than the device has",
                text=f"rank {memory.rank}: this plan takes {size(over)} more than the device has",
                proposals=_within(rank, max(over, memory.over_at_worst_bytes)),
                is_warning=True,
            )


def _beyond(rank: RankPlan, memory: RankMemory) -> int:
    charged = sum(item.num_bytes for item in memory.charged)
    cache = max(rank.config.size_bytes + rank.stranded_bytes, memory.available_kv_bytes)
    return charged + cache - memory.total.num_bytes


def _within(rank: RankPlan, over: int) -> tuple[Proposal, ...]:
    """What the card has without a size by hand; else what is left where all beside it is as large
    as it may be."""
    left = max(0, rank.config.size_bytes - over)
    blocks = left // (rank.config.bytes_per_block or 1)
    size_key, blocks_key = "cache.kv_cache_memory_bytes", "cache.num_gpu_blocks_override"
    return (
        Proposal(changes={size_key: None}, words=AS_THE_CARD_HAS),
        Proposal(changes={size_key: left}),
        Proposal(changes={blocks_key: None}, words=AS_THE_CARD_HAS),
        Proposal(changes={blocks_key: blocks}),
    )
