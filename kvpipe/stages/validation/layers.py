"""ModelGeometry + choices -> every rank's CacheLayers, at their final block sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kvpipe.engines.dropped import last_served
from kvpipe.engines.versions import parse_version
from kvpipe.errors import ConfigError, Problem, SpecError
from kvpipe.models.base import CacheGeometry, ModelGeometry
from kvpipe.plugins import SPECS
from kvpipe.request.config import ParallelConfig
from kvpipe.specs.base import CacheLayer, KVCacheSpec, SpecContext
from kvpipe.stages.validation.base import RankLayers
from kvpipe.stages.validation.splits import split_problem

Layer = tuple[CacheGeometry, KVCacheSpec]
_LAYERS = "model.layers"


@dataclass(frozen=True, kw_only=True)
class WhatIf:
    """attention=<spec>: turn every layer that can be into this kind. key: what a problem names."""

    spec: str
    options: Mapping[str, Any]
    key: str


def as_released(model: ModelGeometry, version: str) -> ModelGeometry:
    """The model as a release of vLLM reads it ("": as its file says); ConfigError where it keeps a
    cache in a way that is not planned here, or serves such a model no longer."""
    if not version:
        return model
    if gone := last_served(model.architectures, version):
        expected = f"a release that serves {gone[0]}, as vLLM up to {gone[1]}"
        knob = f"set engine=vllm engine.version={gone[1]}, or engine=kvpipe"
        raise ConfigError(Problem("engine.version", expected, f"vLLM {version}", knob))
    if told := next((c for c in model.caches if c.stored_otherwise), None):
        expected = "an engine that keeps states as they are"
        got = f"vLLM {version}, which keeps {told.name} as {told.stored_otherwise}"
        raise ConfigError(Problem("engine.name", expected, got, "set engine=kvpipe"))
    release = parse_version(version)
    for first in sorted(model.context_since, key=parse_version):
        if parse_version(first) <= release:
            model = replace(model, context_length=model.context_since[first])
    if not any(cache.since for cache in model.caches):
        return model
    return replace(model, caches=tuple(_as_released(cache, version) for cache in model.caches))


def _as_released(cache: CacheGeometry, version: str) -> CacheGeometry:
    release, fields = parse_version(version), dict(cache.fields)
    for first in sorted(cache.since, key=parse_version):
        if parse_version(first) <= release:
            fields |= cache.since[first]
    return replace(cache, fields=fields)


def build_layers(
    model: ModelGeometry, context: SpecContext, what_if: WhatIf | None, tp: int
) -> list[Layer]:
    """The sharded spec of every cache of the model. ConfigError with every problem, each once."""
    wrong: dict[Problem, list[str]] = {}  # and the caches that it is about
    layers: list[Layer] = []
    memo: dict[tuple[str, str], KVCacheSpec | Problem] = {}
    for cache in model.caches:
        known = (cache.spec, repr(cache.fields))
        if known not in memo:
            memo[known] = _spec_or_problem(cache, context, what_if)
        spec = memo[known]
        if isinstance(spec, Problem):
            wrong.setdefault(spec, []).append(cache.name)
        else:
            layers.append((cache, spec))
    whole = [spec for spec in memo.values() if not isinstance(spec, Problem)]
    uneven = split_problem(whole, model.num_attention_heads, tp, model.num_layers)
    if wrong or uneven:
        told = [_of_caches(problem, names) for problem, names in wrong.items()]
        raise ConfigError([*told, *([uneven] if uneven else [])])
    sharded = {spec: spec.shard(tp) for spec in whole}
    return [(cache, sharded[spec]) for cache, spec in layers]


def _of_caches(problem: Problem, names: Sequence[str]) -> Problem:
    """A problem of the model's file names the first cache that has it, and counts the others."""
    if problem.key != _LAYERS:
        return problem
    others = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return replace(problem, key=f"{_LAYERS} ({names[0]}{others})")


def _spec_or_problem(
    cache: CacheGeometry, context: SpecContext, what_if: WhatIf | None
) -> KVCacheSpec | Problem:
    try:
        return _spec(cache, context, what_if)
    except _Wrong as wrong:
        return wrong.problem


class _Wrong(Exception):
    def __init__(self, problem: Problem) -> None:
        self.problem = problem


def _spec(cache: CacheGeometry, context: SpecContext, what_if: WhatIf | None) -> KVCacheSpec:
    try:
        kind = SPECS.get(cache.spec)
    except ConfigError as error:
        problem = error.problems[0]
        raise _Wrong(Problem(_LAYERS, problem.expected, problem.got, problem.knob)) from None
    spec: KVCacheSpec = _ask(_LAYERS, lambda: kind.from_geometry(cache.fields, context))
    if what_if is not None:
        asked = what_if
        spec = _ask(asked.key, lambda: SPECS.get(asked.spec).what_if(spec, asked.options))
    return spec


def _ask(key: str, question: Callable[[], KVCacheSpec]) -> KVCacheSpec:
    try:
        return question()
    except SpecError as error:
        raise _Wrong(error.problem(key, "a cache that can be built")) from None


def map_states(
    layers: Iterable[Layer], change: Callable[[KVCacheSpec], KVCacheSpec]
) -> list[Layer]:
    return [(cache, change(spec) if spec.is_state else spec) for cache, spec in layers]


def map_attention(
    layers: Iterable[Layer], change: Callable[[KVCacheSpec], KVCacheSpec]
) -> list[Layer]:
    return [(cache, spec if spec.is_state else change(spec)) for cache, spec in layers]


def to_ranks(
    model: ModelGeometry, layers: Sequence[Layer], parallel: ParallelConfig
) -> tuple[RankLayers, ...]:
    """Pipeline stages of whole model layers; every tensor-parallel rank of a stage is alike."""
    sizes = stage_sizes(model.num_layers, parallel)
    tp = parallel.tensor_parallel_size
    ranks: list[RankLayers] = []
    first = 0
    for stage, size in enumerate(sizes):
        mine = tuple(
            CacheLayer(name=cache.name, spec=spec, shares_with=cache.shares_with)
            for cache, spec in layers
            if first <= cache.layer < first + size
        )
        _refuse_sharing_across_stages(mine)
        for tp_rank in range(tp):
            ranks.append(
                RankLayers(rank=stage * tp + tp_rank, tp_rank=tp_rank, pp_rank=stage, layers=mine)
            )
        first += size
    return tuple(ranks)


def stage_sizes(num_layers: int, parallel: ParallelConfig) -> list[int]:
    """Layers of each stage. The remainder of an even split goes to the stages before the last one,
    which also holds the output head."""
    stages = parallel.pipeline_parallel_size
    if parallel.pipeline_partition is not None:
        sizes = list(parallel.pipeline_partition)
        if len(sizes) != stages or sum(sizes) != num_layers:
            raise ConfigError(
                Problem(
                    "parallel.pipeline_partition",
                    f"{stages} numbers that add up to {num_layers} layers",
                    str(sizes),
                )
            )
        return sizes
    if stages > num_layers:
        raise ConfigError(
            Problem(
                "parallel.pipeline_parallel_size",
                f"at most {num_layers}, one layer a stage",
                str(stages),
            )
        )
    sizes = [num_layers // stages] * stages
    for i in range(num_layers % stages):
        sizes[-2 - i] += 1
    return sizes


def _refuse_sharing_across_stages(layers: Sequence[CacheLayer]) -> None:
    names = {layer.name for layer in layers}
    for layer in layers:
        if layer.shares_with is not None and layer.shares_with not in names:
            raise ConfigError(
                Problem(
                    "parallel.pipeline_parallel_size",
                    f"{layer.name} in the stage of {layer.shares_with}, whose cache it reads",
                    "a split between them",
                    "set parallel.pipeline_partition so that they stay together",
                )
            )


def with_block_size(spec: KVCacheSpec, block_size: int) -> KVCacheSpec:
    return spec if spec.block_size == block_size else spec.with_block_size(block_size)


def padded_to(spec: KVCacheSpec, page_size_bytes: int | None) -> KVCacheSpec:
    """spec with its page padded; None leaves it as it is."""
    if page_size_bytes is None:
        return spec
    return replace(spec, page_size_padded=None).with_padded_page(page_size_bytes)
