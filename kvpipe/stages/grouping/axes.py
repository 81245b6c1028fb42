"""The order of the axes of one backing allocation that an engine takes by itself."""

from __future__ import annotations

from collections.abc import Iterable

from kvpipe.engines.base import EngineRules
from kvpipe.specs.base import KVCacheSpec


def own_axes(specs: Iterable[KVCacheSpec], rules: EngineRules) -> str:
    """Layers outermost; but engines that pack pages of many sizes into a block do so for rows that
    stand for several tokens (the backend of their indexer takes nothing else)."""
    compressed = any(array.tokens_per_row > 1 for spec in specs for array in spec.page_arrays())
    return "BLHNC" if compressed and rules.packed_groups else EngineRules.LAYOUTS[0]
