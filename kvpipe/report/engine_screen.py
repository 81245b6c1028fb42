"""EnginePlan -> its first screen: what a person wants of a planned engine before all else.
`report=full` has the budget, every pool's rule, all that is lost and what the engine prints."""

from __future__ import annotations

from collections.abc import Iterator

from kvpipe.answers.served import Served
from kvpipe.engines.plan import EnginePlan
from kvpipe.report.first_screen import MOST_LINES
from kvpipe.report.labelled import labelled
from kvpipe.report.on_screen import Blocks, on_screen
from kvpipe.text.figures import count, percent, size
from kvpipe.text.lines import Line, shell_lines, whole_words


def engine_screen(
    plan: EnginePlan, ends: Served, copies: int, verdict: Line, model: str, width: int
) -> list[Line]:
    """At most 16 lines of at most `width` columns, with the folder and the verdict that the report
    adds. copies: that share the users, each with such a plan."""
    engine = f"engine {plan.engine}"
    rest = ("budget", "rules", "what it prints", *plan.start.files)
    blocks: dict[str, list[Line]] = {
        "verdict": [Line(part, verdict.style) for part in whole_words(verdict.text, width)],
        "plan": labelled("plan", "; ".join(_pools(plan)), width),
        "model": labelled("model", f"{model}, {engine}", width),
        "users": labelled("users", _users(plan, copies), width),
        "limit": labelled("limit", _limit(plan, ends, copies), width),
        "lost": _lost(plan, width),
        "rest": labelled("", f"{', '.join(rest)}: report=full", width, "faint"),
    }
    if plan.start.command:
        blocks["serve"] = [Line("serve"), *shell_lines(plan.start.command, width - 2, indent="  ")]
    name, _, _ = model.partition(" (")  # its types
    steps: list[Blocks] = [
        {"lost": []},
        {"model": labelled("model", f"{name}, {engine}", width)},
        {"limit": labelled("limit", plan.users.limit, width)},
        {"rest": labelled("", "all else: report=full", width, "faint")},
        {"model": []},  # the command names both
    ]
    shown = on_screen(blocks, steps, MOST_LINES - 1 - len(blocks["verdict"]))
    return [line for block in shown.values() for line in block]


def _lost(plan: EnginePlan, width: int) -> list[Line]:
    if not plan.lost:
        return []
    worst = plan.lost[0]
    share = percent(worst.num_bytes, plan.budget.num_bytes)
    return labelled("lost", f"{size(worst.num_bytes)} ({share}) {worst.name}", width)


def _pools(plan: EnginePlan) -> Iterator[str]:
    for pool in plan.pools:
        yield f"{pool.name}: {pool.count:,} ({pool.unit} of {size(pool.unit_bytes)})"


def _users(plan: EnginePlan, copies: int) -> str:
    peak, steady = (copies * n for n in (plan.users.peak, plan.users.steady))
    words = f"{steady:,} of {count(plan.length, 'token')} each"
    if copies > 1:
        words += f" on {copies:,} copies"
    return f"{words}, at peak and steady alike" if peak == steady else f"{words} (peak {peak:,})"


def _limit(plan: EnginePlan, ends: Served, copies: int) -> str:
    where = " a copy" if copies > 1 else ""
    most = "" if plan.max_requests is None else f"; at most {plan.max_requests:,} run{where}"
    return f"{plan.users.limit}; {ends.cache_words}{most}"
