"""Plan and accounts -> notes that follow from the numbers alone, each with its knob.

Stages add their own notes where they decide something (blocks that a richer rank cannot use, a
length that no request can have); these need the finished plan and the accounts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from kvpipe.cache.plan import Capacity, KVCacheGroupSpec, Plan
from kvpipe.notes import Note
from kvpipe.report.accounts import KV_CAUSES, RankAccount
from kvpipe.report.run_input import ReportInput
from kvpipe.specs.base import RequestLimits, cdiv
from kvpipe.text.figures import count, percent, size

MANY_TIMES = 2.0  # peak over steady state from which on the peak is worth a warning
MUCH_PADDING = 0.10  # share of the pool


def all_notes(report: ReportInput) -> tuple[Note, ...]:
    """What the stages noted, what the plan noted, and what follows from the numbers; no repeats."""
    derived = advice(report.plan, report.accounts)
    return tuple(dict.fromkeys((*report.notes, *report.plan.notes, *derived)))


def advice(plan: Plan, accounts: Iterable[RankAccount]) -> Iterator[Note]:
    if plan.capacity is not None:
        yield from _length(plan, plan.capacity)
        yield from _peak(plan, plan.capacity)
    for account in _different(accounts):
        yield from _account(account)


def blocks_at(group: KVCacheGroupSpec, limits: RequestLimits) -> int:
    """Blocks one request may hold of a group, whether or not it has layers on this rank."""
    specs = {group.layer_spec(name) for name in group.layer_names} or {group.spec}
    return max(spec.max_blocks(limits) for spec in specs)


def _length(plan: Plan, cap: Capacity) -> Iterator[Note]:
    """A length that was lowered to what fits."""
    planned, wanted = plan.limits.max_model_len, plan.requested_len
    if wanted > planned:
        limits = plan.limits.with_length(wanted)
        blocks = sum(blocks_at(group, limits) for group in plan.groups)
        num_bytes = blocks * plan.ranks[0].config.bytes_per_block
        yield Note(
            text=f"max_model_len was lowered from {wanted:,} to {planned:,} tokens: one request of "
            f"{wanted:,} needs {count(blocks, 'block')} ({size(num_bytes)}) at its peak, "
            f"{cap.usable_blocks:,} can be given out",
            is_warning=True,
        )


def _peak(plan: Plan, cap: Capacity) -> Iterator[Note]:
    """Prompt tokens in flight that cost more than what stays, or more than no window would.

    A window that starts inside a block takes one block more than full attention at lengths below
    window + tokens in flight. That is worth a line only where it cost length.
    """
    in_flight = plan.limits.max_num_batched_tokens
    length = cdiv(cap.request_len, plan.limits.dcp * plan.limits.pcp)
    lowered = plan.requested_len > plan.limits.max_model_len
    for index, (group, demand) in enumerate(zip(plan.groups, cap.demands, strict=True)):
        everything = cdiv(length, group.spec.block_size)
        if lowered and everything < demand.peak_blocks:
            yield Note(
                text=f"group {index} ({demand.kind}) holds less than full attention would: at "
                f"{cap.request_len:,} tokens its peak is {count(demand.peak_blocks, 'block')}, "
                f"full attention's {everything:,}, as {in_flight:,} prompt tokens are in flight",
                knob="lower scheduler.max_num_batched_tokens",
                is_warning=True,
            )
    if cap.steady_bytes and cap.peak_bytes >= MANY_TIMES * cap.steady_bytes:
        yield Note(
            text=f"a request holds {cap.peak_bytes / cap.steady_bytes:.2f} times its steady bytes "
            f"while its prompt is read ({in_flight:,} tokens in flight)",
            knob="lower scheduler.max_num_batched_tokens",
            is_warning=True,
        )


def _account(account: RankAccount) -> Iterator[Note]:
    pool = sum(account.steady[cause] for cause in KV_CAUSES)
    padding = account.steady["padding_layers"]
    if padding > MUCH_PADDING * pool:
        yield Note(
            text=f"rank {account.rank}: {size(padding)} ({percent(padding, pool)}) of the cache is "
            "padding layers: the kinds of layers do not fill groups of one size",
            is_warning=True,
        )
    if account.overcommitted_bytes:
        yield Note(
            text=f"rank {account.rank}: this plan takes {size(account.overcommitted_bytes)} more "
            "than the device has",
            knob="lower cache.kv_cache_memory_bytes or cache.num_gpu_blocks_override",
            is_warning=True,
        )


def _different(accounts: Iterable[RankAccount]) -> Iterator[RankAccount]:
    """The first of the accounts that are alike: 8 equal ranks need one warning."""
    seen = set()
    for account in accounts:
        key = (account.total_bytes, *account.steady.values())
        if key not in seen:
            seen.add(key)
            yield account
