"""What the rule is asked, and what it answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kvpipe.cache.plan import KVCacheGroupSpec, SlotFacts
from kvpipe.specs.base import KVCacheSpec, RequestLimits
from kvpipe.stages.grouping.slots.baselines import Baseline
from kvpipe.stages.grouping.slots.options import SlotOptions

Layers = Mapping[str, KVCacheSpec]


@dataclass(frozen=True, kw_only=True)
class SlotRequest:
    """ranks: the layers of each. baselines: plans of the same layers, the newest last, at least
    one. quantum: tokens that every block is a multiple of, where the layers' own blocks were grown
    to hold a state. shares_prefixes: whether the prefix cache is on. kernel_sizes: tokens of a
    block that kernels take ((): any). reads_whole: they take a block in one piece only. memory:
    bytes of each rank, in which no fewer requests may fit ((): that is not asked)."""

    ranks: Sequence[Layers]
    limits: RequestLimits
    options: SlotOptions
    baselines: tuple[Baseline, ...]
    quantum: int | None
    shares_prefixes: bool
    kernel_sizes: tuple[int, ...] = ()
    reads_whole: bool = False
    memory: tuple[int, ...] = ()

    @property
    def kernels(self) -> tuple[Sequence[Layers], tuple[int, ...]]:
        """What `are_read` asks for."""
        return self.ranks, self.kernel_sizes


@dataclass(frozen=True, kw_only=True)
class SlotGroups:
    groups: tuple[KVCacheGroupSpec, ...]
    facts: SlotFacts
