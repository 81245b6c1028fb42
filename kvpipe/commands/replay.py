"""`kvpipe replay`: profiling and grouping as in `run`, then a trace of requests. Owns no memory.

Files: replay.json (every figure) and blocks_over_time.svg (the plot).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kvpipe.answers.cache_range import cache_words, poorest
from kvpipe.answers.served import refused
from kvpipe.answers.speed import Speed
from kvpipe.answers.uncounted import status_beside_weights, uncounted_words
from kvpipe.commands.base import Command
from kvpipe.commands.unread_wants import users_beside_trace
from kvpipe.errors import ConfigError, DoesNotFit, Problem, problems_of
from kvpipe.pipeline import Prepared, plan_with, profile_ranks
from kvpipe.report.base import Answer
from kvpipe.report.identity import identity
from kvpipe.report.last_line import last_line
from kvpipe.report.sweep_table import Column, figure
from kvpipe.stages.profiling.base import MemoryProfile
from kvpipe.stages.validation.base import ResolvedRun
from kvpipe.text.figures import count
from kvpipe.text.lines import Line, wrap
from kvpipe.text.meanwhile import meanwhile

if TYPE_CHECKING:  # they import numpy, which no plan does
    from kvpipe.answers.measured_subslots import Served
    from kvpipe.answers.replayed_trace import AskedTrace, ServedTrace
    from kvpipe.simulation.traces.base import TraceOptions


_USERS = "kvpipe run plans for users that are simply there"


class Replay(Command):
    summary = "A trace of real requests, step by step, through the block manager on this plan"
    reads = ("trace", "want")
    wants = ("requests", "token_ms", "first_token_ms", "wait_ms", "percentile")
    example = "kvpipe replay model=llama device=h100_80gb trace=azure_code_sample"
    columns = (
        Column(title="together", align="r", text=figure("max_running")),
        Column(title="peak blocks", align="r", text=figure("peak_in_use")),
        Column(title="preemptions", align="r", text=figure("preemptions")),
    )
    files = ("replay.json", "blocks_over_time.svg")
    legend = ("together: most requests that ran at once",)

    @classmethod
    def wrong(cls, raw: Mapping[str, Any]) -> Sequence[Problem]:
        from kvpipe.simulation.play import read_trace

        problems = problems_of(lambda: read_trace(raw.get("trace") or {}))
        want = raw.get("want")
        users = want.get("requests") if isinstance(want, Mapping) else None
        if users in (None, 1):
            return problems
        return [*problems, users_beside_trace(users, _USERS)]

    def run(self, prepared: Prepared, job: str | None) -> Answer:
        from kvpipe.answers.replayed_trace import asked_trace, served_trace

        if "want.requests" in prepared.said:  # one is also what nobody said
            raise ConfigError(users_beside_trace(prepared.config.want["requests"], _USERS))
        asked = asked_trace(prepared)
        try:
            profile = profile_ranks(prepared)
            plan = plan_with(prepared, profile.available_kv_bytes, compared=())
        except DoesNotFit as error:
            raise refused(prepared, error) from None
        with meanwhile(sys.stderr if job is None else None) as tell:  # a sweep has a bar of its own
            found = served_trace(prepared, asked, profile, plan, tell)
        return _answer(asked, found, profile)


def _answer(asked: AskedTrace, found: ServedTrace, profile: MemoryProfile) -> Answer:
    from kvpipe.answers.waits import slow_and_unasked
    from kvpipe.simulation.plot import render_svg
    from kvpipe.simulation.recomputed import recomputed_tokens
    from kvpipe.simulation.text import render

    prepared, result, subslots = found.served.prepared, found.served.result, found.subslots
    resolved = prepared.resolved
    again = recomputed_tokens(asked.requests, result)
    slow = slow_and_unasked(result, asked.waits)
    timing = _timing(asked.options, asked.speed)
    on = _where(found.served, profile)
    status = found.status
    status = status_beside_weights(resolved, profile) if status == "fits" else status
    return Answer(
        status=status,
        verdict=_verdict(status, len(asked.requests), found),
        exit_code=1 if found.complaints else 0,
        lines=lambda width: [
            *map(Line, render(result, on, width, timing, again).split("\n")),
            *(subslots.lines(width) if subslots else ()),
            *(wrap(slow, width, "warning", indent="") if slow else ()),
        ],
        document={
            **identity(prepared, "kvpipe.replay"),
            **result.to_json(),
            **({} if subslots is None else {"subslots": subslots.to_json()}),
            "step_time": timing,
            "recomputed_tokens": again,
        },
        complaints=found.complaints,
        pictures={"blocks_over_time.svg": render_svg(result, _heading(resolved))},
        fields={
            "max_running": result.max_running,
            "peak_in_use": result.peak_in_use,
            "preemptions": result.counts.preemptions,
        },
    )


def _heading(resolved: ResolvedRun) -> str:
    return f"{resolved.model.name} on {resolved.device.name}"


def _where(served: Served, profile: MemoryProfile) -> str:
    """The model, the device and the cache that the trace was served in."""
    resolved, plan = served.prepared.resolved, served.plan
    words = f"{_heading(resolved)}, {cache_words(poorest(profile))}"
    words += uncounted_words(resolved, profile)
    if plan.requested_len > plan.limits.max_model_len:
        words += f"; max_model_len lowered from {plan.requested_len:,}"
    return words


def _verdict(status: str, num_requests: int, found: ServedTrace) -> Line:
    about = f"{count(num_requests, 'request')} replayed"
    if status != "may_not_fit" or not found.complaints:  # where the line has room
        about += f" on {_heading(found.served.prepared.resolved)}"
    return last_line(status.replace("_", " "), about, serves=not found.complaints)


def _timing(options: TraceOptions, speed: Speed) -> str:
    """What a step takes, in words."""
    if options.step_seconds != "auto" or options.prefill_tokens_per_second != "auto":
        return "as trace.step_seconds and trace.prefill_tokens_per_second say (set, not measured)"
    if speed.bound is None:
        return f"{speed.why}; trace.step_seconds sets it (counted as 20 ms, so that requests meet)"
    return speed.why


PLUGIN = Replay
