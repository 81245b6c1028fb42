"""The capacity that an engine prints: tokens, and requests of the full length at once."""

from __future__ import annotations

from collections.abc import Sequence

from kvpipe.engines.base import EngineRules
from kvpipe.errors import ConfigError
from kvpipe.specs.base import KVCacheSpec, RequestLimits, cdiv
from kvpipe.stages.grouping._problems import refuse
from kvpipe.stages.grouping.base import EngineCapacity, KVCacheConfig


def printed(config: KVCacheConfig, rules: EngineRules, limits: RequestLimits) -> EngineCapacity:
    """What the engine prints for one rank's config."""
    if not config.groups:
        return EngineCapacity(engine=rules.name, num_tokens=None, max_concurrency=None)
    specs = [group.spec for group in config.groups]
    if rules.printed == "group_share":
        return _by_group_share(config, specs, rules, limits)
    bound = [
        s.peak_blocks(limits) if rules.request_bound == "peak_blocks" else s.max_blocks(limits)
        for s in specs
    ]
    null = 1 if rules.printed == "usable" else 0
    return _by_concurrency(config.num_blocks - null, sum(bound), rules, limits)


def scheduler_line(
    config: KVCacheConfig, rules: EngineRules, limits: RequestLimits
) -> EngineCapacity:
    """What the engine logs in the end: from the first rank's config. In the newer engines a uniform
    group stands for its first layer there."""
    if rules.printed != "by_concurrency" or not config.groups:
        return printed(config, rules, limits)
    blocks = sum(_first_layer(group.spec).max_blocks(limits) for group in config.groups)
    return _by_concurrency(config.num_blocks, blocks, rules, limits)


def _first_layer(spec: KVCacheSpec) -> KVCacheSpec:
    return spec.of_layer(spec.stored_layers(())[0]) if spec.sums_pages else spec


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
    if not needed or not config.num_blocks:
        raise _divides_by_zero(rules, config.num_blocks)
    share = config.num_blocks // len(specs)
    smallest = min(spec.block_size for spec in specs)
    return EngineCapacity(
        engine=rules.name,
        num_tokens=share * smallest * limits.dcp * limits.pcp,
        max_concurrency=config.num_blocks / needed,
    )


def _divides_by_zero(rules: EngineRules, num_blocks: int) -> ConfigError:
    got = "a request that needs no blocks" if num_blocks else "0 blocks"
    return refuse(
        "cache.num_gpu_blocks_override" if not num_blocks else "scheduler.max_encoder_tokens",
        f"blocks and a request that needs some (engine={rules.name} divides by both)",
        got,
        "set engine=kvpipe",
        reference="ZeroDivisionError",
        stage="configs",
    )
