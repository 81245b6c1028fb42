"""Packed groups: where a block is outermost in memory, its pages may differ in size.

Layers of one type form a bucket; a bucket is split into groups of about equal bytes. Every group is
a uniform one, even when its layers are equal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from kvpipe.cache.plan import KVCacheGroupSpec
from kvpipe.engines.base import EngineRules
from kvpipe.specs.base import cdiv
from kvpipe.stages.grouping._merging import Layers, joins, uniform
from kvpipe.stages.grouping._problems import refuse


@dataclass
class _SizedBucket:
    """Layers of one type. by_size: names by page size, sizes in order of appearance."""

    layers: Layers = field(default_factory=dict)
    by_size: dict[int, list[str]] = field(default_factory=dict)

    def add(self, name: str, layers: Layers) -> None:
        self.layers[name] = layers[name]
        self.by_size.setdefault(layers[name].page_size_bytes, []).append(name)

    @property
    def counts(self) -> Counter[int]:
        return Counter(len(names) for names in self.by_size.values())

    @property
    def count(self) -> int | None:
        """How often every page size occurs; None if not all equally often."""
        return next(iter(self.counts)) if len(self.counts) == 1 else None

    @property
    def mixes_sizes(self) -> bool:
        return len(self.by_size) > 1

    def groups(self, k: int) -> list[Layers]:
        """k groups; group i takes the repeats (one layer of each size) i, i + k, ... whole. An
        unbalanced bucket has no repeats, and is one group."""
        if self.count is None:
            return [self.layers]
        repeats = list(zip(*self.by_size.values(), strict=True))
        return [
            {name: self.layers[name] for repeat in repeats[i::k] for name in repeat}
            for i in range(k)
        ]


def packed_groups(layers: Layers, rules: EngineRules) -> tuple[KVCacheGroupSpec, ...]:
    """All groups, bucket by bucket in order of appearance."""
    buckets = _sized_buckets(layers, rules)
    repeats = _repeats_per_group(buckets)
    splits = [cdiv(b.count, repeats) if repeats and b.count else 1 for b in buckets]
    states = [_splits_further(b, bool(repeats)) for b in buckets]
    anchor = max(
        _one_of_each(b) if state else _widest(b, k)
        for b, k, state in zip(buckets, splits, states, strict=True)
    )
    groups = []
    for bucket, k, state in zip(buckets, splits, states, strict=True):
        if state:
            k = max(k, _state_splits(bucket, anchor))
        groups += bucket.groups(k)
    return tuple(
        KVCacheGroupSpec(layer_names=tuple(group), spec=uniform(group)) for group in groups
    )


def _sized_buckets(layers: Layers, rules: EngineRules) -> list[_SizedBucket]:
    buckets: list[_SizedBucket] = []
    home: dict[int, _SizedBucket] = {}
    for name, spec in layers.items():
        if id(spec) not in home:
            firsts = ((next(iter(b.layers.values())), b) for b in buckets)
            found = next((b for first, b in firsts if joins(first, spec, rules)), None)
            if found is None:
                buckets.append(found := _SizedBucket())
            home[id(spec)] = found
        home[id(spec)].add(name, layers)
    return buckets


def _repeats_per_group(buckets: Sequence[_SizedBucket]) -> int | None:
    """d: repeats a group, so that rounding every balanced bucket up to multiples of it adds least
    (ties: the larger); None if no balanced bucket mixes page sizes."""
    balanced = [bucket.count for bucket in buckets if bucket.count]
    mixing = [bucket.count for bucket in buckets if bucket.count and bucket.mixes_sizes]
    if not mixing:
        return None

    def added(d: int) -> int:
        return sum(-count % d for count in balanced)

    return min(range(max(mixing), max(balanced) + 1), key=lambda d: (added(d), -d))


def _splits_further(bucket: _SizedBucket, repeats_are_set: bool) -> bool:
    """States always; windows, which hold few blocks too, where no repeats are set."""
    first = next(iter(bucket.layers.values()))
    return first.is_state or (not repeats_are_set and first.splits_like_states)


def _one_of_each(bucket: _SizedBucket) -> int:
    return sum(bucket.by_size)


def _widest(bucket: _SizedBucket, k: int) -> int:
    """Bytes of the widest of k groups of this bucket."""
    return max(sum(spec.page_size_bytes for spec in group.values()) for group in bucket.groups(k))


def _state_splits(bucket: _SizedBucket, anchor: int) -> int:
    """Groups of about the anchor's bytes."""
    first = next(iter(bucket.layers.values()))
    k = cdiv(len(bucket.layers), max(1, anchor // first.page_size_bytes))
    if k > 1 and bucket.count is None:
        raise refuse(
            "engine.name",
            "a layout that does not pack, or as many layers of every page size",
            f"{first.kind} layers of {len(bucket.by_size)} page sizes, unequally often",
            "set engine=kvpipe",
            reference="AssertionError",
        )
    return k
