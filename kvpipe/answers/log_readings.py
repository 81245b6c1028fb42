"""Settings that a log leaves out -> readings: what the engine may have had, the likeliest first.

A reading changes as few settings as it can. Which exist is asked of the run itself: states have
modes and dtypes, encoders a budget, windows a batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import combinations, product
from typing import Any

from kvpipe.pipeline import Prepared
from kvpipe.specs.base import KVCacheSpec

MOST_CHANGES = 3  # settings supposed at once
BUDGETS = (2048, 8192, 16384)  # tokens of a step that engines choose by themselves
Change = tuple[str, Any]


@dataclass(frozen=True, kw_only=True)
class Reading:
    """changes: of settings, by key. whole: figures are of the whole model, not of one rank."""

    changes: Mapping[str, Any] = field(default_factory=dict)
    whole: bool = False

    def words(self) -> tuple[str, ...]:
        told = tuple(f"{key}={value}" for key, value in self.changes.items())
        return (*told, "figures of the whole model") if self.whole else told


def readings(prepared: Prepared, settled: frozenset[str]) -> Iterator[list[Reading]]:
    """Readings with no change, one, two, ...: each list is as likely as the next. settled: keys
    that the log or the user gives."""
    axes = list(_axes(prepared, settled))
    ranks = prepared.resolved.parallel.pp > 1
    for num in range(MOST_CHANGES + 1):
        level = []
        for chosen in combinations(axes, num):
            for values in product(*(axis[1] for axis in chosen)):
                keys = [axis[0] for axis in chosen]
                changes = dict(zip(keys, values, strict=True))
                level.append(Reading(changes=changes))
        if ranks:
            level += [Reading(changes=each.changes, whole=True) for each in level]
        yield level


def _axes(prepared: Prepared, settled: frozenset[str]) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """(key, other values it may have had)."""
    specs = [layer.spec for rank in prepared.resolved.ranks for layer in rank.layers]
    for key, values in _of_specs(specs, prepared):
        asked = _value(prepared, key)
        others = tuple(value for value in values if value != asked)
        if key not in settled and others:
            yield key, others


def _of_specs(
    specs: list[KVCacheSpec], prepared: Prepared
) -> Iterator[tuple[str, tuple[Any, ...]]]:
    has_states = any(spec.is_state for spec in specs)
    kinds = {spec.kind for spec in specs}
    if has_states:
        yield "cache.mamba_cache_mode", ("none", "align", "all")
        yield "cache.mamba_ssm_cache_dtype", ("float32", "bfloat16")
        yield "scheduler.num_speculative_tokens", (0, 1, 2, 3, 4, 5)
    if "cross" in kinds:
        budget = prepared.resolved.limits.max_num_batched_tokens
        yield "scheduler.max_encoder_tokens", tuple(dict.fromkeys((budget, *BUDGETS)))
    if kinds & {"sliding", "chunked", "sliding_mla"}:
        yield "scheduler.max_num_batched_tokens", BUDGETS
    if not has_states:
        yield "cache.block_size", (16, 32, 64, 128)
    yield "cache.cache_dtype", ("auto", "fp8")


def _value(prepared: Prepared, key: str) -> Any:
    section, _, name = key.partition(".")
    return prepared.raw[section].get(name)
