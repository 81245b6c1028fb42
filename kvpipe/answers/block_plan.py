"""An engine of block ids (every vLLM, and kvpipe's own rules) in the values of the second contract:
budget, pools, printed lines, flags. Nothing is planned anew: these are the run's stages."""

from __future__ import annotations

from dataclasses import dataclass

from kvpipe.answers.card_room import check_card
from kvpipe.answers.serve_line import line_for
from kvpipe.cache.plan import KVCacheGroupSpec, Plan
from kvpipe.cache.scratch import GroupScratch
from kvpipe.engines.base import EngineRules
from kvpipe.engines.plan import Asked, EnginePlan, Named, assembled
from kvpipe.engines.planned import Budget, Pools, Start, Step
from kvpipe.engines.pools import EnginePool
from kvpipe.pipeline import Prepared, block_rules, plan_with, profile_ranks
from kvpipe.specs.base import RequestLimits
from kvpipe.stages.grouping.scratch import stepped
from kvpipe.stages.profiling.base import MemoryItem, RankMemory

DIFFERS = (
    "one pool of block ids that layers of every kind take from, sized after a profiled step; a "
    "block is as wide as a group of layers"
)


@dataclass(frozen=True, kw_only=True)
class BlocksOfGroups:
    """Blocks of every group's table, and of the step's scratch (one entry a group; (): none)."""

    groups: tuple[KVCacheGroupSpec, ...]
    limits: RequestLimits
    scratch: tuple[GroupScratch | None, ...] = ()

    def units(self, requests: int, length: int, prefilling: bool) -> int:
        limits, specs = self.limits.with_length(length), [group.spec for group in self.groups]
        if prefilling:
            return requests * stepped(specs, self.scratch or (None,) * len(specs), limits).total
        return requests * sum(spec.steady_blocks(length, limits) for spec in specs)


def plan_blocks(prepared: Prepared) -> EnginePlan:
    """ConfigError and DoesNotFit as a run's."""
    check_card(prepared)
    rules = block_rules(prepared.config)
    profile = profile_ranks(prepared)
    plan = plan_with(prepared, profile.available_kv_bytes, compared=())
    rank = min(range(len(profile.ranks)), key=lambda i: profile.ranks[i].available_kv_bytes)
    resolved = prepared.resolved
    return assembled(
        Named(engine=_title(rules), source=rules.source, differs=DIFFERS),
        Asked(
            length=plan.limits.max_model_len,
            context=resolved.model.context_length,
            layers=resolved.ranks[rank].layers,
        ),
        _budget(profile.ranks[rank]),
        _pools(plan, rules, rank, resolved.max_num_seqs),
        printed=_printed(plan),
        start=Start(command=line_for(prepared, plan), mark="checked"),
    )


def _title(rules: EngineRules) -> str:
    return f"vLLM {rules.version}" if rules.version else "kvpipe's own rules"


def _budget(memory: RankMemory) -> Budget:
    """requested, less what is charged; what was kept back beyond that, where anything was."""
    charged = [_step(item, -1) for item in memory.charged]
    steps = [_step(memory.requested, 1), *charged]
    kept = memory.available_kv_bytes - sum(step.num_bytes for step in steps)
    if kept:
        source = memory.available_kv.source
        steps.append(
            Step(name="kept back", num_bytes=kept, how="set", mark="checked", source=source)
        )
    return Budget(steps=tuple(steps))


def _step(item: MemoryItem, sign: int) -> Step:
    return Step(
        name=item.name,
        num_bytes=sign * item.num_bytes,
        how=item.how,
        mark="checked",
        source=item.source,
    )


def _pools(plan: Plan, rules: EngineRules, rank: int, max_num_seqs: int) -> Pools:
    config = plan.ranks[rank].config
    usable = rules.usable_blocks(config.num_blocks)
    pool = EnginePool(
        name="blocks",
        unit="block",
        count=usable,
        unit_bytes=config.bytes_per_block,
        spare_bytes=(config.num_blocks - usable) * config.bytes_per_block,
        demand=BlocksOfGroups(groups=config.groups, limits=plan.limits, scratch=config.scratch),
        mark="checked",
        rule=f"{len(config.groups)} groups over one pool",
    )
    return Pools(
        pools=(pool,) if plan.capacity else (),
        max_requests=max_num_seqs,
    )


def _printed(plan: Plan) -> tuple[str, ...]:
    line = plan.printed[0]
    if line.num_tokens is None or line.max_concurrency is None:
        return ()
    return (
        f"GPU KV cache size: {line.num_tokens:,} tokens",
        f"Maximum concurrency for {plan.limits.max_model_len:,} tokens per request: "
        f"{line.max_concurrency:.2f}x",
    )
