"""A replay as lines for a terminal. Figures say what they count; blocks are of the whole pool."""

from __future__ import annotations

from kvpipe.replay.result import ReplayResult

_BARS = " ▁▂▃▄▅▆▇█"
_WIDTH = 60


def render(result: ReplayResult) -> str:
    """Plain text, one fact a line."""
    lines = [
        _requests(result),
        f"together    at most {result.max_running}, {result.mean_running:.1f} on average over "
        f"{result.busy_s:,.1f} s of work in {result.steps:,} steps (simulated)",
        _closed_form(result),
        f"blocks      at most {result.peak_in_use:,} of {result.usable_blocks:,} in use "
        f"({_percent(result.peak_in_use, result.usable_blocks)}, "
        f"{_gib(result.peak_in_use * result.bytes_per_block)})",
        f"over time   {_sparkline(result)}",
        _pool(result),
        _hits(result),
        _dry(result),
        *_gap(result),
    ]
    return "\n".join(line for line in lines if line)


def _requests(result: ReplayResult) -> str:
    counts = result.counts
    parts = [f"{result.requests:,} in {result.trace}", f"{counts.finished:,} finished"]
    if counts.too_long:
        parts.append(f"{counts.too_long:,} longer than max_model_len {result.request_len:,}")
    if counts.never_fit:
        parts.append(f"{counts.never_fit:,} too large for the pool")
    if counts.cut_short:
        parts.append(f"{counts.cut_short:,} cut at max_model_len")
    parts.append(f"{counts.preemptions:,} preemptions")
    return "requests    " + ", ".join(parts)


def _closed_form(result: ReplayResult) -> str:
    if result.requests_steady is None:
        return ""
    return (
        f"            capacity's closed form: {result.requests_steady:,} requests of "
        f"{result.request_len:,} tokens"
    )


def _pool(result: ReplayResult) -> str:
    pool = result.pool
    return (
        f"pool        {pool.allocated:,} blocks allocated, {pool.shared:,} shared, "
        f"{pool.evicted:,} evicted, {pool.freed:,} freed"
    )


def _hits(result: ReplayResult) -> str:
    if not result.prefix_caching:
        return "prefix      not cached (cache.enable_prefix_caching, or a group that cannot)"
    counts = result.counts
    line = (
        f"prefix      {counts.hit_tokens:,} of {counts.prompt_tokens:,} prompt tokens cached "
        f"({100 * result.hit_rate:.1f} %)"
    )
    if (rate := result.prefix_block_hit_rate) is not None:
        line += (
            f"; {counts.hit_prefix_blocks:,} of the trace's {counts.prefix_blocks:,} prefix blocks "
            f"({100 * rate:.1f} %)"
        )
    return line


def _dry(result: ReplayResult) -> str:
    dry = result.ran_dry
    if dry is None:
        return "ran dry     never"
    return (
        f"ran dry     first at token {dry.token:,} ({dry.time_s:,.1f} s), when {dry.running} "
        f"requests held {dry.held:,} tokens: {dry.reason}"
    )


def _gap(result: ReplayResult) -> list[str]:
    gap = result.largest_gap
    if gap is None:
        return []
    sign = "more" if gap.blocks >= 0 else "fewer"
    return [
        f"gap         at most {abs(gap.blocks):,.0f} blocks {sign} than the closed form: "
        f"{gap.in_use:,} in use, {gap.linear_blocks:,.0f} computed, at {gap.time_s:,.1f} s with "
        f"{gap.running} requests",
        f"            = {gap.in_flight:+,} prefill in flight (a window also keeps what is "
        f"computed), {-gap.shared:+,} shared prefixes, {-gap.looseness:+,.0f} slack of the line "
        "(it charges every request a whole window and a full last block)",
    ]


def _sparkline(result: ReplayResult) -> str:
    """Blocks in use, as a share of the pool: the most in each of _WIDTH equal spans of time."""
    if not result.points:
        return ""
    end = max(point.time_s for point in result.points) or 1.0
    most = [0] * _WIDTH
    for point in result.points:
        at = min(_WIDTH - 1, int(point.time_s / end * _WIDTH))
        most[at] = max(most[at], point.in_use)
    top = max(1, result.usable_blocks)
    return "".join(_BARS[-(-value * (len(_BARS) - 1) // top)] for value in most)


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / max(1, whole):.1f} %"


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:,.2f} GiB"
