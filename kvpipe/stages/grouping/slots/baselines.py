"""Plans of engines, as this plan is compared with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from kvpipe.cache.plan import KVCacheGroupSpec
from kvpipe.errors import SpecError
from kvpipe.specs.base import KVCacheSpec
from kvpipe.stages.grouping.slots.guard import Demand

Groups = Sequence[KVCacheGroupSpec]


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """How an engine groups the same layers. slot_bytes: of one block on each rank."""

    engine: str
    groups: tuple[KVCacheGroupSpec, ...]
    slot_bytes: tuple[int, ...]

    @property
    def num_tables(self) -> int:
        return len(self.groups)

    @cached_property
    def specs(self) -> tuple[KVCacheSpec, ...]:
        return tuple(group.spec for group in self.groups)

    @property
    def block_sizes(self) -> set[int]:
        """In tokens, of the tables that grow with them."""
        return {spec.block_size for spec in self.specs if not spec.is_state}

    def demand(self, rank: int) -> Demand:
        return Demand.of(self.groups, self.slot_bytes[rank])

    def holds(self, layers: Mapping[str, KVCacheSpec]) -> bool:
        """Whether each layer's page has room for what it stores. An engine that takes the first
        layer's sizes for all of a group may plan less, and no honest plan can be as small."""
        seen: set[tuple[int, int]] = set()
        for group in self.groups:
            for name in group.layer_names:
                its, own = group.layer_spec(name), layers[name]
                pair = (id(its), id(own))
                if pair not in seen and not _has_room(its, own):
                    return False
                seen.add(pair)
        return True


def _has_room(planned: KVCacheSpec, own: KVCacheSpec) -> bool:
    if own.is_state or planned.is_state:
        return planned.page_size_bytes >= own.real_page_size_bytes
    try:
        needed = own.with_block_size(planned.block_size).real_page_size_bytes
    except SpecError:
        return False
    return planned.page_size_bytes >= needed
