"""Groups, admission, blocks: one config a rank, all with the blocks of the poorest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kvpipe.cache.plan import KVCacheGroupSpec, RankPlan
from kvpipe.engines.base import EngineRules
from kvpipe.errors import ConfigError, DoesNotFit, Problem, SpecError
from kvpipe.specs.base import RequestLimits
from kvpipe.stages.grouping._groups import Grouping
from kvpipe.stages.grouping._merging import Layers
from kvpipe.stages.grouping._problems import refuse
from kvpipe.stages.grouping._slotted import grouped
from kvpipe.stages.grouping.admission import Admission, Edges, admit, common_blocks, short_size
from kvpipe.stages.grouping.base import GroupingRequest
from kvpipe.stages.grouping.pool import Pool, check_pool, on_rank
from kvpipe.stages.grouping.printed import printed
from kvpipe.stages.grouping.union import shared_layers
from kvpipe.text.figures import count


@dataclass(frozen=True, kw_only=True)
class RankedPlans:
    """limits: as asked, after auto-fit (not as the engine counts them)."""

    grouping: Grouping
    admissions: tuple[Admission, ...]
    limits: RequestLimits
    ranks: tuple[RankPlan, ...]


def plan_ranks(
    request: GroupingRequest,
    layers: Sequence[Layers],
    rules: EngineRules,
    fit: bool,
    with_tensors: bool = True,
    told: Edges | None = None,
) -> RankedPlans:
    """The plan of every rank by these rules. with_tensors False: counts alone. told: what a refusal
    says, where that is known better."""
    try:
        grouping = grouped(request, layers, rules)
    except ConfigError as error:
        raise _in_stages(error, layers) from None
    pools = [
        Pool(
            groups=groups,
            rules=rules,
            layout=request.axes(rules),
            in_slots=grouping.in_slots,
            read_by_others=_read_by_others(request, rules),
        )
        for groups in _groups_by_rank(grouping, layers)
    ]
    if len({tuple(each and each.pages_per_slot for each in pool.scratch) for pool in pools}) > 1:
        pools = [replace(pool, read_by_others=None) for pool in pools]  # one manager serves all
    admissions = _admissions(request, pools)
    for pool in pools:
        if pool.is_one_allocation:  # that engine looks at the layout before the memory
            check_pool(pool)
    try:
        limits = admit(admissions, rules.limits(request.limits), fit, told)
        for pool in pools:
            check_pool(pool)
        ranks = _rank_plans(request, admissions, limits, with_tensors)
    except SpecError as error:
        raise _wrong_limits(error) from error
    return RankedPlans(
        grouping=grouping,
        admissions=admissions,
        limits=request.limits.with_length(limits.max_model_len),
        ranks=ranks,
    )


def _read_by_others(request: GroupingRequest, rules: EngineRules) -> frozenset[str] | None:
    """Layers whose cache others read; None where this engine's chunks use no scratch."""
    if not request.scratch or rules.groups != "slots":
        return None
    return frozenset(target for _, target in shared_layers(request.ranks))


def _wrong_limits(error: SpecError) -> ConfigError:
    return refuse(
        "parallel.decode_context_parallel_size",
        "1 for layers with a sliding window",
        str(error),
        "set it to 1",
        reference="AssertionError",
        stage="configs",
    )


def _in_stages(error: ConfigError, layers: Sequence[Layers]) -> ConfigError:
    """The error with the pipeline stages that hold its layers; ranks of a stage hold the same."""
    stages = list(dict.fromkeys(tuple(rank) for rank in layers))
    wrong = set(error.layers)
    found = [str(i) for i, names in enumerate(stages) if wrong & set(names)]
    if len(stages) == 1 or not found:
        return error
    told = f", in pipeline stage {' and '.join(found)}"
    problems = [Problem(p.key, p.expected, p.got + told, p.knob) for p in error.problems]
    return ConfigError(problems, error.reference_type, error.stage)


def _groups_by_rank(
    grouping: Grouping, layers: Sequence[Layers]
) -> list[tuple[KVCacheGroupSpec, ...]]:
    if len(layers) == 1:
        return [grouping.groups]
    return [on_rank(grouping.groups, frozenset(mine)) for mine in layers]


def _admissions(request: GroupingRequest, pools: Sequence[Pool]) -> tuple[Admission, ...]:
    return tuple(
        Admission(
            pool=pool,
            memory=_memory(pool, given, request),
            override=request.num_gpu_blocks_override,
        )
        for pool, given in zip(pools, request.memory, strict=True)
    )


def _memory(pool: Pool, given: int, request: GroupingRequest) -> int:
    """Bytes that the pool may use. An override may stand for them, or must at least fit in them."""
    override, width = request.num_gpu_blocks_override, pool.bytes_per_block
    if override is None or pool.rules.override == "count" or not width:
        return given
    asked = override * width
    if pool.rules.override == "checked_count" and asked > given:
        need = "needs" if override == 1 else "need"
        asked_for, has = short_size(asked), short_size(given)
        raise DoesNotFit(
            f"cache.num_gpu_blocks_override: {count(override, 'block')} {need} {asked_for}, "
            f"{given // width:,} fit ({has})",
            needed_bytes=(asked,),
            available_bytes=(given,),
        )
    return asked


def _rank_plans(
    request: GroupingRequest,
    admissions: Sequence[Admission],
    limits: RequestLimits,
    with_tensors: bool,
) -> tuple[RankPlan, ...]:
    """Every rank gets the block count of the poorest; what a richer one cannot use is stranded."""
    own = [each.pool.num_blocks(each.memory) for each in admissions]
    common = common_blocks(admissions)
    if common is None:
        common = 1
    plans = []
    for each, mine, given in zip(admissions, own, request.memory, strict=True):
        config = each.pool.config(common, with_tensors)
        plans.append(
            RankPlan(
                config=config,
                available_bytes=given,
                required_bytes=each.required_bytes(limits),
                printed=printed(config, each.pool.rules, limits),
                stranded_bytes=max(0, (mine or 0) - common) * config.bytes_per_block,
            )
        )
    return tuple(plans)
