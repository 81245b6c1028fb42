"""What of the prompts was cached: in all, of the trace's own prefix blocks, and by cache group.

A hit is what all groups can serve. Where they differ, one of them limits it: a window's blocks are
gone, or a state was kept at few places. Only a request's first admission counts: what a preempted
one finds is its own, most likely.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from kvpipe.blocks import BlockManager, GroupHit
from kvpipe.simulation.counts import Counts
from kvpipe.simulation.traffic import Traffic


@dataclass(frozen=True, kw_only=True)
class GroupHits:
    """Of one cache group, tokens of prompts: asked; hit, as far as the group could have served them
    by itself; cut, what its misses took from the longest that any group had (of cut_requests)."""

    kind: str
    layers: int
    block_tokens: int
    asked_tokens: int = 0
    hit_tokens: int = 0
    cut_tokens: int = 0
    cut_requests: int = 0

    def with_one(self, asked: int, hit: GroupHit) -> GroupHits:
        return replace(
            self,
            asked_tokens=self.asked_tokens + asked,
            hit_tokens=self.hit_tokens + hit.alone,
            cut_tokens=self.cut_tokens + hit.cut,
            cut_requests=self.cut_requests + (hit.cut > 0),
        )


@dataclass
class Hits:
    """Of one server. by_group: () where prefixes are not cached."""

    manager: BlockManager
    counts: Counts
    by_group: tuple[GroupHits, ...] = field(init=False)

    def __post_init__(self) -> None:
        tables = self.manager.tables if self.manager.prefix_caching else ()
        groups = zip(tables, self.manager.config.groups, strict=False)
        self.by_group = tuple(
            GroupHits(kind=table.spec.kind, layers=len(group.layer_names), block_tokens=table.span)
            for table, group in groups
        )

    def found(self, item: Traffic, hit: int) -> Sequence[GroupHit]:
        """By group, of a request that was just added and has so many tokens cached."""
        if item.preempted or not self.by_group:
            return ()
        if len(self.by_group) == 1:
            return (GroupHit(alone=hit, cut=0),)
        return self.manager.prefix_hits(item.number)

    def note(self, item: Traffic, hit: int, found: Sequence[GroupHit]) -> None:
        """The request is admitted."""
        if item.preempted:
            return
        request, counts = item.request, self.counts
        counts.prompt_tokens += request.prompt_tokens
        counts.hit_tokens += hit
        # A prefix block that no whole number of cache blocks makes up cannot be counted as cached.
        if request.prefix_ids and request.prefix_block % self.manager.granule == 0:
            counts.prefix_blocks += len(request.prefix_ids)
            counts.hit_prefix_blocks += hit // request.prefix_block
        pairs = zip(self.by_group, found, strict=True)
        self.by_group = tuple(group.with_one(request.prompt_tokens, one) for group, one in pairs)


def summed(parts: Sequence[tuple[GroupHits, ...]]) -> tuple[GroupHits, ...]:
    """Of several servers of one plan."""
    return tuple(
        replace(
            of_one[0],
            asked_tokens=sum(each.asked_tokens for each in of_one),
            hit_tokens=sum(each.hit_tokens for each in of_one),
            cut_tokens=sum(each.cut_tokens for each in of_one),
            cut_requests=sum(each.cut_requests for each in of_one),
        )
        for of_one in zip(*parts, strict=True)
    )
