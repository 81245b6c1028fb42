"""A pasted line of a server that is planned only -> what its plan says, and the line to start."""

from __future__ import annotations

import shlex
from dataclasses import replace

from kvpipe.answers.engine_question import question_of
from kvpipe.answers.pasted_request import PastedRequest
from kvpipe.commands.diagnosis import Diagnosis
from kvpipe.commands.engine_answer import answer_of_engine, planned_engine
from kvpipe.commands.trouble import Trouble
from kvpipe.engines.other_servers import title_of
from kvpipe.engines.plan import EnginePlan, plan_engine
from kvpipe.engines.planned import Start
from kvpipe.errors import DoesNotFit
from kvpipe.report.base import Answer
from kvpipe.text.figures import GIB, count


def of_planned_line(pasted: PastedRequest) -> Diagnosis | None:
    """None: a line of an engine whose blocks kvpipe plans."""
    engine = planned_engine(pasted.prepared)
    if engine is None or pasted.command is None or not pasted.command.engine:
        return None
    try:
        answer = answer_of_engine(pasted.prepared, engine)
        question = question_of(pasted.prepared)
        named = replace(question, served_name=pasted.command.model or question.served_name)
        plan = plan_engine(engine, named)
    except DoesNotFit as error:
        may = error.status == "may_not_fit"
        text = ". ".join(line.rstrip(".") for line in error.lines())
        return _told(pasted, None, (Trouble(text=text, stops=True, may_stop=may),))
    return _told(pasted, plan, _troubles(answer))


def _troubles(answer: Answer) -> tuple[Trouble, ...]:
    if answer.status == "fits" or answer.verdict is None:
        return ()
    text = ". ".join(line.rstrip(".") for line in (answer.verdict.text, *answer.complaints))
    may = answer.status == "may_not_fit"
    return (Trouble(text=text, stops=bool(answer.exit_code), may_stop=may),)


def _told(
    pasted: PastedRequest, plan: EnginePlan | None, troubles: tuple[Trouble, ...]
) -> Diagnosis:
    resolved, command = pasted.prepared.resolved, pasted.command
    assert command is not None
    ranks = len(resolved.ranks) * resolved.parallel.dp
    where = f"{resolved.model.name} on {f'{ranks} x ' if ranks > 1 else ''}{resolved.device.name}"
    left = ", ".join(command.unknown)
    stops = any(trouble.stops for trouble in troubles)
    return Diagnosis(
        about=f"a command line of {title_of(command.engine)}: {where}, planned with "
        f"engine={command.engine}" + (f"; not read, and left out: {left}" if left else ""),
        memory=tuple(_memory(plan)) if plan is not None else (),
        capacity=(_capacity(plan),) if plan is not None else (),
        troubles=troubles,
        paste=_paste(plan.start) if plan is not None and not stops else "",
    )


def _paste(start: Start) -> str:
    """The line, after its files are written where they are no part of it."""
    written = [
        f"printf '%s\\n' {shlex.join(text.splitlines())} > {name}"
        for name, text in start.files.items()
    ]
    return " && ".join([*written, start.command])


def _memory(plan: EnginePlan) -> list[str]:
    steps = [f"{s.name} {s.num_bytes / GIB:.2f} GiB ({s.how})" for s in plan.budget.steps]
    return [*steps, f"for the pools {plan.budget.num_bytes / GIB:.2f} GiB"]


def _capacity(plan: EnginePlan) -> str:
    return f"{count(plan.users.steady, 'request')} of {plan.length:,} tokens at once"
