"""Engines side by side, told: one table, what is lost, what each prints and refuses, the flags."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kvpipe.answers.engine_comparison import Compared
from kvpipe.cache.load import ENDS
from kvpipe.pipeline import Prepared
from kvpipe.report.engine_plan import document_of_ends, figures
from kvpipe.report.identity import identity
from kvpipe.text.figures import percent, size
from kvpipe.text.lines import Command, Line, Section


@dataclass(frozen=True, kw_only=True)
class Fastest:
    """Bounds on time. token_s: seconds between two tokens of each of an engine's users, by its
    name; first_token_s: of a prompt of the asked length, alone; cards: that work on a request.
    why: what it rests on, or why there is none."""

    token_s: Mapping[str, float]
    first_token_s: float | None
    cards: int
    why: str


def first_section(found: Sequence[Compared], heading: str, length: int, asked: int) -> Section:
    """What a person wants first: who runs how many; of the rest what it is."""
    verdicts = _verdicts(found, _title(heading, length), asked)
    rest = "what each holds, loses and prints, bounds on its time, its flags: report=full"
    return replace(verdicts, paragraphs=[*verdicts.paragraphs, Line(rest, "faint")])


def sections(
    found: Sequence[Compared], heading: str, length: int, asked: int, fastest: Fastest
) -> list[Section]:
    """asked: users of a copy."""
    plans = [each for each in found if each.plan is not None]
    return [
        _verdicts(found, _title(heading, length), asked),
        _held(plans),
        Section(
            title="Lost, the largest first",
            paragraphs=[Line(text) for each in plans for text in _lost(each)],
        ),
        Section(
            title="How they differ",
            paragraphs=[Line(_differs(each)) for each in plans],
        ),
        Section(
            title="What each prints",
            paragraphs=[
                Line(f"{each.name}: {line}") for each in plans if each.plan for line in _said(each)
            ],
        ),
        _times(found, fastest),
        Section(title="The plans as command lines", verbatim=list(_commands(plans))),
    ]


def _title(heading: str, length: int) -> str:
    return f"compare: {heading}, requests of {length:,} tokens"


def _differs(each: Compared) -> str:
    """`vllm (vLLM 0.33.0): ...`: the word it is chosen by, and whose code was read."""
    assert each.plan is not None
    return f"{each.name} ({each.plan.engine}): {each.plan.differs}"


def _verdicts(found: Sequence[Compared], title: str, asked: int) -> Section:
    return Section(
        title=title,
        headers=("engine", f"{asked:,} at once", "users", "range", "cache", "range"),
        align="llrlrl",
        rows=[_verdict(each, asked) for each in found],
        paragraphs=[
            Line(
                f"users: requests at once, running ({ENDS['running']}). range: at the ends of the "
                "memory's estimate; may not fit: the range straddles what was asked for",
                "faint",
            ),
            *(
                Line(f"{each.name} refuses: {line}", "warning")
                for each in found
                for line in each.refused
            ),
        ],
    )


def _verdict(each: Compared, asked: int) -> tuple[str, ...]:
    ends, word = each.served, each.word(asked)
    if ends is None:
        return (each.name, word, "-", "", "-", "")
    cache = ends.best.cache_bytes
    return (
        each.name,
        word,
        f"{ends.best.users:,}",
        ends.users_ends,
        size(cache) if cache else "-",
        ends.cache_ends if cache else "",
    )


def _held(plans: Sequence[Compared]) -> Section:
    return Section(
        title="What each holds",
        headers=("engine", "at peak", "steady", "tokens", "longest", "lost", "rules"),
        align="lrrrrrl",
        rows=[_row(each) for each in plans],
        paragraphs=[
            Line(
                f"at peak: users, {ENDS['peak']}; steady: {ENDS['steady']}. tokens: held by "
                "requests of that length. longest: one request alone. lost: of the cache, what "
                "nobody reads. rules: checked against the engine's code, read in it, or inferred",
                "faint",
            )
        ],
    )


def _row(each: Compared) -> tuple[str, ...]:
    plan = each.plan
    assert plan is not None
    budget = plan.budget.num_bytes
    lost = budget - plan.users.steady * plan.needed_bytes
    return (
        each.name,
        f"{plan.users.peak:,}",
        f"{plan.users.steady:,}",
        f"{plan.tokens:,}",
        f"{plan.longest:,}",
        percent(max(0, lost), budget),
        plan.mark,
    )


def _times(found: Sequence[Compared], fastest: Fastest) -> Section:
    rows = []
    for each in found:
        token = fastest.token_s.get(each.name)
        if each.plan is not None and token:
            users = each.plan.users.steady
            rate = users / token / fastest.cards
            rows.append((each.name, f"{users:,}", f"{1000 * token:,.1f} ms", f"{rate:,.0f}"))
    lines = [Line(fastest.why, "faint")]
    if fastest.first_token_s is not None:
        lines.insert(0, Line(_first_token(fastest.first_token_s)))
    return Section(
        title="No faster than (bounds, not estimates)",
        headers=("engine", "users", "a token each", "tokens/s a card") if rows else (),
        align="lrrr" if rows else "",
        rows=rows,
        paragraphs=lines,
    )


def _first_token(seconds: float) -> str:
    shown = f"{seconds:,.2f} s" if seconds >= 1 else f"{1000 * seconds:,.1f} ms"
    return f"first token of a prompt alone: {shown}"


def _lost(each: Compared) -> Iterator[str]:
    if each.plan is None or not each.plan.lost:
        return
    worst = "; ".join(f"{size(loss.num_bytes)} {loss.name}" for loss in each.plan.lost[:2])
    yield f"{each.name}: {worst}"


def _said(each: Compared) -> tuple[str, ...]:
    assert each.plan is not None
    return each.plan.printed or ("nothing about its capacity",)


def _commands(plans: Sequence[Compared]) -> Iterator[Line | Command]:
    for each in plans:
        plan = each.plan
        assert plan is not None
        yield Line(f"  {each.name}:", "faint")
        if plan.start.command:
            yield Command(plan.start.command, "    ")
        else:
            yield Line("    no flags say this plan")
        for name, text in plan.start.files.items():
            yield Line(f"    {name}:")
            yield from (Line(f"      {line}") for line in text.splitlines())


def document(
    found: Sequence[Compared], prepared: Prepared, asked: int, fastest: Fastest
) -> dict[str, Any]:
    """Times are bounds, in seconds. asked: users of a copy."""
    common = identity(prepared, "kvpipe.compare")
    return {
        **{key: value for key, value in common.items() if not key.startswith("engine")},
        "first_token_bound_s": fastest.first_token_s,
        "bounds": fastest.why,
        "engines": [
            {
                "name": each.name,
                "verdict": each.word(asked).replace(" ", "_"),
                **({} if each.served is None else document_of_ends(each.served)),
                "refused": list(each.refused),
                "plan": None if each.plan is None else figures(each.plan),
                "token_bound_s": fastest.token_s.get(each.name),
            }
            for each in found
        ],
    }
