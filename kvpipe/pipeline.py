"""The stages in order, one line each: RunConfig -> ResolvedRun -> ... -> Result.

`prepare` finds every mistake and touches nothing; `execute` runs the stages. Each stage is given
the parts it needs and returns a frozen value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any

from kvpipe.backends.base import Backend
from kvpipe.cache.addresses import AddressMap
from kvpipe.cache.plan import Plan
from kvpipe.engines.base import Engine, EngineRules
from kvpipe.errors import CardDemand, ConfigError, DoesNotFit, Problem
from kvpipe.layouts.base import LayoutChoice
from kvpipe.plugins import REGISTRIES
from kvpipe.processes.agree import on_every_rank, place, world
from kvpipe.request.confdir import shipped_option
from kvpipe.request.config import RunConfig, collect
from kvpipe.request.typed import PLAIN, RANKS, Typed
from kvpipe.stages.allocation.addresses import address_map
from kvpipe.stages.allocation.base import Allocation, AllocationRequest
from kvpipe.stages.allocation.kernel_sizes import whole_block_sizes
from kvpipe.stages.allocation.placements import LETTERED, SLOTTED
from kvpipe.stages.binding.base import Binding, BindingRequest, BoundCache
from kvpipe.stages.grouping.base import Grouping, GroupingRequest
from kvpipe.stages.grouping.planning import COMPARED
from kvpipe.stages.profiling.base import (
    AskedWhenNeeded,
    MemoryProfile,
    Profiling,
    ProfilingRequest,
    demanded,
)
from kvpipe.stages.profiling.every_rank import profile_every_rank
from kvpipe.stages.validation.base import ResolvedRun, Validation
from kvpipe.stages.validation.layers import stage_sizes


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A request that is right: checked, resolved, and the composed values it came from.

    said: keys that the user set; words: the overrides that say so; typed: how advice is written
    for the line that they came from. from_log: `key=value` of those that an engine's log gave.
    """

    raw: Mapping[str, Any]
    config: RunConfig
    resolved: ResolvedRun
    said: frozenset[str] = frozenset()
    words: tuple[str, ...] = ()
    from_log: tuple[str, ...] = ()
    typed: Typed = PLAIN

    def as_typed(self, changes: Mapping[str, Any]) -> str:
        """Changed settings as the user would write them."""
        sizes = self.config.parallel
        return self.typed.words(
            changes, {key: getattr(sizes, key.partition(".")[2]) for key in RANKS}
        )


@dataclass(frozen=True, kw_only=True)
class Result:
    """What the five stages made. addresses, bound: one a distinct rank; the first is rank 0's.

    The memory lives as long as the Result. timings: seconds a stage, in order.
    """

    prepared: Prepared
    profile: MemoryProfile
    plan: Plan
    backend: Backend
    addresses: tuple[AddressMap, ...]
    bound: tuple[BoundCache, ...]
    timings: Mapping[str, float] = field(default_factory=dict)


def prepare(raw: Mapping[str, Any], fallback: Mapping[str, Any] | None = None) -> Prepared:
    """The checked and resolved request; ConfigError with every problem of every kind.

    fallback: composed values without the user's own, which stand in for wrong ones so that later
    checks can still run.
    """
    config, problems = collect(raw, fallback)
    if config is None:
        raise ConfigError(problems)
    try:
        resolved = config.plugins["validation"].make(Validation).run(config)
    except ConfigError as error:
        raise ConfigError([*problems, *error.problems]) from error
    if problems:
        raise ConfigError(problems)
    return Prepared(raw=raw, config=config, resolved=resolved)


def execute(prepared: Prepared) -> Result:
    """Stages 2 to 5. DoesNotFit when the memory is too small for the request."""
    config, resolved, timings = prepared.config, prepared.resolved, dict[str, float]()
    plugins = config.plugins
    backend = make_backend(config, resolved.backend)
    with _timed(timings, "profiling"):
        profile = on_every_rank(lambda: profile_ranks(prepared, backend), resolved.parallel)
    with _timed(timings, "grouping"):
        try:
            plan = plan_with(prepared, profile.available_kv_bytes)
        except DoesNotFit as error:
            _check_places(prepared, error)
            error.demand = error.demand or demanded_of(profile, error)
            raise
    with _timed(timings, "allocation"):
        addresses = _addresses(config, resolved, plan)
    bound: list[BoundCache] = []
    for rank, where in addresses.items():
        with _timed(timings, "allocation"):
            request = AllocationRequest(config=plan.ranks[rank].config, addresses=where)
            buffers = plugins["allocation"].make(Allocation).run(request, backend)
        with _timed(timings, "binding"):
            asked = _binding(prepared, plan, rank, buffers)
            bound.append(plugins["binding"].make(Binding).run(asked, backend))
    return Result(
        prepared=prepared,
        profile=profile,
        plan=plan,
        backend=backend,
        addresses=tuple(addresses.values()),
        bound=tuple(bound),
        timings=timings,
    )


def profile_ranks(prepared: Prepared, backend: Backend | None = None) -> MemoryProfile:
    """Stage 2 alone. backend: where it was made already."""
    config = prepared.config
    return profile_every_rank(
        config.plugins["profiling"].make(Profiling),
        profiling_request(prepared),
        backend or AskedWhenNeeded(lambda: make_backend(config, prepared.resolved.backend)),
        sizes=config.parallel.rank_memory_bytes,
        may_exceed_device=config.cache.may_exceed_device,
    )


def plan_with(
    prepared: Prepared, memory: Sequence[int], compared: Sequence[EngineRules] = COMPARED
) -> Plan:
    """Stage 3 alone: the plan of this request in `memory` bytes a rank. `auto` is a length that
    runs: where an engine would settle on one that it can never schedule, the longest that it can.
    """
    request = _grouping(prepared.config, prepared.resolved, tuple(memory), tuple(compared))
    grouping = prepared.config.plugins["grouping"].make(Grouping)
    plan = grouping.run(request)
    held = plan.capacity
    if not request.fit or held is None or held.requests_at_peak or not held.longest_request:
        return plan
    limits = request.limits.with_length(held.longest_request)
    runs = grouping.run(replace(request, limits=limits, fit=False))
    return replace(runs, requested_len=plan.requested_len)


def plan_of(prepared: Prepared) -> Plan:
    """Stages 2 and 3, those before memory is owned: what the request's memory becomes."""
    return plan_with(prepared, profile_ranks(prepared).available_kv_bytes, compared=())


def make_backend(config: RunConfig, name: str) -> Backend:
    """The resolved backend, with the user's options, or the shipped ones where `auto` chose it."""
    chosen = config.plugins["backend"]
    if chosen.name == name:
        return chosen.make(Backend)
    plugin = REGISTRIES["backend"].get(name)
    made: Backend = plugin(plugin.Options(**shipped_option("backend", name)))
    return made


@contextmanager
def _timed(timings: dict[str, float], stage: str) -> Iterator[None]:
    start = perf_counter()
    yield
    timings[stage] = timings.get(stage, 0.0) + perf_counter() - start


# --- the parts of the request that each stage is given ---
def profiling_request(prepared: Prepared) -> ProfilingRequest:
    """What stage 2 is asked."""
    config, resolved = prepared.config, prepared.resolved
    return ProfilingRequest(
        model=resolved.model,
        served_dtype=resolved.served_dtype,
        device=resolved.device,
        parallel=resolved.parallel,
        gpu_memory_utilization=resolved.gpu_memory_utilization,
        kv_cache_memory_bytes=config.cache.kv_cache_memory_bytes,
        max_num_batched_tokens=resolved.limits.max_num_batched_tokens,
        max_num_seqs=resolved.max_num_seqs,
        stage_layers=tuple(stage_sizes(resolved.model.num_layers, config.parallel)),
        engine_version=config.plugins["engine"].make(Engine).rules.version,
    )


def block_rules(config: RunConfig) -> EngineRules:
    """ConfigError where the engine is planned by an arithmetic of its own, and owns no blocks."""
    choice = config.plugins["engine"]
    made = choice.make(Engine)
    if isinstance(made, EngineRules):
        return made
    raise ConfigError(
        Problem(
            choice.key,
            "an engine whose blocks kvpipe manages (kvpipe, vllm, vllm_0_17, vllm_0_33)",
            f"'{choice.name}', which is planned only",
            f"`kvpipe run engine={choice.name}` says what its memory becomes",
        )
    )


def _grouping(
    config: RunConfig,
    resolved: ResolvedRun,
    memory: tuple[int, ...],
    compared: tuple[EngineRules, ...],
) -> GroupingRequest:
    placement = config.placement.name
    return GroupingRequest(
        ranks=tuple(rank.layers for rank in resolved.ranks),
        limits=resolved.limits,
        memory=memory,
        rules=block_rules(config),
        fit=resolved.fit,
        disable_hybrid_kv_cache_manager=config.cache.disable_hybrid_kv_cache_manager,
        num_gpu_blocks_override=config.cache.num_gpu_blocks_override,
        kv_cache_layout=placement.upper() if placement in LETTERED else None,
        max_num_seqs=resolved.max_num_seqs,
        compared=compared,
        may_place_slots=placement in SLOTTED,
        block_quantum=resolved.block_quantum,
        shares_prefixes=config.cache.enable_prefix_caching,
        takes_scratch=getattr(config.plugins["binding"].make(Binding), "takes_scratch", False),
        kernel_sizes=whole_block_sizes(
            (layer.spec for rank in resolved.ranks for layer in rank.layers),
            config.plugins["layout"].make(LayoutChoice),
            placement,
            any_size=resolved.device.type == "cpu",
        ),
    )


def _addresses(config: RunConfig, resolved: ResolvedRun, plan: Plan) -> dict[int, AddressMap]:
    """Rank -> its address map, for the first rank of each distinct config; among several processes
    for this process's rank alone."""
    layout = config.plugins["layout"].make(LayoutChoice)
    first: dict[int, AddressMap] = {}
    seen: list[Any] = []
    here = world()
    mine = None if here is None else place(here, resolved.parallel)
    for rank, of_rank in enumerate(plan.ranks):
        if mine not in (None, rank):
            continue
        if of_rank.config not in seen:
            seen.append(of_rank.config)
            first[rank] = address_map(
                of_rank.config,
                plan.shared_layers,
                layout,
                config.placement.name,
                any_kernel_block=resolved.device.type == "cpu",
                splits_apart_pages=block_rules(config).splits_apart_pages,
            )
    return first


def demanded_of(profile: MemoryProfile, error: DoesNotFit) -> CardDemand | None:
    """Of the rank that lacks most: what is charged there, and the cache that one request needs."""
    if len(error.needed_bytes) != len(profile.ranks):
        return None
    lacks = [
        n - r.available_kv_bytes for n, r in zip(error.needed_bytes, profile.ranks, strict=True)
    ]
    worst = max(range(len(lacks)), key=lacks.__getitem__)
    memory = profile.ranks[worst]
    needed = error.needed_bytes[worst]
    return demanded(
        memory.requested, memory.charged, memory.total, rank=memory.rank, cache_bytes=needed
    )


def _check_places(prepared: Prepared, too_small: DoesNotFit) -> None:
    """ConfigError for what no amount of memory mends (a block size that no kernel divides, layers
    that a placement cannot hold): it is told before advice on how to make the request fit."""
    ample = 4 * max(too_small.needed_bytes, default=0) + 2**40
    with suppress(DoesNotFit):
        ranks = (ample,) * len(prepared.resolved.ranks)
        _addresses(prepared.config, prepared.resolved, plan_with(prepared, ranks, ()))


def _binding(prepared: Prepared, plan: Plan, rank: int, buffers: Any) -> BindingRequest:
    model = prepared.config.plugins["model"].options
    return BindingRequest(
        config=plan.ranks[rank].config,
        buffers=buffers,
        limits=plan.limits,
        layer_names=tuple(layer.name for layer in prepared.resolved.ranks[rank].layers),
        kv_sharing_fast_prefill=prepared.config.cache.kv_sharing_fast_prefill,
        model_config=getattr(model, "path", None) or getattr(model, "repo", None),
        model_dtype=prepared.resolved.served_dtype,
        num_ranks=len(plan.ranks),
    )
