"""`kvpipe run engine=sglang`: what an engine that is planned only makes of its memory."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from kvpipe.answers.engine_question import question_of
from kvpipe.answers.engine_ways import engine_ways_line, serves
from kvpipe.cache.load import of_a_copy
from kvpipe.engines.base import Engine
from kvpipe.engines.plan import EnginePlan, plan_engine
from kvpipe.engines.planned import PlannedEngine
from kvpipe.errors import DoesNotFit
from kvpipe.pipeline import Prepared
from kvpipe.report.base import Answer
from kvpipe.report.engine_plan import document, sections, summary
from kvpipe.report.identity import model_words, where
from kvpipe.request.want import requests_asked
from kvpipe.text.figures import count
from kvpipe.text.lines import Line, lay_out


@dataclass(frozen=True, kw_only=True)
class _Asked:
    """Users that were asked for, of copies that share them."""

    requests: int
    copies: int

    @property
    def of_a_copy(self) -> int:
        return of_a_copy(self.requests, self.copies)


def planned_engine(prepared: Prepared) -> PlannedEngine | None:
    """The request's engine, where kvpipe owns no blocks for it."""
    made = prepared.config.plugins["engine"].make(Engine)
    return made if isinstance(made, PlannedEngine) else None


def answer_of_engine(prepared: Prepared, engine: PlannedEngine, job: str | None = None) -> Answer:
    """job: of a sweep, which compares its own changes."""
    try:
        plan = plan_engine(engine, question_of(prepared))
    except DoesNotFit as error:
        raise error if job is not None else error.with_advice(*engine_ways_line(prepared)) from None
    resolved = prepared.resolved
    load = _Asked(requests=requests_asked(prepared.config.want), copies=resolved.parallel.dp)
    fits = serves(plan, load.of_a_copy)
    told = "" if fits else _fewer(plan, load)
    line, changes = engine_ways_line(prepared) if told and job is None else ("", ())
    advice = {"advice": [dict(change) for change in changes]} if line else {}
    return Answer(
        status="fits" if fits else "does_not_fit",
        exit_code=0 if fits else 1,
        lines=partial(lay_out, sections(plan, model_words(resolved), where(resolved))),
        verdict=_verdict(plan, load),
        document=document(plan, prepared) | advice,
        fields=summary(plan),
        complaints=tuple(filter(None, (told, line))),
    )


def _verdict(plan: EnginePlan, load: _Asked) -> Line:
    """In 60 columns."""
    running = load.copies * plan.users.steady if plan.users.peak else 0
    text = f"{count(running, 'request')} of {count(plan.length, 'token')}, {load.requests:,} asked"
    return Line(f"{text} for", "good" if running >= load.requests else "bad")


def _fewer(plan: EnginePlan, load: _Asked) -> str:
    if not plan.users.peak and plan.users.steady >= load.of_a_copy:
        return (
            f"scheduler.max_model_len: not one request of {plan.length:,} tokens can read its "
            f"prompt under {plan.engine}"
        )
    return (
        f"want.requests: {count(load.requests, 'request')} of {count(plan.length, 'token')} at "
        f"once were asked for, {load.copies * plan.users.steady:,} run under {plan.engine}: "
        f"{plan.users.limit} is full"
    )
