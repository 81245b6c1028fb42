"""Hybrid manager off: windowed layers keep every token, to share the full layers' table."""

from __future__ import annotations

from dataclasses import replace

from kvpipe.engines.base import EngineRules
from kvpipe.errors import SpecError
from kvpipe.specs.base import KVCacheSpec
from kvpipe.stages.grouping._merging import Layers, distinct
from kvpipe.stages.grouping._problems import HYBRID, refuse


def promoted(layers: Layers, rules: EngineRules) -> Layers:
    """The layers with every window promoted where a full layer of the same context parallelism
    (sharded or replicated) stands beside it; unchanged where none does."""
    specs = distinct(layers.values())
    turned: dict[int, KVCacheSpec] = {}
    for replicated in (False, True):
        peers = [spec for spec in specs if spec.is_replicated is replicated]
        full = [spec for spec in peers if spec.keeps_every_token]
        if full:
            sizes = {spec.block_size for spec in full}
            size = sizes.pop() if len(sizes) == 1 and rules.promotion_takes_block_size else None
            turned |= {id(spec): _promote(spec, size) for spec in peers}
    result = {name: turned.get(id(spec), spec) for name, spec in layers.items()}
    known: dict[KVCacheSpec, KVCacheSpec] = {}
    one = {id(spec): known.setdefault(spec, spec) for spec in distinct(result.values())}
    return {name: one[id(spec)] for name, spec in result.items()}


def _promote(spec: KVCacheSpec, block_size: int | None) -> KVCacheSpec:
    try:
        full = spec.promoted()
    except SpecError as error:
        raise refuse(
            HYBRID,
            "false for this model",
            f"true, but {error}",
            reference="TypeError",
        ) from error
    if full is spec or block_size in (None, full.block_size):
        return full
    assert block_size is not None
    bare = full.with_block_size(block_size)
    if full.page_size_padded is None:
        return bare
    return replace(bare, page_size_padded=max(full.page_size_padded, bare.page_size_bytes))
