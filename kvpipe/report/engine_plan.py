"""What an engine makes of its memory, told: budget, pools, users, what is lost, printed, flags."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from kvpipe.answers.served import Served
from kvpipe.cache.load import ENDS
from kvpipe.engines.plan import EnginePlan
from kvpipe.pipeline import Prepared
from kvpipe.report.identity import identity
from kvpipe.text.figures import percent, size
from kvpipe.text.lines import Command, Line, Section


def sections(plan: EnginePlan, model: str, device: str) -> list[Section]:
    """The answer of one engine, for a person."""
    return [_budget(plan, model, device), _pools(plan), _users(plan), _start(plan)]


def _budget(plan: EnginePlan, model: str, device: str) -> Section:
    rows = [
        (step.name, size(step.num_bytes), f"{step.how}, rule {step.mark}", step.source)
        for step in plan.budget.steps
    ]
    rows.append(("for the cache", size(plan.budget.num_bytes), "", ""))
    return Section(
        title=f"{plan.engine}, {model} on {device}: memory of the poorest rank",
        headers=("", "bytes", "known", "from"),
        align="lrll",
        rows=rows,
        paragraphs=[Line(f"how it differs: {plan.differs}", "faint")],
    )


def _pools(plan: EnginePlan) -> Section:
    return Section(
        title="Pools",
        headers=("pool", "holds", "of", "bytes", "rule", ""),
        align="lrlrll",
        rows=[
            (
                pool.name,
                f"{pool.count:,}",
                f"{pool.unit} of {size(pool.unit_bytes)}",
                size(pool.num_bytes),
                pool.mark,
                pool.rule,
            )
            for pool in plan.pools
        ],
        paragraphs=[Line(note) for note in plan.notes],
    )


def _users(plan: EnginePlan) -> Section:
    users, budget = plan.users, plan.budget.num_bytes
    most = "" if plan.max_requests is None else f" (the engine runs at most {plan.max_requests:,})"
    lines = [
        Line(
            f"peak ({ENDS['peak']}): {users.peak:,}; steady ({ENDS['steady']}): "
            f"{users.steady:,}{most}; one more lacks: {users.limit}"
        ),
        Line(f"tokens held: {plan.tokens:,}; longest request alone: {plan.longest:,} tokens"),
    ]
    lines += [
        Line(f"lost: {size(loss.num_bytes)} ({percent(loss.num_bytes, budget)}) {loss.name}")
        for loss in plan.lost
    ]
    return Section(title=f"Requests of {plan.length:,} tokens", paragraphs=lines)


def _start(plan: EnginePlan) -> Section:
    lines: list[Line | Command] = [Command(plan.start.command, "  ")]
    for name, text in plan.start.files.items():
        lines += [Line(f"  {name}:"), *(Line(f"    {line}") for line in text.splitlines())]
    return Section(
        title="What it prints, and how it is started",
        paragraphs=[Line(f"prints: {line}") for line in plan.printed],
        verbatim=lines,
    )


def document(plan: EnginePlan, prepared: Prepared) -> dict[str, Any]:
    """Every figure, with how it is known."""
    return {**identity(prepared, "kvpipe.engine_plan"), **figures(plan)}


def document_of_ends(ends: Served) -> dict[str, Any]:
    """The cache and the users of one copy, at the ends of the memory's estimate."""
    held = {"low": ends.low, "best": ends.best, "high": ends.high}
    return {
        "cache_range_bytes": {name: end.cache_bytes for name, end in held.items()},
        "running_range_requests": {name: end.users for name, end in held.items()},
    }


def figures(plan: EnginePlan) -> dict[str, Any]:
    """One engine's part of a document."""
    return {
        "title": plan.engine,
        "source": plan.source,
        "differs": plan.differs,
        "mark": plan.mark,
        "length_tokens": plan.length,
        "budget": [asdict(step) for step in plan.budget.steps],
        "budget_bytes": plan.budget.num_bytes,
        "pools": [dict(_pool(plan, i)) for i in range(len(plan.pools))],
        "max_requests": plan.max_requests,
        "users": asdict(plan.users),
        "held_tokens": plan.tokens,
        "longest_request_tokens": plan.longest,
        "needed_bytes": plan.needed_bytes,
        "lost": [asdict(loss) for loss in plan.lost],
        "printed": list(plan.printed),
        "command": plan.start.command,
        "files": dict(plan.start.files),
        "notes": list(plan.notes),
    }


def _pool(plan: EnginePlan, i: int) -> Iterator[tuple[str, Any]]:
    pool = plan.pools[i]
    for name in ("name", "unit", "count", "unit_bytes", "num_bytes", "spare_bytes", "mark", "rule"):
        yield name, getattr(pool, name)


def summary(plan: EnginePlan, copies: int, fits: bool) -> Mapping[str, Any]:
    """Of one job of a sweep: requests on all copies."""
    return {
        "fits": fits,
        "max_model_len": plan.length,
        "requests_at_peak": copies * plan.users.peak,
        "requests_steady": copies * plan.users.steady,
        "longest_request": plan.longest,
        "kv_bytes": plan.budget.num_bytes,
    }
