"""Groups in equal slots, for layers that differ: as good as the best of the plans compared."""

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
from kvpipe.stages.grouping.slots.asked import SlotGroups, SlotRequest
from kvpipe.stages.grouping.slots.baselines import Baseline
from kvpipe.stages.grouping.slots.equal_pages import have_equal_pages
from kvpipe.stages.grouping.slots.kernels import are_read
from kvpipe.stages.grouping.slots.rule import slot_groups
from kvpipe.stages.grouping.slots.stages import slot_bytes
from kvpipe.stages.grouping.subslots import in_subslots
from kvpipe.stages.grouping.union import union


def in_equal_slots(
    request: GroupingRequest, layers: Sequence[Layers], rules: EngineRules, own: Grouping
) -> Grouping:
    """own: the groups of equal counts, which stay where slots bring nothing, or cannot be."""
    whole = union(layers)
    asked = SlotRequest(
        ranks=layers,
        limits=rules.limits(request.limits),
        options=request.slots,
        baselines=tuple(_baselines(own, whole, layers)),
        quantum=request.block_quantum,
        shares_prefixes=request.shares_prefixes,
        kernel_sizes=request.kernel_sizes,
        reads_whole=request.scratch or not rules.splits_apart_pages,
        memory=() if request.num_gpu_blocks_override is not None else request.memory,
    )
    try:
        found = _searched(asked)
        parted = in_subslots(asked, found) if request.slots.subslots else None
    except SpecError:  # limits that a spec cannot work under: told where it is admitted
        return own
    if parted is not None:
        return Grouping(groups=parted.groups, slots=parted.facts, in_slots=True)
    as_before = _shape(found.groups) == _shape(own.groups)
    if as_before and not request.scratch:  # a tensor a layer is the simpler pool
        return replace(own, slots=found.facts)
    if request.slots.for_engine == "vllm":  # whose pages are of one size: tensors hold them
        takes = have_equal_pages(found.groups)
        return Grouping(groups=found.groups, slots=found.facts) if takes else own
    if not are_read(found.groups, layers, request.kernel_sizes):
        return own
    return Grouping(groups=found.groups, slots=found.facts, in_slots=True)


def _searched(asked: SlotRequest) -> SlotGroups:
    """The groups; where they are for an engine that takes few of them, what the best would have
    held stands beside the plans compared."""
    found = slot_groups(asked)
    if asked.options.for_engine == "kvpipe":
        return found
    best = slot_groups(replace(asked, options=replace(asked.options, for_engine="kvpipe")))
    slot = max(slot_bytes(best.groups, asked.ranks))
    length, limits = asked.limits.max_model_len, asked.limits
    blocks = sum(group.spec.steady_blocks(length, limits) for group in best.groups)
    more = ("equal slots of unlike pages", len(best.groups), blocks * slot)
    return replace(found, facts=replace(found.facts, compared=(*found.facts.compared, more)))


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
