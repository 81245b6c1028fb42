"""A replay as lines for a terminal. Figures say what they count; blocks are of the whole pool."""

from __future__ import annotations

from collections.abc import Iterator

from kvpipe.cache.load import ENDS
from kvpipe.simulation.hits_text import hits
from kvpipe.simulation.result import ReplayResult
from kvpipe.text.figures import count
from kvpipe.text.lines import wrap

_BARS = " ▁▂▃▄▅▆▇█"
_MOST_BARS = 60
_LABEL = 12  # columns
_MOST_REPLICAS = 12  # whose requests are listed


def render(
    result: ReplayResult,
    heading: str = "",
    width: int = 80,
    timing: str = "",
    recomputed: int | None = None,
) -> str:
    """Plain text: a labelled fact each, on lines of at most `width` columns. heading: what was
    replayed on what; timing: what a step takes, in words. recomputed: tokens that preemptions had
    computed again (None: not known)."""
    lines: list[str] = []
    bars = min(_MOST_BARS, width - _LABEL)
    for label, fact in _facts(result, heading, timing, bars, recomputed):
        if label == "over time":  # spaces are bars of no height: not to be wrapped
            lines.append(label.ljust(_LABEL) + fact)
            continue
        hanging = [line.text for line in wrap(fact, width, "title", indent=" " * _LABEL)]
        lines += [label.ljust(_LABEL) + hanging[0][_LABEL:], *hanging[1:]]
    return "\n".join(lines)


def _facts(
    result: ReplayResult, heading: str, timing: str, bars: int, recomputed: int | None
) -> Iterator[tuple[str, str]]:
    """(label, fact); a fact without a label belongs to the one before."""
    if heading:
        yield "replay", heading
    yield "requests", _requests(result)
    yield from _replicas(result)
    if result.counts.preemptions and recomputed is not None:
        yield "", _cost(result, recomputed)
    yield (
        "together",
        f"at most {result.max_running:,}, {result.mean_running:.1f} on average over "
        f"{result.busy_s:,.1f} s of work in {count(result.steps, 'step')} (simulated)",
    )
    if result.requests_steady is not None:
        held = count(result.requests_steady, "request")
        of = count(result.request_len, "token")
        yield "", f"capacity's closed form: {held} of {of}, steady ({ENDS['steady']})"
    yield from _times(result)
    if timing:
        yield "a step", timing
    yield (
        "blocks",
        f"at most {result.peak_in_use:,} of {result.usable_blocks:,} in use "
        f"({_percent(result.peak_in_use, result.usable_blocks)}, "
        f"{_gib(result.peak_in_use * result.bytes_per_block)})",
    )
    if result.points:
        yield "over time", _sparkline(result, bars)
    if drafted := result.counts.drafted_tokens:
        accepted = result.counts.accepted_tokens
        yield (
            "drafts",
            f"{accepted:,} of {count(drafted, 'drafted token')} accepted "
            f"({_percent(accepted, drafted)}; trace.acceptance_rate)",
        )
    yield "pool", _pool(result)
    yield from zip(("prefix", ""), hits(result), strict=False)
    yield "ran dry", _dry(result)
    yield from _gap(result)


def _replicas(result: ReplayResult) -> Iterator[tuple[str, str]]:
    """What each of several did; from here on figures of blocks and steps are of the busiest."""
    if not result.replicas:
        return
    shares = result.replicas
    shown = ", ".join(f"{share.requests:,}" for share in shares[:_MOST_REPLICAS])
    more = "" if len(shares) <= _MOST_REPLICAS else f" and {len(shares) - _MOST_REPLICAS:,} more"
    copies, several = result.copies, len(shares) // result.copies
    what = f"{several:,} of {copies:,} data-parallel copies each" if copies > 1 else f"{several:,}"
    yield (
        "replicas",
        f"{what}, with {shown}{more} requests; counts and waits are of all, steps, blocks "
        f"and the picture of number {result.busiest + 1}, whose pool was fullest",
    )


def _times(result: ReplayResult) -> Iterator[tuple[str, str]]:
    """Simulated seconds; what a step takes, whoever replays says."""
    told = (
        ("wait", result.wait, "in the queue", 1, "s"),
        ("first token", result.first_token, "after arrival", 1, "s"),
        ("each token", result.each_token, "after the one before", 1000, "ms"),
    )
    for label, found, words, factor, unit in told:
        if found is not None:
            values = [f"{factor * value:,.2f}" for value in (found.p50, found.p90, found.p99)]
            yield label, f"{', '.join(values)} {unit} {words} (50%, 90%, 99% of requests)"
    if result.overload is not None:
        yield (
            "overloaded",
            f"{result.arrivals_s:,.0f} s of arrivals became {result.simulated_s:,.0f} s of work, "
            f"{result.overload:.1f} times as long: the load is not served",
        )


def _requests(result: ReplayResult) -> str:
    counts = result.counts
    parts = [f"{result.requests:,} in {result.trace}", f"{counts.finished:,} finished"]
    if counts.too_long:
        parts.append(f"{counts.too_long:,} longer than max_model_len {result.request_len:,}")
    if counts.never_fit:
        parts.append(f"{counts.never_fit:,} too large for the pool")
    if counts.cut_short:
        parts.append(f"{counts.cut_short:,} cut at max_model_len")
    parts.append(count(counts.preemptions, "preemption"))
    return ", ".join(parts)


def _cost(result: ReplayResult, recomputed: int) -> str:
    share = _percent(recomputed, result.counts.stored_tokens)
    again = count(recomputed, "token")
    return f"preempted requests had {again} computed again ({share} of all that were computed)"


def _pool(result: ReplayResult) -> str:
    pool, why = result.pool, ""
    if pool.shared and not result.counts.hit_tokens and result.counts.preemptions:
        why = " (found again by preempted requests: their own)"
    return (
        f"{count(pool.allocated, 'block')} allocated, {pool.shared:,} shared{why}, "
        f"{pool.evicted:,} evicted, {pool.freed:,} freed"
    )


def _dry(result: ReplayResult) -> str:
    dry = result.ran_dry
    if dry is None:
        return "never"
    return (
        f"first at token {dry.token:,} ({dry.time_s:,.1f} s), when "
        f"{count(dry.running, 'request')} held {count(dry.held, 'token')}: {dry.reason}"
    )


def _gap(result: ReplayResult) -> Iterator[tuple[str, str]]:
    gap = result.largest_gap
    if gap is None:
        return
    sign = "more" if gap.blocks >= 0 else "fewer"
    yield (
        "gap",
        f"at most {count(round(abs(gap.blocks)), 'block')} {sign} than the closed form: "
        f"{gap.in_use:,} in use, {gap.linear_blocks:,.0f} computed, at {gap.time_s:,.1f} s with "
        f"{count(gap.running, 'request')}",
    )
    yield (
        "",
        f"= {gap.in_flight:+,} prefill in flight (a window also keeps what is computed), "
        f"{-gap.shared:+,} shared prefixes, {-gap.looseness:+,.0f} slack of the line (it charges "
        "every request a whole window and a full last block)",
    )


def _sparkline(result: ReplayResult, bars: int) -> str:
    """Blocks in use, as a share of the pool: the most in each of so many equal spans of time."""
    end = max(point.time_s for point in result.points) or 1.0
    most = [0] * bars
    for point in result.points:
        at = min(bars - 1, int(point.time_s / end * bars))
        most[at] = max(most[at], point.in_use)
    top = max(1, result.usable_blocks)
    return "".join(_BARS[-(-value * (len(_BARS) - 1) // top)] for value in most)


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / max(1, whole):.1f} %"


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:,.2f} GiB"
