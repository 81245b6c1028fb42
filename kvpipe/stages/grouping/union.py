"""The layers of all ranks as one table: what grouping decides on, the same on every rank."""

from __future__ import annotations

from collections.abc import Sequence

from kvpipe.errors import ConfigError, Problem
from kvpipe.specs.base import CacheLayer, KVCacheSpec
from kvpipe.stages.grouping._merging import Layers
from kvpipe.stages.grouping._problems import refuse


def stored_layers(ranks: Sequence[Sequence[CacheLayer]]) -> tuple[Layers, ...]:
    """Per rank the layers that store something, with equal specs made one object."""
    known: dict[KVCacheSpec, KVCacheSpec] = {}
    by_id: dict[int, KVCacheSpec] = {}  # hashing a spec is slow, and layers often share it

    def one_object(spec: KVCacheSpec) -> KVCacheSpec:
        if id(spec) not in by_id:
            by_id[id(spec)] = known.setdefault(spec, spec)
        return by_id[id(spec)]

    found = []
    for rank in ranks:
        layers: Layers = {}
        for layer in rank:
            if layer.shares_with is None:
                spec = one_object(layer.spec)
                if layers.setdefault(layer.name, spec) is not spec:
                    raise _two_specs(layer.name, layers[layer.name], spec)
        found.append(layers)
    return tuple(found)


def union(ranks: Sequence[Layers]) -> Layers:
    """All layers in order of appearance; tensor-parallel ranks repeat a layer and its spec."""
    merged = dict(ranks[0])
    for rank in ranks[1:]:
        for name, spec in rank.items():
            if merged.setdefault(name, spec) is not spec:
                raise _two_specs(name, merged[name], spec)
    return merged


def shared_layers(ranks: Sequence[Sequence[CacheLayer]]) -> tuple[tuple[str, str], ...]:
    """(layer, target) of the layers that read another's cache; the target must store one."""
    stored = {layer.name for rank in ranks for layer in rank if layer.shares_with is None}
    pairs = {layer.name: layer.shares_with for rank in ranks for layer in rank if layer.shares_with}
    problems = [
        Problem("model.layers", f"a layer that stores a cache for {name} to share", f"'{target}'")
        for name, target in pairs.items()
        if target not in stored
    ]
    if problems:
        raise ConfigError(problems, "KeyError", "groups")
    return tuple(pairs.items())


def _two_specs(name: str, one: KVCacheSpec, other: KVCacheSpec) -> ConfigError:
    problem = one.merge_problem(other) or "different specs"
    return refuse(
        "model.layers",
        f"one spec for {name} on every rank",
        problem,
        "a layer name belongs to one layer",
        reference="AssertionError",
    )
