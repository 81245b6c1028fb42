"""Layers, limits and memory -> the grouping of the same layers that holds most tokens.

Groups lie over one another from byte 0 of a block, and a block is as wide as the widest group: any
partition of layers that are alike is a legal plan. So every number of layers a group is tried.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kvpipe.cache.plan import Plan
from kvpipe.engines.base import EngineRules
from kvpipe.errors import KvpipeError
from kvpipe.integrations.vllm.settings import Settings
from kvpipe.specs.base import CacheLayer, RequestLimits
from kvpipe.stages.grouping.planning import plan

_ROUNDING = 1e-9  # six times 0.005 is 0.03


@dataclass(frozen=True, kw_only=True)
class EngineRequest:
    """What the engine plans from, in kvpipe's words. memory: bytes of each worker. fit: the length
    is lowered to the longest that fits. layout: axes of the allocation, outermost first."""

    layers: Sequence[Sequence[CacheLayer]]
    limits: RequestLimits
    memory: Sequence[int]
    rules: EngineRules
    fit: bool
    disable_hybrid: bool
    override: int | None
    layout: str | None

    def planned(self, layers_per_group: int | None = None) -> Plan:
        """As the release plans, or with so many layers a group; KvpipeError where it does not."""
        return plan(
            self.layers,
            self.limits,
            self.memory,
            rules=replace(self.rules, layers_per_group=layers_per_group),
            fit=self.fit,
            disable_hybrid_kv_cache_manager=self.disable_hybrid,
            num_gpu_blocks_override=self.override,
            kv_cache_layout=self.layout,
            compared=(),
        )


def tokens_of(made: Plan) -> int:
    return made.printed[0].num_tokens or 0


def best(request: EngineRequest, own: Plan, settings: Settings) -> Plan | None:
    """The plan worth most after the price of its tables; None where `own` is."""
    found = [*_candidates(request, own, settings), own]
    chosen = max(found, key=lambda made: (_worth(made, settings), made is own))
    return None if chosen is own else chosen


def _worth(made: Plan, settings: Settings) -> float:
    """Tokens, less the share that tables cost. A longer length comes before all (auto-fit)."""
    price = settings.price_of_a_group * len(made.groups)
    return made.limits.max_model_len + tokens_of(made) * (1 - price)


def _candidates(request: EngineRequest, own: Plan, settings: Settings) -> list[Plan]:
    """One plan for each size of groups up to the most layers alike; those that are no better, or
    have more tables than allowed, or cost more of a step than that, are left out."""
    most = max(len(group.layer_names) for group in own.groups) * len(own.groups)
    found = []
    for size in range(1, most + 1):
        try:
            made = request.planned(size)
        except KvpipeError:
            continue
        is_longer = made.limits.max_model_len > own.limits.max_model_len
        is_better = is_longer or tokens_of(made) > tokens_of(own)
        if is_better and _is_allowed(made, own, settings):
            found.append(made)
    return found


def _is_allowed(made: Plan, own: Plan, settings: Settings) -> bool:
    further = len(made.groups) - len(own.groups)
    cost = further * settings.price_of_a_group
    return len(made.groups) <= settings.max_groups and cost <= settings.slower_at_most + _ROUNDING
