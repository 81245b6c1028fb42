"""The spec of a group whose layers share one block table although their pages differ in size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

from typing_extensions import Self

from kvpipe.errors import SpecError
from kvpipe.specs.base import KVCacheSpec, PageArray, RequestLimits, SpecContext
from kvpipe.specs.rhythm import CONSTANT, Rhythm
from kvpipe.specs.runs import Runs, num_indices


@dataclass(frozen=True, kw_only=True)
class UniformTypeKVCacheSpecs(KVCacheSpec):
    """layers: (name, spec) pairs, all of one type (`same_type`). The page of the group is the sum
    of its layers' pages; a request takes as many as its hungriest layer. Never a config word."""

    kind: ClassVar[str] = "uniform"
    sums_pages: ClassVar[bool] = True

    layers: tuple[tuple[str, KVCacheSpec], ...]

    @classmethod
    def from_geometry(cls, geometry: Mapping[str, Any], context: SpecContext) -> Self:
        raise SpecError("uniform is what grouping makes of several layers, not what a layer stores")

    @cached_property
    def by_layer(self) -> dict[str, KVCacheSpec]:
        return dict(self.layers)

    @cached_property
    def distinct(self) -> tuple[KVCacheSpec, ...]:
        return tuple(dict.fromkeys(spec for _, spec in self.layers))

    def of_layer(self, name: str) -> KVCacheSpec:
        return self.by_layer[name]

    def for_layers(self, names: Sequence[str]) -> KVCacheSpec:
        """Only those layers; a rank without any keeps the whole spec, and its page."""
        kept = tuple((name, self.by_layer[name]) for name in names)
        if len(kept) in (0, len(self.layers)):
            return self
        return replace(self, layers=kept)

    def with_block_size(self, block_size: int) -> Self:
        turned = {spec: spec.with_block_size(block_size) for spec in self.distinct}
        layers = tuple((name, turned[spec]) for name, spec in self.layers)
        return replace(self, block_size=block_size, layers=layers)

    def stored_layers(self, names: Sequence[str]) -> Sequence[str]:
        return [name for name, _ in self.layers]

    def visible(self, query: int, limits: RequestLimits) -> Runs:
        """Layers of one type read the same positions."""
        return self.layers[0][1].visible(query, limits) if self.layers else ()

    @property
    def frees_tokens(self) -> bool:
        return any(spec.frees_tokens for spec in self.distinct)

    def page_arrays(self) -> tuple[PageArray, ...]:
        return tuple(array for _, spec in self.layers for array in spec.page_arrays())

    @cached_property
    def real_page_size_bytes(self) -> int:
        return sum(spec.real_page_size_bytes for _, spec in self.layers)

    @cached_property
    def page_size_bytes(self) -> int:
        return sum(spec.page_size_bytes for _, spec in self.layers)

    def max_blocks(self, limits: RequestLimits) -> int:
        return max((spec.max_blocks(limits) for spec in self.distinct), default=0)

    def peak_blocks(self, limits: RequestLimits) -> int:
        return max((spec.peak_blocks(limits) for spec in self.distinct), default=0)

    def steady_blocks(self, num_tokens: int, limits: RequestLimits) -> int:
        return max((spec.steady_blocks(num_tokens, limits) for spec in self.distinct), default=0)

    def steady_cost(self, limits: RequestLimits) -> tuple[int, float]:
        costs = [spec.steady_cost(limits) for spec in self.distinct]
        return max((a for a, _ in costs), default=0), max((b for _, b in costs), default=0.0)

    def rhythm(self, limits: RequestLimits, in_flight: bool) -> Rhythm | None:
        """Layers of one type hold equally many blocks."""
        return self.layers[0][1].rhythm(limits, in_flight) if self.layers else CONSTANT

    def resident(self, computed: int, new: int, limits: RequestLimits) -> Runs:
        held = (spec.resident(computed, new, limits) for spec in self.distinct)
        return max(held, key=num_indices, default=())

    def written(self, computed: int, new: int, limits: RequestLimits) -> range:
        """Layers of one type fill the same positions."""
        return self.layers[0][1].written(computed, new, limits) if self.layers else range(0)

    def tokens_per_block(self, limits: RequestLimits) -> int:
        return self.layers[0][1].tokens_per_block(limits) if self.layers else self.block_size

    def hit_length(self, cached: Sequence[bool]) -> int:
        return min((spec.hit_length(cached) for spec in self.distinct), default=0)
