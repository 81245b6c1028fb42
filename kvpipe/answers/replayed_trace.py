"""A trace that was asked for -> what serving it on the request's plan came to. Imports numpy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from kvpipe.answers.measured_subslots import Measured, Served, measured_subslots
from kvpipe.answers.replayed_ends import Replayed, status_at_ends
from kvpipe.answers.speed import Speed, speed_of
from kvpipe.answers.waits import Waits, is_timed, unknowable, unserved, waits_of, without_times
from kvpipe.cache.plan import Plan
from kvpipe.errors import ConfigError
from kvpipe.pipeline import Prepared
from kvpipe.simulation.play import read_trace, replay
from kvpipe.simulation.result import ReplayResult
from kvpipe.simulation.traces.base import TraceOptions, TraceRequest
from kvpipe.stages.profiling.base import MemoryProfile
from kvpipe.text.meanwhile import Tell


@dataclass(frozen=True, kw_only=True)
class AskedTrace:
    """waits: what is asked of each request's times. is_timed: whether steps have a length at all:
    without one no time that follows from it is known."""

    requests: Sequence[TraceRequest]
    options: TraceOptions
    speed: Speed
    waits: Waits
    is_timed: bool

    def known(self, result: ReplayResult) -> ReplayResult:
        return result if self.is_timed else without_times(result)

    def complaints(self, result: ReplayResult) -> tuple[str, ...]:
        """What was asked and is not served, a line each."""
        return tuple(unserved(self.known(result), self.waits))


@dataclass(frozen=True, kw_only=True)
class ServedTrace:
    """served: in sub-slots where these were measured to be worth it, with the times that are known.
    status: fits | may_not_fit, at both ends of the memory's estimate."""

    served: Served
    subslots: Measured | None
    status: str
    complaints: tuple[str, ...]


def asked_trace(prepared: Prepared) -> AskedTrace:
    """ConfigError for a trace that cannot be read, and for times that nothing can tell."""
    trace = read_trace(prepared.config.trace)
    speed, waits = speed_of(prepared, trace.options.efficiency), waits_of(prepared.config.want)
    timed = is_timed(trace.options, speed.bound)
    if not timed and (wrong := list(unknowable(waits, speed.why))):
        raise ConfigError(wrong)
    return AskedTrace(
        requests=trace.requests(),
        options=trace.options,
        speed=speed,
        waits=waits,
        is_timed=timed,
    )


def served_trace(
    prepared: Prepared, asked: AskedTrace, profile: MemoryProfile, plan: Plan, tell: Tell
) -> ServedTrace:
    """The trace served on the plan, and again where an end of the memory may decide."""
    play = partial(
        replay,
        asked.requests,
        options=asked.options,
        max_num_seqs=prepared.resolved.max_num_seqs,
        prefix_caching=prepared.config.cache.enable_prefix_caching,
        best=asked.speed.bound,
        copies=prepared.resolved.parallel.dp,
        together=bool(prepared.resolved.model.experts_per_token),
        tell=tell,
    )
    equal = Served(prepared=prepared, plan=plan, result=play(plan))
    served, subslots = measured_subslots(equal, profile.available_kv_bytes, play)
    complaints = asked.complaints(served.result)
    held = served.result.peak_in_use
    status = status_at_ends(
        served.prepared,
        profile,
        Replayed(plan=served.plan, held_blocks=held, serves=not complaints),
        lambda at_end: not asked.complaints(play(at_end)),
    )
    return ServedTrace(
        served=replace(served, result=asked.known(served.result)),
        subslots=subslots,
        status=status,
        complaints=complaints,
    )
