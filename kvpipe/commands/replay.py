"""`kvpipe replay`: profiling and grouping as in `run`, then a trace of requests. Owns no memory.

Files: replay.json (every figure) and blocks_over_time.svg (the plot).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from kvpipe.answers.cache_range import cache_words, poorest
from kvpipe.answers.measured_subslots import Served, measured_subslots
from kvpipe.answers.replayed_ends import Replayed, status_at_ends
from kvpipe.answers.served import refused
from kvpipe.answers.speed import Speed, speed_of
from kvpipe.answers.uncounted import status_beside_weights, uncounted_words
from kvpipe.commands.base import Command
from kvpipe.commands.unread_wants import users_beside_trace
from kvpipe.errors import ConfigError, DoesNotFit, Problem, problems_of
from kvpipe.pipeline import Prepared, plan_with, profile_ranks
from kvpipe.report.base import Answer
from kvpipe.report.identity import identity
from kvpipe.report.last_line import last_line
from kvpipe.report.sweep_table import Column, figure
from kvpipe.text.figures import count
from kvpipe.text.lines import Line, wrap
from kvpipe.text.meanwhile import meanwhile

if TYPE_CHECKING:  # they import numpy, which no plan does
    from kvpipe.simulation.result import ReplayResult
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
        from kvpipe.answers.waits import (
            is_timed,
            slow_and_unasked,
            unknowable,
            unserved,
            waits_of,
            without_times,
        )
        from kvpipe.simulation.play import read_trace, replay
        from kvpipe.simulation.plot import render_svg
        from kvpipe.simulation.recomputed import recomputed_tokens
        from kvpipe.simulation.text import render

        if "want.requests" in prepared.said:  # one is also what nobody said
            raise ConfigError(users_beside_trace(prepared.config.want["requests"], _USERS))
        trace = read_trace(prepared.config.trace)
        requests = trace.requests()
        speed, waits = speed_of(prepared, trace.options.efficiency), waits_of(prepared.config.want)
        timed = is_timed(trace.options, speed.bound)
        if not timed and (wrong := list(unknowable(waits, speed.why))):
            raise ConfigError(wrong)
        try:
            profile = profile_ranks(prepared)
            plan = plan_with(prepared, profile.available_kv_bytes, compared=())
        except DoesNotFit as error:
            raise refused(prepared, error) from None
        with meanwhile(sys.stderr if job is None else None) as tell:  # a sweep has a bar of its own
            play = partial(
                replay,
                requests,
                options=trace.options,
                max_num_seqs=prepared.resolved.max_num_seqs,
                prefix_caching=prepared.config.cache.enable_prefix_caching,
                best=speed.bound,
                copies=prepared.resolved.parallel.dp,
                together=bool(prepared.resolved.model.experts_per_token),
                tell=tell,
            )

            def complaints_of(result: ReplayResult) -> tuple[str, ...]:
                return tuple(unserved(result if timed else without_times(result), waits))

            served, subslots = measured_subslots(
                Served(prepared=prepared, plan=plan, result=play(plan)),
                profile.available_kv_bytes,
                play,
            )
            prepared, plan, result = served.prepared, served.plan, served.result
            complaints = complaints_of(result)
            status = status_at_ends(
                prepared,
                profile,
                Replayed(plan=plan, held_blocks=result.peak_in_use, serves=not complaints),
                lambda at_end: not complaints_of(play(at_end)),
            )
        result = result if timed else without_times(result)
        again = recomputed_tokens(requests, result)
        slow = slow_and_unasked(result, waits)
        timing = _timing(trace.options, speed)
        resolved = prepared.resolved
        heading = f"{resolved.model.name} on {resolved.device.name}"
        on = f"{heading}, {cache_words(poorest(profile))}{uncounted_words(resolved, profile)}"
        if plan.requested_len > plan.limits.max_model_len:
            on += f"; max_model_len lowered from {plan.requested_len:,}"
        document = {**identity(prepared, "kvpipe.replay"), **result.to_json()}
        if subslots is not None:
            document["subslots"] = subslots.to_json()
        status = status_beside_weights(resolved, profile) if status == "fits" else status
        about = f"{count(len(requests), 'request')} replayed"
        if status != "may_not_fit" or not complaints:  # where the line has room
            about += f" on {heading}"
        return Answer(
            status=status,
            verdict=last_line(status.replace("_", " "), about, serves=not complaints),
            exit_code=1 if complaints else 0,
            lines=lambda width: [
                *map(Line, render(result, on, width, timing, again).split("\n")),
                *(subslots.lines(width) if subslots else ()),
                *(wrap(slow, width, "warning", indent="") if slow else ()),
            ],
            document={**document, "step_time": timing, "recomputed_tokens": again},
            complaints=complaints,
            pictures={"blocks_over_time.svg": render_svg(result, heading)},
            fields={
                "max_running": result.max_running,
                "peak_in_use": result.peak_in_use,
                "preemptions": result.counts.preemptions,
            },
        )


def _timing(options: TraceOptions, speed: Speed) -> str:
    """What a step takes, in words."""
    if options.step_seconds != "auto" or options.prefill_tokens_per_second != "auto":
        return "as trace.step_seconds and trace.prefill_tokens_per_second say (set, not measured)"
    if speed.bound is None:
        return f"{speed.why}; trace.step_seconds sets it (counted as 20 ms, so that requests meet)"
    return speed.why


PLUGIN = Replay
