"""Engines side by side, told: one table, what is lost, what each prints and refuses, the flags."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from kvpipe.answers.engine_comparison import Compared
from kvpipe.engines.plan import EnginePlan
from kvpipe.report.engine_plan import figures
from kvpipe.text.figures import percent, size
from kvpipe.text.lines import Line, Section, shell_lines

SCHEMA, SCHEMA_VERSION = "kvpipe.compare", 1
COMMAND_WIDTH = 96


def sections(found: Sequence[Compared], heading: str, length: int) -> list[Section]:
    plans = [each for each in found if each.plan is not None]
    return [
        _table(found, f"compare: {heading}, requests of {length:,} tokens"),
        Section(
            title="Lost, the largest first",
            paragraphs=[Line(text) for each in plans for text in _lost(each)],
        ),
        Section(
            title="How they differ",
            paragraphs=[Line(f"{each.name}: {each.plan.differs}") for each in plans if each.plan],
        ),
        Section(
            title="What each prints",
            paragraphs=[
                Line(f"{each.name}: {line}") for each in plans if each.plan for line in _said(each)
            ],
        ),
        Section(title="The plans as command lines", verbatim=list(_commands(plans))),
    ]


def _table(found: Sequence[Compared], title: str) -> Section:
    return Section(
        title=title,
        headers=("engine", "users", "at peak", "tokens", "longest", "cache", "lost", "rules"),
        align="lrrrrrrl",
        rows=[_row(each) for each in found],
        paragraphs=[
            Line(
                "users: requests at once, all decoding; at peak: all reading their prompts. "
                "tokens: held by requests of that length. longest: one request alone. lost: of the "
                "cache, what nobody reads. rules: checked against the engine's code, read in it, "
                "or inferred",
                "faint",
            ),
            *(
                Line(f"{each.name} refuses: {line}", "warning")
                for each in found
                for line in each.refused
            ),
        ],
    )


def _row(each: Compared) -> tuple[str, ...]:
    plan = each.plan
    if plan is None:
        return (each.name, "-", "-", "-", "-", "-", "-", "refused")
    budget = plan.budget.num_bytes
    lost = budget - plan.users.steady * plan.needed_bytes
    return (
        each.name,
        f"{plan.users.steady:,}",
        f"{plan.users.peak:,}",
        f"{plan.tokens:,}",
        f"{plan.longest:,}",
        size(budget),
        percent(max(0, lost), budget),
        plan.mark,
    )


def _lost(each: Compared) -> Iterator[str]:
    if each.plan is None or not each.plan.lost:
        return
    worst = "; ".join(f"{size(loss.num_bytes)} {loss.name}" for loss in each.plan.lost[:2])
    yield f"{each.name}: {worst}"


def _said(each: Compared) -> tuple[str, ...]:
    assert each.plan is not None
    return each.plan.printed or ("nothing about its capacity",)


def _commands(plans: Sequence[Compared]) -> Iterator[Line]:
    for each in plans:
        plan = each.plan
        assert plan is not None
        yield Line(f"  {each.name}:", "faint")
        if plan.start.command:
            yield from shell_lines(plan.start.command, COMMAND_WIDTH, "    ")
        else:
            yield Line("    no flags say this plan")
        for name, text in plan.start.files.items():
            yield Line(f"    {name}:")
            yield from (Line(f"      {line}") for line in text.splitlines())


def document(
    found: Sequence[Compared], model: str, device: str, length: int, job: str | None
) -> dict[str, Any]:
    return {
        "status": "fits" if any(_serves(each.plan) for each in found) else "does_not_fit",
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "job": job,
        "model": model,
        "device": device,
        "length": length,
        "engines": [
            {
                "name": each.name,
                "refused": list(each.refused),
                "plan": None if each.plan is None else figures(each.plan),
            }
            for each in found
        ],
    }


def _serves(plan: EnginePlan | None) -> bool:
    return plan is not None and plan.users.steady > 0
