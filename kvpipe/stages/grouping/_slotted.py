"""Which of the two ways an engine groups by: groups of equal counts, or equal slots."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from kvpipe.cache.plan import KVCacheGroupSpec
from kvpipe.engines.base import EngineRules
from kvpipe.engines.vllm_0_17 import PLUGIN as VLLM_0_17
from kvpipe.engines.vllm_0_33 import PLUGIN as VLLM_0_33
from kvpipe.errors import KvpipeError, SpecError
from kvpipe.specs.base import KVCacheSpec
from kvpipe.stages.grouping._groups import Grouping, group_layers
from kvpipe.stages.grouping._merging import Layers
from kvpipe.stages.grouping.axes import own_axes
from kvpipe.stages.grouping.base import GroupingRequest
from kvpipe.stages.grouping.pool import Pool, check_pool, on_rank
from kvpipe.stages.grouping.slots.baselines import Baseline
from kvpipe.stages.grouping.slots.rule import SlotRequest, slot_groups
from kvpipe.stages.grouping.union import union


def grouped(request: GroupingRequest, layers: Sequence[Layers], rules: EngineRules) -> Grouping:
    """The groups of all layers. Equal slots where the engine groups so, layers differ, and nobody
    asked for a placement in which slots cannot lie."""
    whole, off = union(layers), request.disable_hybrid_kv_cache_manager
    own = group_layers(
        whole,
        rules,
        disable_hybrid=off or not rules.groups_by_type,
        kv_cache_layout=request.axes(rules),
    )
    if rules.groups != "slots" or off or not request.may_place_slots:
        return own
    if len(own.groups) < 2:
        frees = any(group.spec.frees_tokens for group in own.groups)
        can = frees and _are_read_whole(own.groups, request.kernel_sizes)
        return replace(own, in_slots=True) if request.scratch and can else own
    try:
        found = slot_groups(
            SlotRequest(
                ranks=layers,
                limits=rules.limits(request.limits),
                options=request.slots,
                baselines=tuple(_baselines(own, whole, layers)),
                quantum=request.block_quantum,
                shares_prefixes=request.shares_prefixes,
                kernel_sizes=request.kernel_sizes,
                memory=() if request.num_gpu_blocks_override is not None else request.memory,
            )
        )
    except SpecError:  # limits that a spec cannot work under: told where it is admitted
        return own
    as_before = _shape(found.groups) == _shape(own.groups)
    if as_before and not request.scratch:  # a tensor a layer is the simpler pool
        return replace(own, slots=found.facts)
    if not _are_read_whole(found.groups, request.kernel_sizes):
        return own
    return Grouping(groups=found.groups, slots=found.facts, in_slots=True)


def _are_read_whole(groups: Sequence[KVCacheGroupSpec], sizes: Sequence[int]) -> bool:
    specs = [group.layer_spec(name) for group in groups for name in group.layer_names]
    return not sizes or all(spec.is_state or spec.block_size in sizes for spec in specs)


def _shape(groups: Sequence[KVCacheGroupSpec]) -> Counter[tuple[KVCacheSpec, int]]:
    return Counter((group.spec, len(group.layer_names)) for group in groups)


def _baselines(own: Grouping, whole: Layers, ranks: Sequence[Layers]) -> Iterator[Baseline]:
    """Plans of the same layers: by equal groups, and of the engines that plan them at all."""
    yield _baseline("equal groups", own, ranks, None)
    for engine in (VLLM_0_17, VLLM_0_33):
        try:
            axes = own_axes(whole.values(), engine)
            made = group_layers(whole, engine, disable_hybrid=False, kv_cache_layout=axes)
            found = _baseline(engine.name, made, ranks, engine)
        except KvpipeError:
            continue
        if found.holds(whole):
            yield found


def _baseline(
    name: str, made: Grouping, ranks: Sequence[Layers], engine: EngineRules | None
) -> Baseline:
    rules = engine or VLLM_0_17
    axes = own_axes((spec for mine in ranks for spec in mine.values()), rules)
    pools = [
        Pool(groups=on_rank(made.groups, frozenset(mine)), rules=rules, layout=axes)
        for mine in ranks
    ]
    for pool in pools if engine else ():
        check_pool(pool)
    return Baseline(
        engine=name,
        groups=made.groups,
        slot_bytes=tuple(pool.bytes_per_block for pool in pools),
    )
