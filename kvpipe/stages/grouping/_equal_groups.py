"""Groups with equally many layers: a block of any group then takes the same bytes of the pool."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvpipe.cache.plan import KVCacheGroupSpec, Padding
from kvpipe.engines.base import EngineRules
from kvpipe.specs.base import KVCacheSpec, cdiv
from kvpipe.specs.bounds import WindowConflict
from kvpipe.stages.grouping._merging import Layers, distinct, merged


@dataclass
class _Bucket:
    """Layers that may share a group: distinct specs, and the layers in order of appearance."""

    specs: list[KVCacheSpec]
    names: list[str] = field(default_factory=list)


def equal_groups(
    layers: Layers, rules: EngineRules
) -> tuple[tuple[KVCacheGroupSpec, ...], tuple[Padding, ...]]:
    """Each bucket of n layers becomes ceil(n / size) groups; what the last ones lack is padding.

    Group i of k takes layers i, i + k, i + 2k, ...: so each pipeline stage has some of every group.
    """
    buckets = _buckets(layers, rules)
    counts = [len(bucket.names) for bucket in buckets]
    size = rules.layers_per_group or group_size(counts, rules.padding_threshold)
    groups, padding = [], []
    for bucket in buckets:
        n = len(bucket.names)
        k = cdiv(n, size)
        for i in range(k):
            names = tuple(bucket.names[i::k])
            spec = merged(distinct(layers[name] for name in names), rules)
            assert spec is not None, "layers of one bucket merge"
            groups.append(KVCacheGroupSpec(layer_names=names, spec=spec))
        if missing := k * size - n:
            padding.append(Padding(num_layers=missing, percent=missing / n * 100))
    return tuple(groups), tuple(padding)


def group_size(counts: list[int], threshold: float) -> int:
    """Layers of a group: the smallest bucket, or the largest if it is little larger."""
    return max(counts) if max(counts) < min(counts) * threshold else min(counts)


def _buckets(layers: Layers, rules: EngineRules) -> list[_Bucket]:
    buckets: list[_Bucket] = []
    home: dict[int, _Bucket] = {}
    for name, spec in layers.items():
        bucket = home.get(id(spec))
        if bucket is None:
            bucket = home[id(spec)] = _find_bucket(spec, buckets, rules)
        bucket.names.append(name)
    return buckets


def _find_bucket(spec: KVCacheSpec, buckets: list[_Bucket], rules: EngineRules) -> _Bucket:
    """The first bucket that `spec` merges with, or a new one."""
    for bucket in buckets if rules.bucket_by == "merge" else ():
        try:
            if merged([*bucket.specs, spec], rules) is not None:
                bucket.specs.append(spec)
                return bucket
        except WindowConflict:
            continue
    buckets.append(_Bucket([spec]))
    return buckets[-1]
