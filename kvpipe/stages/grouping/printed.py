"""The capacity that an engine prints: tokens, and requests of the full length at once."""

from __future__ import annotations

from collections.abc import Sequence

from kvpipe.cache.plan import EngineCapacity, KVCacheConfig
from kvpipe.engines.base import EngineRules
from kvpipe.specs.base import KVCacheSpec, RequestLimits, cdiv
from kvpipe.stages.grouping._problems import refuse
from kvpipe.stages.grouping.scratch import stepped


def printed(config: KVCacheConfig, rules: EngineRules, limits: RequestLimits) -> EngineCapacity:
    """What the engine prints for one rank's config; the log's line is that of the first rank.
    (The newer engines let a uniform group stand for its first layer there; layers of one type need
    equally many blocks, so nothing changes.)"""
    if not config.groups:
        return EngineCapacity(engine=rules.name, num_tokens=None, max_concurrency=None)
    specs = [group.spec for group in config.groups]
    if rules.printed == "group_share":
        return _by_group_share(config, specs, rules, limits)
    null = 1 if rules.printed == "usable" else 0
    if config.scratch:
        peak = stepped(specs, config.scratch, limits).total
        return _by_concurrency(config.num_blocks - null, peak, rules, limits)
    bound = [
        s.peak_blocks(limits) if rules.request_bound == "peak_blocks" else s.max_blocks(limits)
        for s in specs
    ]
    return _by_concurrency(config.num_blocks - null, sum(bound), rules, limits)


def _by_concurrency(
    num_blocks: int, request_blocks: int, rules: EngineRules, limits: RequestLimits
) -> EngineCapacity:
    if not request_blocks:
        return EngineCapacity(engine=rules.name, num_tokens=None, max_concurrency=None)
    concurrency = max(0, num_blocks) / request_blocks
    return EngineCapacity(
        engine=rules.name,
        num_tokens=int(concurrency * limits.max_model_len),
        max_concurrency=concurrency,
    )


def _by_group_share(
    config: KVCacheConfig, specs: Sequence[KVCacheSpec], rules: EngineRules, limits: RequestLimits
) -> EngineCapacity:
    """Blocks shared out evenly over the groups, each worth the smallest block of tokens; requests
    from the bytes of all groups. For hybrid models the two disagree."""
    needed = cdiv(sum(spec.max_memory_bytes(limits) for spec in specs), specs[0].page_size_bytes)
    if problem := _divides_by_zero(config, needed):
        key, got = problem
        raise refuse(
            key,
            f"blocks, layers and a request that needs some (engine={rules.name} divides by them)",
            got,
            "set engine=kvpipe (or scheduler.max_encoder_tokens, for cross attention)",
            reference="ZeroDivisionError",
            stage="configs",
        )
    share = config.num_blocks // len(specs)
    smallest = min(spec.block_size for spec in specs)
    return EngineCapacity(
        engine=rules.name,
        num_tokens=share * smallest * limits.dcp * limits.pcp,
        max_concurrency=config.num_blocks / needed,
    )


def _divides_by_zero(config: KVCacheConfig, needed: int) -> tuple[str, str] | None:
    """(key, what is zero) where that engine's line cannot be computed."""
    if not config.num_blocks:
        return "cache.num_gpu_blocks_override", "0 blocks"
    if not any(group.layer_names for group in config.groups):
        return "parallel.pipeline_parallel_size", "a rank without layers"
    if not needed:
        return "engine.name", "a request that needs no blocks"
    return None
