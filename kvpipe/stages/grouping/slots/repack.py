"""Another plan's groups and slot, and in each group as many tokens as fill the slot.

Never worse than that plan, whatever the lengths and the schedule: a larger block size that is a
multiple of the smaller one has in each of its blocks that a range of tokens touches a smaller
block that the range touches, too, and no two share one. So it holds no more blocks, of the same
bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from kvpipe.cache.plan import KVCacheGroupSpec
from kvpipe.specs.base import KVCacheSpec
from kvpipe.specs.uniform import UniformTypeKVCacheSpecs
from kvpipe.stages.grouping.slots.baselines import Baseline
from kvpipe.stages.grouping.slots.kinds import Blocks

Layers = Mapping[str, KVCacheSpec]


def repacked(
    base: Baseline, ranks: Sequence[Layers], blocks: Blocks, sizes: frozenset[int] | None
) -> tuple[KVCacheGroupSpec, ...]:
    """sizes: tokens that a block may have (None: any), beside its own."""
    return tuple(_fuller(group, base, ranks, blocks, sizes) for group in base.groups)


def _fuller(
    group: KVCacheGroupSpec,
    base: Baseline,
    ranks: Sequence[Layers],
    blocks: Blocks,
    sizes: frozenset[int] | None,
) -> KVCacheGroupSpec:
    own = group.spec.block_size
    if any(_is_fixed(name, ranks, blocks) for name in group.layer_names):
        return group
    bare = replace(blocks, quantum=own, largest=0)  # without the engine's padding
    turned = {spec: bare.of(spec) for spec in map(group.layer_spec, group.layer_names)}
    shared = set.intersection(*map(set, turned.values())) if turned else set[int]()
    for tokens in sorted(shared, reverse=True):
        if tokens > own and (sizes is None or tokens in sizes):
            specs = {name: turned[group.layer_spec(name)][tokens] for name in group.layer_names}
            if _fits(specs, base, ranks):
                return of_specs(specs)
    return group


def _is_fixed(name: str, ranks: Sequence[Layers], blocks: Blocks) -> bool:
    """A state, or a page that somebody padded by hand."""
    own = next(layers[name] for layers in ranks if name in layers)
    return len(blocks.of(own)) == 1


def _fits(specs: Layers, base: Baseline, ranks: Sequence[Layers]) -> bool:
    return all(
        sum(spec.page_size_bytes for name, spec in specs.items() if name in layers) <= slot
        for layers, slot in zip(ranks, base.slot_bytes, strict=True)
    )


def of_specs(specs: Layers) -> KVCacheGroupSpec:
    """The group of these layers: one spec, or one a layer where they differ."""
    distinct = {id(spec): spec for spec in specs.values()}
    if len(set(distinct.values())) == 1:
        return KVCacheGroupSpec(layer_names=tuple(specs), spec=next(iter(distinct.values())))
    first = next(iter(specs.values()))
    spec = UniformTypeKVCacheSpecs(block_size=first.block_size, layers=tuple(specs.items()))
    return KVCacheGroupSpec(layer_names=tuple(specs), spec=spec)
