"""The cheapest plan so far, and the plans that it is compared with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from kvpipe.cache.plan import KVCacheGroupSpec
from kvpipe.stages.grouping.slots.baselines import Baseline
from kvpipe.stages.grouping.slots.weights import ONE

NEAR = ONE * 3 // 1000  # costs that differ by less are as good


@dataclass
class Best:
    """The cheapest plan so far that is no worse. bound: none costs less."""

    cost: int | None = None
    groups: tuple[KVCacheGroupSpec, ...] | None = None
    bound: int = 0

    @property
    def is_near(self) -> bool:
        """Whether no other can be much cheaper."""
        return self.cost is not None and self.cost - self.bound <= NEAR


def distinct(baselines: Sequence[Baseline]) -> list[Baseline]:
    """Those that differ in what a request takes."""
    seen = {(frozenset(Counter(b.specs).items()), b.slot_bytes): b for b in baselines}
    return list(seen.values())
