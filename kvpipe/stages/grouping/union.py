"""The layers of all ranks as one table: what grouping decides on, the same on every rank."""

from __future__ import annotations

from collections.abc import Sequence

from kvpipe.errors import ConfigError, Problem
from kvpipe.specs.base import CacheLayer, KVCacheSpec
from kvpipe.stages.grouping._merging import Layers
from kvpipe.stages.grouping._problems import refuse


def stored_layers(ranks: Sequence[Sequence[CacheLayer]]) -> tuple[Layers, ...]:
    """Per rank the layers that store something, with equal specs made one object."""
    one_object = _Interned().one_object
    found = []
    last: KVCacheSpec | None = None
    for rank in ranks:
        layers: Layers = {}
        for layer in rank:
            if layer.shares_with is None:
                spec = layer.spec
                if spec is last or spec == last:  # nearly all are as the one before
                    spec = last
                else:
                    last = spec = one_object(spec)
                if layer.name in layers:
                    raise _twice(layer.name, layers[layer.name], spec)
                layers[layer.name] = spec
        found.append(layers)
    return tuple(found)


class _Interned:
    """Equal specs as one object. Layers often share theirs, and nearly all are equal to one of a
    few: comparing takes half as long as hashing."""

    _FEW = 4

    def __init__(self) -> None:
        self._few: list[KVCacheSpec] = []
        self._known: dict[KVCacheSpec, KVCacheSpec] = {}
        self._by_id: dict[int, KVCacheSpec] = {}

    def one_object(self, spec: KVCacheSpec) -> KVCacheSpec:
        for other in self._few:
            if other is spec or (other.block_size == spec.block_size and other == spec):
                return other
        found = self._by_id.get(id(spec))
        if found is None:
            found = self._by_id[id(spec)] = self._known.setdefault(spec, spec)
            if found is spec and len(self._few) < self._FEW:
                self._few.append(spec)
        return found


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
    pairs = {layer.name: layer.shares_with for rank in ranks for layer in rank if layer.shares_with}
    if not pairs:
        return ()
    stored = {layer.name for rank in ranks for layer in rank if layer.shares_with is None}
    problems = [
        Problem("model.layers", f"a layer that stores a cache for {name} to share", f"'{target}'")
        for name, target in pairs.items()
        if target not in stored
    ]
    if problems:
        raise ConfigError(problems, "KeyError", "groups")
    return tuple(pairs.items())


def _twice(name: str, one: KVCacheSpec, other: KVCacheSpec) -> ConfigError:
    """On one rank, where tensor parallelism is no reason."""
    if one is not other:
        return _two_specs(name, one, other)
    wanted, knob = "each layer of a rank once", "a layer name belongs to one layer"
    return refuse("model.layers", wanted, f"{name} twice", knob, reference="AssertionError")


def _two_specs(name: str, one: KVCacheSpec, other: KVCacheSpec) -> ConfigError:
    problem = one.merge_problem(other) or "different specs"
    return refuse(
        "model.layers",
        f"one spec for {name} on every rank",
        problem,
        "a layer name belongs to one layer",
        reference="AssertionError",
    )
