"""`kvpipe run engine=sglang`: what an engine that is planned only makes of its memory."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from kvpipe.answers.engine_question import question_of
from kvpipe.answers.engine_ways import engine_ways_line, serves
from kvpipe.answers.lacking import fewer_users, not_one
from kvpipe.answers.served import Served, refused, served_by_engine, straddling_words
from kvpipe.cache.load import of_a_copy
from kvpipe.engines.base import Engine
from kvpipe.engines.plan import EnginePlan, plan_engine
from kvpipe.engines.planned import PlannedEngine
from kvpipe.errors import DoesNotFit
from kvpipe.pipeline import Prepared
from kvpipe.report.base import Answer
from kvpipe.report.engine_plan import document, document_of_ends, sections, summary
from kvpipe.report.engine_screen import engine_screen
from kvpipe.report.identity import model_words, where
from kvpipe.report.last_line import last_line
from kvpipe.request.want import requests_asked
from kvpipe.text.lines import Line, lay_out

_WIDTH = 80  # columns of a verdict


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
        if job is None:
            error = error.with_advice(*engine_ways_line(prepared))
        raise refused(prepared, error) from None
    resolved = prepared.resolved
    load = _Asked(requests=requests_asked(prepared.config.want), copies=resolved.parallel.dp)
    ends, fits = served_by_engine(prepared, engine), serves(plan, load.of_a_copy)
    word = ends.word(load.of_a_copy)
    told = () if fits else _fewer(plan, load, ends, word)
    line, changes = engine_ways_line(prepared) if told and job is None else ("", ())
    advice = {"advice": [dict(change) for change in changes]} if line else {}
    status, verdict = word.replace(" ", "_"), _verdict(plan, load, ends, word)
    said = {"status": status, "verdict": verdict.text}
    return Answer(
        status=status,
        exit_code=0 if fits else 1,
        lines=partial(lay_out, sections(plan, model_words(resolved), where(resolved))),
        screen=partial(engine_screen, plan, ends, load.copies, verdict, model_words(resolved)),
        verdict=verdict,
        document=said | document(plan, prepared) | document_of_ends(ends) | advice,
        fields=summary(plan, load.copies, fits),
        complaints=tuple(filter(None, (*told, line))),
    )


def _verdict(plan: EnginePlan, load: _Asked, ends: Served, word: str) -> Line:
    """In 80 columns."""
    running = load.copies * ends.best.users
    text = f"{load.requests:,} of {plan.length:,} tokens, {running:,} run"
    fits = serves(plan, load.of_a_copy)
    whole = last_line(word, f"{text}, {ends.cache_words}", serves=fits)
    return whole if len(whole.text) <= _WIDTH else last_line(word, text, serves=fits)


def _fewer(plan: EnginePlan, load: _Asked, ends: Served, word: str) -> tuple[str, ...]:
    may = (straddling_words(ends.high),) if word == "may not fit" else ()
    if not plan.users.peak and plan.users.steady >= load.of_a_copy:
        return (not_one(plan.length, f"can read its prompt under {plan.engine}"), *may)
    running, whose = load.copies * plan.users.steady, f" under {plan.engine}"
    full = f": {plan.users.limit} is full"
    return (fewer_users(load.requests, running, plan.length, whose, full), *may)
