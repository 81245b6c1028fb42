"""The engine's planning with kvpipe beside it: its own plan, unless another is proved better.

Before the engine is given other groups: kvpipe's plan by the release's own rules is the engine's
plan. After: the engine's own planner, given the groups, says what kvpipe promised. Either failing,
the engine's own plan stays.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from kvpipe.cache.plan import Plan
from kvpipe.engines.versions import parse_version, rules_of, written
from kvpipe.errors import KvpipeError
from kvpipe.integrations.vllm.planner import LOGGER, Configs, Planner
from kvpipe.integrations.vllm.regroup import EngineRequest, best
from kvpipe.integrations.vllm.report import report_lines
from kvpipe.integrations.vllm.settings import LeftAlone, Settings, settings_of
from kvpipe.integrations.vllm.translate import layers_of, limits_of

# Releases whose planners were read; of these 0.32.0 was started with the plug-in (docs/live.md).
TESTED = ((0, 28), (0, 32))
Specs = Sequence[Mapping[str, Any]]


def planned(held: Planner, config: Any, specs: Specs, memory: Sequence[int]) -> Configs:
    """What the engine allocates. Raises what the engine's own planner raises, and nothing else."""
    asked_length = config.model_config.max_model_len
    own: Configs | Exception
    try:
        own = held.plan(config, specs, memory)
    except Exception as error:
        own = error
    own_length = config.model_config.max_model_len
    try:
        config.model_config.max_model_len = asked_length
        found = _considered(held, config, specs, memory, own, own_length)
    except LeftAlone as reason:
        LOGGER.warning("kvpipe: the engine's own plan stays: %s", reason)
        found = None
    except Exception as error:  # of ours, or of a release that is not as the tested ones
        LOGGER.warning("kvpipe: the engine's own plan stays: %s: %s", type(error).__name__, error)
        found = None
    if found is not None:
        return found
    config.model_config.max_model_len = own_length
    if isinstance(own, Exception):
        raise own
    return own


def _considered(
    held: Planner,
    config: Any,
    specs: Specs,
    memory: Sequence[int],
    own: Configs | Exception,
    own_length: int,
) -> Configs | None:
    """The better plan, None where the engine's own stays without a word of warning."""
    settings = settings_of(config.additional_config)
    if settings is None:
        return None
    request = request_of(held, config, specs, memory)
    ours = _as_the_engine(held, config, request, own, own_length)
    if settings.report and ours is not None:
        for line in report_lines(ours):
            LOGGER.info("kvpipe: %s", line)
    if settings.grouping == "engine":
        return None
    return _regrouped(held, config, specs, memory, request, ours, settings)


def request_of(held: Planner, config: Any, specs: Specs, memory: Sequence[int]) -> EngineRequest:
    """LeftAlone where the release was not tested, or the specs are not known."""
    release = parse_version(held.version)
    if not TESTED[0] <= release[:2] <= TESTED[1]:
        first, last = (".".join(map(str, part)) for part in TESTED)
        raise LeftAlone(f"vLLM {held.version} was not tested, {first} to {last} were")
    cache = config.cache_config
    layout = getattr(cache, "get_resolved_kv_cache_layout", None)
    return EngineRequest(
        layers=layers_of(specs),
        limits=limits_of(config),
        memory=tuple(memory),
        rules=rules_of(written(release)),
        fit=getattr(config.model_config, "original_max_model_len", None) == -1,
        disable_hybrid=bool(config.scheduler_config.disable_hybrid_kv_cache_manager),
        override=cache.num_gpu_blocks_override,
        layout=layout().name if layout else None,
    )


def _as_the_engine(
    held: Planner, config: Any, request: EngineRequest, own: Configs | Exception, own_length: int
) -> Plan | None:
    """kvpipe's plan by the engine's rules; None where both refuse. LeftAlone where they differ:
    then something of this engine is not known."""
    try:
        made = request.planned()
    except KvpipeError as error:
        if isinstance(own, Exception):
            return None
        raise LeftAlone(f"kvpipe refuses what the engine plans: {error.lines()[0]}") from error
    if isinstance(own, Exception):
        raise LeftAlone("kvpipe plans what the engine refuses")
    if difference := _difference(held, config, made, own, own_length):
        raise LeftAlone(f"kvpipe's plan of this engine differs: {difference}")
    return made


def _difference(held: Planner, config: Any, made: Plan, configs: Configs, length: int) -> str:
    """ "" where kvpipe's plan and the engine's are one."""
    theirs = held.module.generate_scheduler_kv_cache_config(configs)
    if made.limits.max_model_len != length:
        return f"{made.limits.max_model_len:,} tokens a request, {length:,} there"
    if made.num_blocks != theirs.num_blocks:
        return f"{made.num_blocks:,} blocks, {theirs.num_blocks:,} there"
    ours = [list(group.layer_names) for group in made.groups]
    if ours != [list(group.layer_names) for group in theirs.kv_cache_groups]:
        return "other groups"
    if made.groups:
        with _length(config, length):
            tokens, _ = held.module.get_kv_cache_capacity(config, theirs)
        if made.printed[0].num_tokens != tokens:
            return f"{made.printed[0].num_tokens} tokens, {tokens:,} there"
    return ""


@contextmanager
def _length(config: Any, length: int) -> Iterator[None]:
    kept, config.model_config.max_model_len = config.model_config.max_model_len, length
    try:
        yield
    finally:
        config.model_config.max_model_len = kept


def _regrouped(
    held: Planner,
    config: Any,
    specs: Specs,
    memory: Sequence[int],
    request: EngineRequest,
    ours: Plan | None,
    settings: Settings,
) -> Configs | None:
    if ours is None:
        return None  # it does not fit: the engine says so itself
    if len(ours.groups) < 2:
        LOGGER.info("kvpipe: one group of layers, nothing to regroup")
        return None
    chosen = best(request, ours, settings)
    if chosen is None:
        LOGGER.info("kvpipe: %s; no other grouping is worth more", _in_words(ours))
        return None
    groups = [list(group.layer_names) for group in chosen.groups]
    configs = _planned_with(held, config, specs, memory, groups)
    if difference := _difference(held, config, chosen, configs, config.model_config.max_model_len):
        raise LeftAlone(f"the engine makes another plan of kvpipe's groups: {difference}")
    LOGGER.info("kvpipe: %s -> %s", _in_words(ours), _in_words(chosen))
    return configs


def _in_words(made: Plan) -> str:
    sizes = json.dumps([len(group.layer_names) for group in made.groups])
    tokens = made.printed[0].num_tokens or 0
    return f"{len(made.groups)} groups {sizes}, {made.num_blocks:,} blocks, {tokens:,} tokens"


def _planned_with(
    held: Planner, config: Any, specs: Specs, memory: Sequence[int], groups: list[list[str]]
) -> Configs:
    """The engine's own planner with other groups: all else (checks, strides, bytes) stays its."""
    module, own_groups = held.module, held.module.get_kv_cache_groups

    def get_kv_cache_groups(vllm_config: Any, layer_specs: dict[str, Any]) -> list[Any]:
        if any(group.is_eagle_group for group in own_groups(vllm_config, dict(layer_specs))):
            raise LeftAlone("groups of a draft model are marked by the engine itself")
        alike = module.unify_kv_cache_spec_page_size(layer_specs)
        return list(module.create_kv_cache_group_specs(alike, groups))

    module.get_kv_cache_groups = get_kv_cache_groups  # type: ignore[attr-defined]
    try:
        return held.plan(config, specs, memory)
    finally:
        module.get_kv_cache_groups = own_groups  # type: ignore[attr-defined]
