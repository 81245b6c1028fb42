"""Plan and accounts -> notes that follow from the numbers alone.

Stages add their own notes where they decide something (blocks that a richer rank cannot use, a
length that no request can have); these need the finished plan and the accounts. What a change of
settings would mend is in answers/plan_hints.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from kvpipe.cache.plan import Capacity, KVCacheGroupSpec, Plan
from kvpipe.notes import Note
from kvpipe.report.accounts import KV_CAUSES, RankAccount
from kvpipe.report.run_input import ReportInput
from kvpipe.specs.base import RequestLimits
from kvpipe.stages.grouping.scratch import stepped
from kvpipe.text.figures import count, percent, size

MUCH_PADDING = 0.10  # share of the pool


def all_notes(report: ReportInput) -> tuple[Note, ...]:
    """What the stages noted, and what follows from the numbers; no repeats."""
    return tuple(dict.fromkeys((*report.notes, *advice(report.plan, report.accounts))))


def advice(plan: Plan, accounts: Iterable[RankAccount]) -> Iterator[Note]:
    if plan.capacity is not None:
        yield from _length(plan, plan.capacity)
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
        if scratch := plan.ranks[0].config.scratch:
            blocks = stepped([group.spec for group in plan.groups], scratch, limits).total
        num_bytes = blocks * plan.ranks[0].config.bytes_per_block
        yield Note(
            text=f"max_model_len was lowered from {wanted:,} to {planned:,} tokens: one request of "
            f"{wanted:,} needs {count(blocks, 'block')} ({size(num_bytes)}) at its peak, "
            f"{cap.usable_blocks:,} can be given out",
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


def _different(accounts: Iterable[RankAccount]) -> Iterator[RankAccount]:
    """The first of the accounts that are alike: 8 equal ranks need one warning."""
    seen = set()
    for account in accounts:
        key = (account.total_bytes, *account.steady.values())
        if key not in seen:
            seen.add(key)
            yield account
