"""Ranks whose layers differ: what a slot takes on each, and the layers of a table in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kvpipe.cache.plan import KVCacheGroupSpec
from kvpipe.specs.base import KVCacheSpec

Layers = Mapping[str, KVCacheSpec]


def slot_bytes(groups: Sequence[KVCacheGroupSpec], ranks: Sequence[Layers]) -> tuple[int, ...]:
    """Bytes of one slot on each rank: of the table whose pages take most there."""
    known: dict[tuple[str, ...], int] = {}
    for layers in ranks:
        names = tuple(layers)
        if names not in known:
            known[names] = max(
                sum(g.layer_spec(n).page_size_bytes for n in g.layer_names if n in layers)
                for g in groups
            )
    return tuple(known[tuple(layers)] for layers in ranks)


def distinct_stages(ranks: Sequence[Layers]) -> tuple[Layers, ...]:
    """Ranks that differ in layers: those of one stage hold the same."""
    return tuple({tuple(layers): layers for layers in ranks if layers}.values())


def in_order(specs: Mapping[str, KVCacheSpec], stages: Sequence[Layers]) -> Layers:
    """The layers of a table as they stand in the model."""
    if len(stages) == 1:
        return {name: specs[name] for name in stages[0] if name in specs}
    return {name: specs[name] for layers in stages for name in layers if name in specs}
