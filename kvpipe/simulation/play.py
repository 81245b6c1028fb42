"""The `trace` section of a request, and a plan -> ReplayResult."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from kvpipe.blocks import BlockManager
from kvpipe.cache.plan import Plan
from kvpipe.errors import ConfigError, Problem
from kvpipe.registry import Registry
from kvpipe.request.schema import check_section, shown
from kvpipe.simulation.arrivals import Arrivals
from kvpipe.simulation.data_parallel import Copies
from kvpipe.simulation.latencies import Latencies
from kvpipe.simulation.ledger import Ledger
from kvpipe.simulation.replicas import played, told_together
from kvpipe.simulation.result import ReplayResult
from kvpipe.simulation.routing import ROUTINGS
from kvpipe.simulation.serving import Serving
from kvpipe.simulation.step_time import (
    NOMINAL_SECONDS,
    NOMINAL_TOKENS_PER_SECOND,
    NominalStep,
    StepTime,
)
from kvpipe.simulation.traces.base import Trace, TraceOptions, TraceRequest
from kvpipe.text.figures import count
from kvpipe.text.meanwhile import Tell, silent

TRACES: Registry[type[Trace]] = Registry("trace.name", "kvpipe.simulation.traces", "kvpipe.traces")

MOST_BLOCKS = 2**31  # block ids have 32 bits


def read_trace(section: Mapping[str, Any]) -> Trace:
    """The trace that a `trace` section asks for, its options checked; ConfigError otherwise."""
    name = section.get("name", "none") if isinstance(section, Mapping) else section
    if not isinstance(name, str) or name == "none":
        raise ConfigError(
            Problem(
                "trace",
                "requests to replay",
                "none" if name == "none" else shown(name),
                "choose trace=azure_code_sample, mooncake_sample, synthetic, or azure, mooncake "
                "or vidur with trace.path=FILE",
            )
        )
    plugin = TRACES.get(name)
    options, problems = check_section("trace", plugin.Options, section)
    if problems or options is None:
        raise ConfigError(problems)
    return plugin(options)


def run(
    section: Mapping[str, Any],
    plan: Plan,
    *,
    max_num_seqs: int = 256,
    prefix_caching: bool = False,
) -> ReplayResult:
    """Read the trace of a `trace` section and replay it on rank 0 of a plan."""
    trace = read_trace(section)
    return replay(
        trace.requests(),
        plan,
        trace.options,
        max_num_seqs=max_num_seqs,
        prefix_caching=prefix_caching,
    )


def replay(
    requests: Sequence[TraceRequest],
    plan: Plan,
    options: TraceOptions,
    *,
    max_num_seqs: int = 256,
    prefix_caching: bool = False,
    best: StepTime | None = None,
    copies: int = 1,
    together: bool = False,
    tell: Tell = silent,
    latencies: Callable[[], Latencies] = Latencies,
) -> ReplayResult:
    """Serve the requests, in order of arrival, with at most max_num_seqs together on a replica, or
    on each of its data-parallel copies. best: steps by model and card, where the options leave them
    to these. together: the copies share experts, and step together. tell: is told how many requests
    of a replica (a copy) are finished, a hundred times at most. latencies: makes what each server
    fills; what it raises ends the replay."""
    if options.replicas > 1:
        each = options.model_copy(update={"replicas": 1})
        alone = partial(
            replay,
            plan=plan,
            options=each,
            max_num_seqs=max_num_seqs,
            prefix_caching=prefix_caching,
            best=best,
            copies=copies,
            together=together,
            tell=tell,
            latencies=latencies,
        )
        return played(ROUTINGS[options.routing](requests, options.replicas), alone)
    each_step = step_time(options, best)
    finished = partial(_told, tell, -(-len(requests) // copies))
    seqs = min(max_num_seqs, len(requests))
    servers = [
        _server(plan, options, seqs, prefix_caching, each_step, finished, latencies())
        for _ in range(copies)
    ]
    arrivals = Arrivals(requests, plan.limits.max_model_len, servers[0].counts)
    if copies == 1:
        servers[0].serve(arrivals)
        return _result(servers[0], plan, len(requests), _span(arrivals, options))
    several = Copies(servers, together)
    several.serve(arrivals)
    span = _span(arrivals, options)
    results = [
        _result(server, plan, sent, span)
        for server, sent in zip(servers, several.sent, strict=True)
    ]
    return replace(told_together(results), requests=len(requests), copies=copies)


def _server(
    plan: Plan,
    options: TraceOptions,
    seqs: int,
    prefix_caching: bool,
    each_step: StepTime,
    finished: Callable[[int], None],
    latencies: Latencies,
) -> Serving:
    manager = _manager(plan, seqs, prefix_caching)
    _refuse_drafts(manager)
    ledger = Ledger(manager, plan.capacity)
    return Serving(
        manager,
        options,
        seqs,
        ledger,
        step_time=each_step,
        on_finish=finished,
        latencies=latencies,
    )


def _result(serving: Serving, plan: Plan, requests: int, arrivals_s: float) -> ReplayResult:
    manager, ledger = serving.manager, serving.ledger
    busy = ledger.busy_s or 1.0
    return ReplayResult(
        trace=serving.options.name,
        requests=requests,
        counts=serving.counts,
        simulated_s=serving.now,
        busy_s=ledger.busy_s,
        steps=ledger.steps,
        max_running=ledger.peak_running,
        mean_running=ledger.request_seconds / busy,
        peak_in_use=ledger.peak_in_use,
        usable_blocks=manager.pool.num_blocks - 1,
        bytes_per_block=manager.config.bytes_per_block,
        prefix_caching=manager.prefix_caching,
        pool=manager.pool.stats(),
        ran_dry=serving.ran_dry,
        largest_gap=ledger.largest_gap,
        requests_steady=plan.capacity.requests_steady if plan.capacity else None,
        request_len=plan.limits.max_model_len,
        points=tuple(ledger.points),
        arrivals_s=arrivals_s,
        idle=tuple(ledger.idle),
        preempted_s=tuple(serving.preempted_s),
        latencies=serving.latencies,
        prefix_groups=serving.hits.by_group,
    )


def _told(tell: Tell, requests: int, finished: int) -> None:
    if finished % max(1, -(-requests // 100)) == 0:
        tell(f"{finished:,} of {count(requests, 'request')} finished")


def step_time(options: TraceOptions, best: StepTime | None) -> StepTime:
    """As it is set; else the best that is known, else the nominal one."""
    each, rate = options.step_seconds, options.prefill_tokens_per_second
    if each == "auto" and rate == "auto" and best is not None:
        return best
    return NominalStep(
        each=NOMINAL_SECONDS if each == "auto" else each,
        tokens_per_second=NOMINAL_TOKENS_PER_SECOND if rate == "auto" else rate,
    )


def _span(arrivals: Arrivals, options: TraceOptions) -> float:
    """Seconds from the first arrival to the last; 0 where all wait from the start."""
    return 0.0 if options.arrivals == "at_once" else arrivals.last_s / options.arrival_rate_scale


def _manager(plan: Plan, max_num_seqs: int, prefix_caching: bool) -> BlockManager:
    """ConfigError where the blocks' own tables are too large for this machine."""
    try:
        if plan.num_blocks >= MOST_BLOCKS:
            raise MemoryError
        # One table more than requests, for the one that is looked at before it is admitted.
        return BlockManager.from_plan(
            plan, max_num_requests=max_num_seqs + 1, prefix_caching=prefix_caching
        )
    except MemoryError as error:
        raise ConfigError(
            Problem(
                "command",
                "a pool that can be replayed here",
                count(plan.num_blocks, "block"),
                f"at most {MOST_BLOCKS:,} blocks are replayed: cache.kv_cache_memory_bytes="
                f"{(MOST_BLOCKS - 1) * plan.ranks[0].config.bytes_per_block}",
            )
        ) from error


def _refuse_drafts(manager: BlockManager) -> None:
    """ConfigError where drafted tokens cannot be taken back."""
    asked, room = manager.limits.num_lookahead_tokens, manager.max_draft_tokens
    if asked > room:
        raise ConfigError(
            Problem(
                "scheduler.num_speculative_tokens",
                f"at most {room}, to be taken back when they are rejected",
                str(asked),
                "set cache.mamba_cache_mode=align",
            )
        )
