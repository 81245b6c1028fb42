"""`kvpipe run`, the default: all five stages, and what they found out.

Files: plan.json (every figure; docs/plan_schema.md) and memory_map.svg.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from kvpipe.cache.plan import Plan
from kvpipe.commands.base import Command, CommandOptions
from kvpipe.engines.base import Engine, EngineRules
from kvpipe.errors import DoesNotFit, KvpipeError, Problem, problems_of
from kvpipe.pipeline import Prepared, execute
from kvpipe.report.base import Answer
from kvpipe.report.document import plan_document
from kvpipe.report.first_screen import first_screen
from kvpipe.report.folded import folded
from kvpipe.report.identity import load_words, model_words
from kvpipe.report.memory_map import memory_map
from kvpipe.report.of_run import report_input
from kvpipe.report.run_input import ReportInput
from kvpipe.report.summary import FIELDS, summary
from kvpipe.report.sweep_table import Column, figure
from kvpipe.report.verdict import Verdict, running_at_once, verdict_of
from kvpipe.request.want import requests_asked
from kvpipe.stages.binding.base import VerifyReport
from kvpipe.text.figures import count, size
from kvpipe.text.lines import Line, lay_out


def _kv(row: Mapping[str, Any]) -> str:
    return "-" if row.get("kv_bytes") is None else size(row["kv_bytes"])


def _waste(row: Mapping[str, Any]) -> str:
    return "-" if row.get("waste_percent") is None else f"{row['waste_percent']:.1f}%"


class Run(Command):
    class Options(CommandOptions):
        """document: "folded" writes what repeats once (report/folded.py), "full" every layer of
        every rank."""

        document: Literal["folded", "full"]

    summary = "Does it fit, how many requests, what is wasted: planned, allocated, bound, proved"
    wants = ("requests",)
    example = "kvpipe run model=llama3_70b device=h200 parallel=tp2"
    columns = (
        Column(title="max len", align="r", text=figure("max_model_len")),
        Column(title="peak", align="r", text=figure("requests_at_peak")),
        Column(title="steady", align="r", text=figure("requests_steady")),
        Column(title="KV", align="r", text=_kv),
        Column(title="waste", align="r", text=_waste),
    )
    legend = (
        "peak, steady: requests of max len that fit, on all copies",
        "waste: of the KV bytes, steady state",
        "what each engine would print: in the CSV",
    )
    fields = tuple(name for name in FIELDS if name != "printed")
    files = ("plan.json", "memory_map.svg")

    @classmethod
    def wrong(cls, raw: Mapping[str, Any]) -> Sequence[Problem]:
        want = raw.get("want")  # no section of settings is told by the schema's check
        return problems_of(lambda: requests_asked(want if isinstance(want, Mapping) else {}))

    def run(self, prepared: Prepared, job: str | None) -> Answer:
        requests_asked(prepared.config.want)  # wrong ones are told before anything is planned

        if not isinstance(prepared.config.plugins["engine"].make(Engine), EngineRules):
            from kvpipe.commands.engine_answer import answer_of_engine, planned_engine

            if engine := planned_engine(prepared):
                return answer_of_engine(prepared, engine, job)
        try:
            result = execute(prepared)
        except DoesNotFit as error:
            from kvpipe.answers.served import refused  # as all of a refusal, loaded where one is

            if prepared.config.plugins["profiling"].name == "log":
                from kvpipe.commands._refused_log import answer_of_refusal

                if answer := answer_of_refusal(prepared, error, job):
                    return answer
            if job is not None:  # a sweep compares its own changes
                asked = requests_asked(prepared.config.want)
                told = error.without_knob() if asked > 1 else error
                raise refused(prepared, told) from None
            from kvpipe.answers.advised import advised

            refusal = refused(prepared, advised(prepared, error))
            refusal.about = load_words(prepared)
            raise refusal from error
        answer = answer_of(report_input(result, job), full=self.options.document == "full")
        if answer.exit_code != 1 or job is not None:
            return answer
        from kvpipe.answers.advised import ways_line

        line, changes = ways_line(prepared)
        document = {**answer.document, "advice": [dict(change) for change in changes]}
        return replace(answer, complaints=(*answer.complaints, line), document=document)

    def pictures_of_failure(self, prepared: Prepared, error: KvpipeError) -> Mapping[str, str]:
        if not isinstance(error, DoesNotFit) or error.demand is None:
            return {}
        from kvpipe.report.overflow import overflow_map

        resolved, (says, *advice) = prepared.resolved, error.lines()
        return {
            "memory_map.svg": overflow_map(
                error.demand, says, model_words(resolved), resolved.device.name, " ".join(advice)
            )
        }


def answer_of(report: ReportInput, *, full: bool = False) -> Answer:
    """What a finished run answers. full: a document in which nothing is folded."""
    document = plan_document(report)
    verdict = verdict_of(report)
    status, exit_code, complaints = _outcome(report, verdict)
    return Answer(
        status=status,
        exit_code=exit_code,
        complaints=complaints,
        lines=partial(_long, report),
        screen=partial(first_screen, report) if report.log is None else None,  # its terms matter
        verdict=Line(verdict.short, verdict.style),
        document=document if full else folded(document),
        pictures={"memory_map.svg": memory_map(document)},
        fields={} if status == "failed" else {**summary(document), "fits": exit_code == 0},
    )


def _long(report: ReportInput, width: int) -> Iterable[Line]:
    from kvpipe.report.contents import contents  # made where it is shown

    return lay_out(contents(report), width)


def _outcome(report: ReportInput, verdict: Verdict) -> tuple[str, int, tuple[str, ...]]:
    """status, exit code, and why it is not "fits"."""
    if wrong := _unproven(report.verify):
        return "failed", 3, (wrong,)
    if verdict.serves:
        return verdict.status, 0, ()
    from kvpipe.answers.served import straddling_words

    why = _holds_nothing(report.plan) or _holds_fewer(report) or verdict.short
    may = () if report.held_at_most is None else (straddling_words(report.held_at_most),)
    return verdict.status, 1, (why, *may)


def _holds_fewer(report: ReportInput) -> str:
    """Fewer requests at once than were asked for (want.requests; one where nothing was said)."""
    running = running_at_once(report)
    if running is None or running >= report.requests_asked:
        return ""
    from kvpipe.answers.lacking import fewer_users

    return fewer_users(
        report.requests_asked,
        running,
        report.plan.limits.max_model_len,
        more="; `kvpipe find` with the same settings says what would serve them",
    )


def _holds_nothing(plan: Plan) -> str:
    """An engine whose admission looks away starts; a plan that can run no request does not fit."""
    capacity = plan.capacity
    if capacity is None or capacity.requests_at_peak:
        return ""
    return (
        f"scheduler.max_model_len: engine={plan.engine} starts, but not one request of "
        f"{count(capacity.request_len, 'token')} can run"
    )


def _unproven(proof: VerifyReport) -> str:
    """What the self-proof shows to be broken: the cache, or, with a fault injected, the proof."""
    if proof.inject == "none" and proof.mismatches and proof.summary:
        return f"binding.verify: {proof.summary}"
    if proof.inject == "none" and proof.mismatches:
        return f"binding.verify: {proof.mismatches:,} values read back were not those written"
    if proof.inject != "none" and proof.rows and not proof.mismatches:
        return f"binding.verify.inject={proof.inject}: the fault was injected and did not show"
    return ""


PLUGIN = Run
