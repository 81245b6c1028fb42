"""What a replayed trace lacks: requests turned away, more than can be kept up with, long waits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from kvpipe.errors import Problem
from kvpipe.simulation.latencies import Latencies, Percentiles
from kvpipe.simulation.result import ReplayResult
from kvpipe.simulation.traces.base import TraceOptions
from kvpipe.text.figures import count

# Of the median first token: who reads along has left by then. Nobody asked for a bound, so the
# load counts as served; that must not be all that is said of it.
LONG_S = 10.0


@dataclass(frozen=True, kw_only=True)
class Waits:
    """Seconds that `percentile` percent of the requests may wait at most (None: any): in the queue,
    for the first token, between two tokens."""

    percentile: int
    wait_s: float | None = None
    first_token_s: float | None = None
    token_s: float | None = None


def waits_of(want: Mapping[str, Any]) -> Waits:
    """Of the section, whose values were checked; files of third parties lack some."""
    said = {name: want.get(f"{name}_ms") for name in ("wait", "first_token", "token")}
    seconds = {f"{name}_s": None if ms is None else ms / 1000 for name, ms in said.items()}
    return Waits(percentile=want.get("percentile", 99), **seconds)


def is_timed(options: TraceOptions, bound: object | None) -> bool:
    """Whether the time of a step is known: by model and card, or since it was set."""
    return (
        bound is not None or not options.step_seconds == options.prefill_tokens_per_second == "auto"
    )


def without_times(result: ReplayResult) -> ReplayResult:
    """Steps of a nominal time let requests meet; what they wait for, and whether they are kept up
    with, is not known then."""
    return replace(result, latencies=Latencies(), arrivals_s=0.0)


def unknowable(waits: Waits, why: str) -> Iterator[Problem]:
    """What was asked of times that are not known. why: they are not."""
    asked = {"wait": waits.wait_s, "first_token": waits.first_token_s, "token": waits.token_s}
    for name, most in asked.items():
        if most is not None:
            knob = "trace.step_seconds=0.02 sets one"
            yield Problem(f"want.{name}_ms", "steps whose time is known", why, knob)


def of(found: Percentiles, percentile: int) -> float:
    """50, 90 or 99."""
    return float(getattr(found, f"p{percentile}"))


def too_late(result: ReplayResult, waits: Waits) -> Iterator[tuple[str, float, float]]:
    """What waits longer than it may: (the wait's name in `want`, seconds found, seconds asked)."""
    asked = (
        ("wait", result.wait, waits.wait_s),
        ("first_token", result.first_token, waits.first_token_s),
        ("token", result.each_token, waits.token_s),
    )
    for name, found, most in asked:
        if found is not None and most is not None and of(found, waits.percentile) > most:
            yield name, of(found, waits.percentile), most


def turned_away(result: ReplayResult) -> Iterator[str]:
    """Requests that no server of this plan takes, a line a reason."""
    counts, of_all = result.counts, f"of {count(result.requests, 'request')}"
    if counts.too_long:
        many = counts.too_long > 1
        yield (
            f"scheduler.max_model_len: {counts.too_long:,} {of_all} {'are' if many else 'is'} "
            f"longer than {count(result.request_len, 'token')}, and {'were' if many else 'was'} "
            "turned away"
        )
    if counts.never_fit:
        yield (
            f"trace: {counts.never_fit:,} {of_all} are larger than the pool of "
            f"{count(result.usable_blocks, 'block')}, and were turned away"
        )


def unserved(result: ReplayResult, waits: Waits) -> Iterator[str]:
    """Why the load, as it was asked for, is not served; nothing where it is."""
    if not result.counts.finished:
        yield f"trace: not one of {result.requests:,} requests finished"
    yield from turned_away(result)
    if result.overload is not None:
        yield (
            f"trace: overloaded, {result.arrivals_s:,.0f} s of arrivals became "
            f"{result.simulated_s:,.0f} s of work; lower trace.arrival_rate_scale, or serve with "
            "more"
        )
    for name, found, most in too_late(result, waits):
        yield (
            f"want.{name}_ms: {waits.percentile}% of the requests wait {1000 * found:,.1f} ms, "
            f"{1000 * most:,.10g} were asked for"
        )


def slow_and_unasked(result: ReplayResult, waits: Waits) -> str:
    """That first tokens come late, where nobody said how late they may ("": they do not)."""
    found = result.first_token
    if found is None or found.p50 < LONG_S or waits.first_token_s is not None:
        return ""
    return (
        f"slow: first token {found.p50:,.1f} s after arrival at the median; nothing was asked of "
        "it, want.first_token_ms bounds it"
    )
