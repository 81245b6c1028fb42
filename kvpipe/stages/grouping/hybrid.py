"""grouping: CacheLayers of every rank, limits, memory -> Plan: which layers share blocks.

In order: union of the ranks' layers, groups, pool of each rank, does one request fit (and at which
length), blocks of the poorest rank, tensors, capacity.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from kvpipe.cache.plan import Capacity, EngineCapacity, Plan, RankPlan
from kvpipe.cache.printed_lines import PrintedLines
from kvpipe.engines.base import EngineRules
from kvpipe.errors import DoesNotFit, KvpipeError
from kvpipe.specs.answers import check_answers
from kvpipe.specs.base import RequestLimits
from kvpipe.stages.grouping._capacity import true_capacity
from kvpipe.stages.grouping._merging import Layers, distinct
from kvpipe.stages.grouping._notes import notes
from kvpipe.stages.grouping._refused import longest_len, needed_bytes
from kvpipe.stages.grouping.admission import Edges
from kvpipe.stages.grouping.base import GroupingRequest
from kvpipe.stages.grouping.ranks import RankedPlans, plan_ranks
from kvpipe.stages.grouping.scratch import ScratchChoice, uses_scratch
from kvpipe.stages.grouping.slots.options import (
    BlockSizeRule,
    ForEngine,
    Objective,
    SlotOptions,
    SubSlotChoice,
)
from kvpipe.stages.grouping.subslots import refuse_beside_subslots
from kvpipe.stages.grouping.union import shared_layers, stored_layers


class HybridGrouping:
    """Layers of unlike caches share one pool of blocks."""

    class Options(BaseModel):
        """conf/grouping/hybrid.yaml; of groups in equal slots, see `slots/options.py`."""

        model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
        name: str
        objective: Objective
        table_price: Annotated[float, Field(ge=0, lt=1)]
        block_sizes: BlockSizeRule
        max_prefix_grain: Annotated[int, Field(ge=1, lt=2**20)]
        scratch: ScratchChoice
        for_engine: ForEngine
        subslots: SubSlotChoice
        lengths: list[Annotated[int, Field(ge=1, lt=2**31)]] | Literal["auto"]

    def __init__(self, options: Options) -> None:
        self.options = options

    def run(self, request: GroupingRequest) -> Plan:
        if isinstance(self.options, HybridGrouping.Options):  # a plugin may bring its own
            scratch = uses_scratch(self.options.scratch, request)
            slots = _slot_options(self.options)
            if slots.subslots:
                refuse_beside_subslots(self.options.scratch, slots, request)
                scratch = False
            request = replace(request, slots=slots, scratch=scratch)
        return make_plan(request)


def _slot_options(options: HybridGrouping.Options) -> SlotOptions:
    return SlotOptions(
        objective=options.objective,
        table_price=options.table_price,
        block_sizes=options.block_sizes,
        max_prefix_grain=options.max_prefix_grain,
        for_engine=options.for_engine,
        subslots=options.subslots == "on",
        lengths=() if options.lengths == "auto" else tuple(options.lengths),
    )


def make_plan(request: GroupingRequest) -> Plan:
    """The plan of a request. ConfigError: it is wrong; DoesNotFit: it is legal, memory is short."""
    layers = stored_layers(request.ranks)
    for spec in distinct(chain.from_iterable(rank.values() for rank in layers)):
        check_answers(spec, request.limits)
    shared = shared_layers(request.ranks)
    try:
        made = _longest_anew(
            request, layers, plan_ranks(request, layers, request.rules, request.fit)
        )
    except DoesNotFit as error:
        made = _planned_anew(request, layers, error)
    seen = request.rules.limits(made.limits)
    others = [
        partial(_as_printed_by, rules, request, layers, made.limits)
        for rules in request.compared
        if rules.name != request.rules.name
    ]
    capacity = _widest_capacity(made.ranks, seen, request.rules)
    return Plan(
        engine=request.rules.name,
        limits=seen,
        requested_len=request.limits.max_model_len,
        ranks=made.ranks,
        shared_layers=shared,
        padding=made.grouping.padding,
        capacity=capacity,
        printed=PrintedLines(made.ranks[0].printed, others),
        notes=tuple(notes(request, made, capacity)),
        slots=made.grouping.slots,
    )


def _planned_anew(
    request: GroupingRequest, layers: Sequence[Layers], told: DoesNotFit
) -> RankedPlans:
    """What was refused, if `auto` finds a length in another grouping; else DoesNotFit again, whose
    figures hold in fresh plans, too."""
    rules = request.rules
    if rules.groups != "slots" or not told.needed_bytes or request.num_gpu_blocks_override:
        raise told

    counted = partial(_counted, layers)
    longest = longest_len(request, told.longest_len, counted)
    if request.fit and longest:
        shorter = replace(request, limits=request.limits.with_length(longest))
        return plan_ranks(shorter, layers, rules, False)
    found = Edges(longest_len=longest, needed_bytes=needed_bytes(request, told, counted))
    if (found.longest_len, found.needed_bytes) == (told.longest_len, max(told.needed_bytes)):
        raise told
    return plan_ranks(request, layers, rules, request.fit, told=found)


def _longest_anew(
    request: GroupingRequest, layers: Sequence[Layers], made: RankedPlans
) -> RankedPlans:
    """A length that was lowered to what the groups of the whole one hold, if those of a longer one
    hold no more; else the plan of that one."""
    found, asked = made.limits.max_model_len, request.limits.max_model_len
    if request.rules.groups != "slots" or found >= asked or request.num_gpu_blocks_override:
        return made
    longest = longest_len(request, found, partial(_counted, layers)) or found
    if longest <= found:
        return made
    longer = replace(request, limits=request.limits.with_length(longest))
    return plan_ranks(longer, layers, request.rules, False)


def _counted(layers: Sequence[Layers], request: GroupingRequest) -> RankedPlans:
    return plan_ranks(request, layers, request.rules, False, with_tensors=False)


def _as_printed_by(
    rules: EngineRules, request: GroupingRequest, layers: Sequence[Layers], limits: RequestLimits
) -> EngineCapacity:
    """The line another engine prints for the same layers, memory and planned length."""
    try:
        made = plan_ranks(replace(request, limits=limits), layers, rules, False, False)
    except KvpipeError as error:
        return EngineCapacity(
            engine=rules.name, num_tokens=None, max_concurrency=None, refused=error.lines()[0]
        )
    return made.ranks[0].printed


def _widest_capacity(
    ranks: Sequence[RankPlan], limits: RequestLimits, rules: EngineRules
) -> Capacity | None:
    """Of the rank with the most bytes a block: all ranks have the same blocks."""
    widest = max(ranks, key=lambda rank: rank.config.bytes_per_block)
    return true_capacity(widest.config, limits, rules)


PLUGIN = HybridGrouping
