"""grouping: CacheLayers of every rank, limits, memory -> Plan: which layers share blocks.

In order: union of the ranks' layers, groups, pool of each rank, does one request fit (and at which
length), blocks of the poorest rank, tensors, capacity.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict

from kvpipe.engines.base import EngineRules
from kvpipe.errors import DoesNotFit, KvpipeError, SpecError
from kvpipe.specs.base import RequestLimits
from kvpipe.stages.grouping._admission import Admission, admit, size
from kvpipe.stages.grouping._capacity import true_capacity
from kvpipe.stages.grouping._groups import Grouping, group_layers
from kvpipe.stages.grouping._merging import Layers
from kvpipe.stages.grouping._pool import Pool, check_pool, on_rank
from kvpipe.stages.grouping._printed import printed, scheduler_line
from kvpipe.stages.grouping._union import shared_layers, stored_layers, union
from kvpipe.stages.grouping.base import (
    Capacity,
    EngineCapacity,
    GroupingRequest,
    KVCacheGroupSpec,
    Plan,
    RankPlan,
)


class HybridGrouping:
    """Layers of unlike caches share one pool of blocks."""

    class Options(BaseModel):
        model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
        name: str

    def __init__(self, options: Options) -> None:
        self.options = options

    def run(self, request: GroupingRequest) -> Plan:
        return make_plan(request)


def make_plan(request: GroupingRequest) -> Plan:
    """The plan of a request. ConfigError: it is wrong; DoesNotFit: it is legal, memory is short."""
    layers = stored_layers(request.ranks)
    shared = shared_layers(request.ranks)
    grouping, limits, ranks = _plan_ranks(request, layers, request.rules, request.fit)
    line = scheduler_line(ranks[0].config, request.rules, request.rules.limits(limits))
    others = [
        _as_printed_by(rules, request, layers, limits)
        for rules in request.compared
        if rules.name != request.rules.name
    ]
    capacity = _poorest_capacity(ranks, request.rules.limits(limits))
    return Plan(
        engine=request.rules.name,
        limits=limits,
        requested_len=request.limits.max_model_len,
        ranks=ranks,
        shared_layers=shared,
        padding=grouping.padding,
        capacity=capacity,
        printed=(line, *others),
        notes=tuple(_notes(request, ranks, capacity)),
    )


def _plan_ranks(
    request: GroupingRequest, layers: Sequence[Layers], rules: EngineRules, fit: bool
) -> tuple[Grouping, RequestLimits, tuple[RankPlan, ...]]:
    """Groups, limits after auto-fit (as asked, not as the engine counts them), a plan a rank."""
    grouping = group_layers(
        union(layers),
        rules,
        disable_hybrid=request.disable_hybrid_kv_cache_manager,
        kv_cache_layout=request.kv_cache_layout,
    )
    pools = [
        Pool(groups=groups, rules=rules, layout=request.kv_cache_layout)
        for groups in _groups_by_rank(grouping, layers)
    ]
    for pool in pools:
        if pool.is_one_allocation:
            check_pool(pool)
    memory = [
        _memory(pool, given, request.num_gpu_blocks_override)
        for pool, given in zip(pools, request.memory, strict=True)
    ]
    admissions = [Admission(pool=p, memory=m) for p, m in zip(pools, memory, strict=True)]
    limits = admit(admissions, rules.limits(request.limits), fit)
    for pool in pools:
        check_pool(pool)
    ranks = _rank_plans(request, admissions, limits)
    return grouping, request.limits.with_length(limits.max_model_len), ranks


def _groups_by_rank(
    grouping: Grouping, layers: Sequence[Layers]
) -> list[tuple[KVCacheGroupSpec, ...]]:
    if len(layers) == 1:
        return [grouping.groups]
    return [on_rank(grouping.groups, frozenset(mine)) for mine in layers]


def _memory(pool: Pool, given: int, override: int | None) -> int:
    """Bytes that the pool may use. An override may stand for them, or must at least fit in them."""
    if override is None or pool.rules.override == "count" or not pool.bytes_per_block:
        return given
    asked = override * pool.bytes_per_block
    if pool.rules.override == "checked_count" and asked > given:
        raise DoesNotFit(
            f"cache.num_gpu_blocks_override: {override:,} blocks need {size(asked)}, "
            f"{given // pool.bytes_per_block:,} fit ({size(given)}). Lower it, or raise "
            "cache.kv_cache_memory_bytes or cache.gpu_memory_utilization",
            needed_bytes=(asked,),
            available_bytes=(given,),
        )
    return asked


def _rank_plans(
    request: GroupingRequest, admissions: Sequence[Admission], limits: RequestLimits
) -> tuple[RankPlan, ...]:
    """Every rank gets the block count of the poorest; what a richer one cannot use is stranded."""
    own = [each.pool.num_blocks(each.memory) for each in admissions]
    common = min((n for n in own if n is not None), default=1)
    anything = any(each.pool.groups for each in admissions)
    if request.num_gpu_blocks_override is not None and anything:
        common = request.num_gpu_blocks_override
    plans = []
    for each, mine, given in zip(admissions, own, request.memory, strict=True):
        config = each.pool.config(common)
        extra = max(0, (mine or 0) - common) * config.bytes_per_block
        plans.append(
            RankPlan(
                config=config,
                available_bytes=given,
                required_bytes=each.required_bytes(limits),
                printed=printed(config, each.rules, limits),
                stranded_bytes=extra,
            )
        )
    return tuple(plans)


def _as_printed_by(
    rules: EngineRules, request: GroupingRequest, layers: Sequence[Layers], limits: RequestLimits
) -> EngineCapacity:
    """The line another engine prints for the same layers, memory and planned length."""
    asked = GroupingRequest(
        ranks=(),
        limits=limits,
        memory=request.memory,
        rules=rules,
        disable_hybrid_kv_cache_manager=request.disable_hybrid_kv_cache_manager,
        num_gpu_blocks_override=request.num_gpu_blocks_override,
        kv_cache_layout=request.kv_cache_layout,
    )
    try:
        _, _, ranks = _plan_ranks(asked, layers, rules, fit=False)
    except (KvpipeError, SpecError) as error:
        reason = str(error).splitlines()[0]
        return EngineCapacity(
            engine=rules.name, num_tokens=None, max_concurrency=None, refused=reason
        )
    return scheduler_line(ranks[0].config, rules, rules.limits(limits))


def _poorest_capacity(ranks: Sequence[RankPlan], limits: RequestLimits) -> Capacity | None:
    """Of the rank with the most bytes a block: all ranks have the same blocks."""
    widest = max(ranks, key=lambda rank: rank.config.bytes_per_block)
    return true_capacity(widest.config, limits)


def _notes(
    request: GroupingRequest, ranks: Sequence[RankPlan], capacity: Capacity | None
) -> list[str]:
    notes = []
    if stranded := [(i, r.stranded_bytes) for i, r in enumerate(ranks) if r.stranded_bytes]:
        listed = ", ".join(f"rank {i} {size(b)}" for i, b in stranded)
        notes.append(f"unused, since every rank has the blocks of the poorest: {listed}")
    if capacity and capacity.longest_request < capacity.request_len:
        longest = f"{capacity.longest_request:,}" if capacity.longest_request else "no"
        notes.append(
            f"engine={request.rules.name} starts, but requests beyond {longest} tokens can never "
            f"be scheduled; set scheduler.max_model_len={max(1, capacity.longest_request)}"
        )
    if capacity and request.max_num_seqs and capacity.requests_at_peak < request.max_num_seqs:
        notes.append(
            f"scheduler.max_num_seqs={request.max_num_seqs}: memory holds "
            f"{capacity.requests_at_peak} requests of {capacity.request_len:,} tokens at their peak"
        )
    return notes


PLUGIN = HybridGrouping
