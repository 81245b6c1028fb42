"""`kvpipe run engine=sglang`: what an engine that is planned only makes of its memory."""

from __future__ import annotations

from functools import partial

from kvpipe.answers.engine_question import question_of
from kvpipe.engines.base import Engine
from kvpipe.engines.plan import EnginePlan, plan_engine
from kvpipe.engines.planned import PlannedEngine
from kvpipe.pipeline import Prepared
from kvpipe.report.base import Answer
from kvpipe.report.engine_plan import document, sections, summary
from kvpipe.request.want import requests_asked
from kvpipe.text.figures import count
from kvpipe.text.lines import Line, lay_out


def planned_engine(prepared: Prepared) -> PlannedEngine | None:
    """The request's engine, where kvpipe owns no blocks for it."""
    made = prepared.config.plugins["engine"].make(Engine)
    return made if isinstance(made, PlannedEngine) else None


def answer_of_engine(prepared: Prepared, engine: PlannedEngine) -> Answer:
    plan = plan_engine(engine, question_of(prepared))
    resolved = prepared.resolved
    model = f"{resolved.model.name} ({resolved.served_dtype}, cache {resolved.cache_dtype})"
    asked = requests_asked(prepared.config.want)
    serves = plan.users.steady >= asked
    return Answer(
        status="fits" if serves else "does_not_fit",
        exit_code=0 if serves else 1,
        lines=partial(lay_out, sections(plan, model, resolved.device.name)),
        verdict=_verdict(plan, asked),
        document=document(plan, prepared),
        fields=summary(plan),
        complaints=() if serves else (_fewer(plan, asked),),
    )


def _verdict(plan: EnginePlan, asked: int) -> Line:
    """In 60 columns."""
    running = plan.users.steady
    text = f"{count(running, 'request')} of {count(plan.length, 'token')}, {asked:,} asked for"
    return Line(text, "good" if running >= asked else "bad")


def _fewer(plan: EnginePlan, asked: int) -> str:
    return (
        f"want.requests: {count(asked, 'request')} of {count(plan.length, 'token')} at once were "
        f"asked for, {plan.users.steady:,} run under {plan.engine}: {plan.users.limit} is full"
    )
