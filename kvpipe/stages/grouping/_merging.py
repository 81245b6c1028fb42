"""When layers are one: the same spec everywhere, or at least the same type.

A `Layers` maps names to specs in order of appearance; equal specs are one object (see `_union`), so
that a thousand layers cost what their few distinct specs cost.
"""

from __future__ import annotations

from collections.abc import Iterable

from kvpipe.engines.base import EngineRules
from kvpipe.errors import SpecError
from kvpipe.specs.base import KVCacheSpec
from kvpipe.specs.bounds import WindowConflict
from kvpipe.specs.uniform import UniformTypeKVCacheSpecs
from kvpipe.stages.grouping._problems import HYBRID, refuse

Layers = dict[str, KVCacheSpec]


def distinct(specs: Iterable[KVCacheSpec]) -> list[KVCacheSpec]:
    """The specs that occur, in order of appearance. Equal specs are one object: compared by it."""
    each = list(specs)
    if len(set(map(id, each))) == 1:
        return each[:1]
    return list(dict(zip(map(id, each), each, strict=True)).values())


def merged(specs: list[KVCacheSpec], rules: EngineRules) -> KVCacheSpec | None:
    """The spec that all distinct `specs` share; None if they do not merge."""
    first, *others = specs
    if not others:
        return first
    try:
        return first.merge(others, rules.ignored(first.stores))
    except WindowConflict:
        raise
    except SpecError:
        return None


def merged_everywhere(layers: Layers, rules: EngineRules) -> KVCacheSpec | None:
    """The spec of the one group of all layers, if there is one."""
    try:
        return merged(distinct(layers.values()), rules)
    except WindowConflict as error:
        if rules.window_conflict == "no_merge":
            return None
        raise refuse(
            "engine.name",
            "one window among the full-attention layers that remember one",
            str(error),
            f"{HYBRID}=false keeps them apart" if len(layers) else "",
            reference="ValueError",
        ) from error


def joins(first: KVCacheSpec, other: KVCacheSpec, rules: EngineRules) -> bool:
    """Whether `other` is of the type of `first`, so that one block table may serve both."""
    if other.block_size != first.block_size or not first.same_type(other):
        return False
    if first.is_state and rules.states_of_one_type == "equal_pages":
        return other.page_size_bytes == first.page_size_bytes
    return True


def uniform(layers: Layers) -> UniformTypeKVCacheSpecs:
    """Layers of one type as one spec: its page is the sum of theirs."""
    block_size = next(iter(layers.values())).block_size
    return UniformTypeKVCacheSpecs(block_size=block_size, layers=tuple(layers.items()))


def same_type(layers: Layers, rules: EngineRules) -> UniformTypeKVCacheSpecs | None:
    """The uniform spec of all layers, if they are of one type."""
    specs = distinct(layers.values())
    first = specs[0]
    if any(spec.block_size != first.block_size for spec in specs):
        return None
    if not first.holds_blocks and rules.encoder_only == "first_refused":
        raise refuse(
            "engine.name",
            f"an engine that plans encoder-only layers of several sizes ({rules.name} does not)",
            f"{next(iter(layers))} first",
            "set engine=kvpipe",
            reference="NotImplementedError",
        )
    if all(joins(first, other, rules) for other in specs):
        return uniform(layers)
    return None


def one_group(layers: Layers, rules: EngineRules) -> KVCacheSpec | None:
    """The spec of a single group for all layers: merged, or else of one type."""
    return merged_everywhere(layers, rules) or same_type(layers, rules)
