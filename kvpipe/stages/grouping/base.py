"""The contract of spec grouping: CacheLayers of every rank, limits, memory -> Plan.

The Plan and its parts are values that later stages read too: they stand in `kvpipe/cache/plan.py`.
Sizes in bytes, lengths in tokens. Everything is frozen and free of torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from kvpipe.cache.plan import Plan
from kvpipe.engines.base import EngineRules
from kvpipe.specs.base import CacheLayer, RequestLimits
from kvpipe.stages.grouping.axes import own_axes
from kvpipe.stages.grouping.slots.options import SlotOptions


@runtime_checkable
class Grouping(Protocol):
    """A stage plugin also has `Options` and takes them in its constructor."""

    def run(self, request: GroupingRequest) -> Plan:
        """DoesNotFit, with the bytes that are missing, where the memory is too small."""
        ...


@dataclass(frozen=True, kw_only=True)
class GroupingRequest:
    """Everything grouping decides from.

    ranks: the CacheLayers of each rank, in order of appearance. memory: bytes for the cache of each
    rank. fit: limits.max_model_len may be lowered to the longest that fits. kv_cache_layout: order
    of the axes of one backing allocation, for engines that make one (None: their own).
    max_num_seqs: requests that the scheduler may run at once, for notes only.
    compared: engines whose capacity lines stand beside the plan's own.
    slots: what the user says about equal slots. may_place_slots: whether the placement lets blocks
    be outermost. block_quantum: tokens that every block is a multiple of, where layers' own blocks
    were grown to hold a state (None: each layer's own block). shares_prefixes: the prefix cache is
    on. scratch: prefill chunks keep in scratch what does not survive them (engine kvpipe).
    takes_scratch: the binding's layers can. kernel_sizes: tokens of a block that attention kernels
    read whole ((): any).
    """

    ranks: tuple[tuple[CacheLayer, ...], ...]
    limits: RequestLimits
    memory: tuple[int, ...]
    rules: EngineRules
    fit: bool = False
    disable_hybrid_kv_cache_manager: bool = False
    num_gpu_blocks_override: int | None = None
    kv_cache_layout: str | None = None
    max_num_seqs: int | None = None
    compared: tuple[EngineRules, ...] = ()
    slots: SlotOptions = SlotOptions()
    may_place_slots: bool = True
    block_quantum: int | None = None
    shares_prefixes: bool = True
    kernel_sizes: tuple[int, ...] = ()
    scratch: bool = False
    takes_scratch: bool = False

    def axes(self, rules: EngineRules) -> str:
        """As asked, or what an engine with these rules takes by itself."""
        return self.kv_cache_layout or own_axes(
            {layer.spec for rank in self.ranks for layer in rank}, rules
        )
