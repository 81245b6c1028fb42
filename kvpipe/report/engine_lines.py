"""What engines print for the same plan, next to what it holds, with one line on why they differ.

The reasons are read off the numbers themselves, so that an engine from a plugin is explained too.
"""

from __future__ import annotations

from collections.abc import Iterable

from kvpipe.cache.plan import Capacity, EngineCapacity, Plan
from kvpipe.text.lines import Line, Section


def printed_section(plan: Plan, cap: Capacity, how: str) -> Section:
    """An engine whose line is the true one at the peak, as kvpipe's own is, is not repeated."""
    rows = [
        _true_row("holds, steady state", cap, cap.steady_blocks),
        _true_row("holds, at the peak", cap, cap.peak_blocks),
    ]
    lines = [line for line in plan.printed if not _is_true(line, cap)]
    others = {_printed_row(line): line for line in lines}
    return Section(
        title=f"What it holds, and what engines would print for it ({how})",
        headers=("", "tokens", f"requests of {cap.request_len:,}"),
        align="lrr",
        rows=[*rows, *others],
        paragraphs=_why(others.values(), plan, cap),
    )


def _why(lines: Iterable[EngineCapacity], plan: Plan, cap: Capacity) -> list[Line]:
    """One sentence a difference; engines that differ alike share it."""
    alike: dict[str, list[str]] = {}
    for line in lines:
        alike.setdefault(difference(line, plan, cap), []).append(line.engine)
    return [Line(f"{', '.join(engines)}: {words}") for words, engines in alike.items()]


def _is_true(line: EngineCapacity, cap: Capacity) -> bool:
    """The line of an engine that prints what the plan holds at the peak."""
    blocks = cap.peak_blocks
    if not blocks or line.num_tokens is None or line.max_concurrency is None:
        return False
    tokens = cap.usable_blocks * cap.request_len // blocks
    return (
        line.num_tokens == tokens and abs(line.max_concurrency - cap.usable_blocks / blocks) < 1e-9
    )


def _true_row(label: str, cap: Capacity, blocks: int) -> tuple[str, str, str]:
    if not blocks:
        return label, "any", "any"
    tokens = cap.usable_blocks * cap.request_len // blocks
    # Cut off, not rounded: 1.996 requests are not two.
    return label, f"{tokens:,}", f"{cap.usable_blocks * 100 // blocks / 100:,.2f}"


def _printed_row(line: EngineCapacity) -> tuple[str, str, str]:
    tokens = "-" if line.num_tokens is None else f"{line.num_tokens:,}"
    requests = "-" if line.max_concurrency is None else f"{line.max_concurrency:,.2f}"
    return f"{line.engine} prints", tokens, requests


def difference(line: EngineCapacity, plan: Plan, cap: Capacity) -> str:
    """Why the engine's line is not what the plan holds, as one sentence."""
    if line.refused:
        return f"would not start: {line.refused}"
    steady = cap.steady_blocks
    if line.num_tokens is None or not steady:
        return "prints no such line here"
    reasons = []
    if _counts_the_null_block(line, plan, cap):
        reasons.append("counts the null block, which no request gets")
    if _is_concurrency_times_length(line, cap):
        if cap.peak_blocks != cap.steady_blocks:
            reasons.append("its tokens are its concurrency x max_model_len, every request at peak")
    elif len(plan.groups) > 1:
        reasons.append(f"shares all blocks evenly between {len(plan.groups)} groups")
    elif steady * plan.groups[0].spec.block_size < cap.request_len:
        reasons.append("its tokens are blocks x block_size, as if every token stayed")
    true_tokens = cap.usable_blocks * cap.request_len // steady
    return "; ".join([*reasons, _compared(line.num_tokens, true_tokens)])


def _counts_the_null_block(line: EngineCapacity, plan: Plan, cap: Capacity) -> bool:
    """Blocks in its concurrency, or in its tokens, that requests are never given."""
    if plan.num_blocks == cap.usable_blocks or line.num_tokens is None:
        return False
    in_requests = line.max_concurrency is not None and (
        line.max_concurrency * cap.peak_blocks > cap.usable_blocks + 1e-6 * plan.num_blocks
    )
    smallest = min(group.spec.block_size for group in plan.groups)
    usable_tokens = cap.usable_blocks // len(plan.groups) * smallest
    return in_requests or usable_tokens < line.num_tokens <= plan.num_blocks * smallest


def _compared(printed: int, true_tokens: int) -> str:
    if printed == true_tokens:
        return "the same as the steady state"
    if not true_tokens or 0.9 < printed / true_tokens < 1.1:
        return f"{printed - true_tokens:+,} tokens against the steady state"
    return f"{printed / true_tokens:.2f} x the tokens of the steady state"


def _is_concurrency_times_length(line: EngineCapacity, cap: Capacity) -> bool:
    if line.max_concurrency is None or line.num_tokens is None:
        return False
    return int(line.max_concurrency * cap.request_len) == line.num_tokens
