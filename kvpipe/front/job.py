"""One job: a prepared request is run, reported, and its files are written. Never raises for a user.

Files of a job, each written whole or not at all: plan.json, memory_map.svg, result.json (status,
exit code, one line for the sweep table). The composed config lies in .hydra/config.yaml.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from kvpipe.answers.advice import advise
from kvpipe.answers.serve_line import line_of
from kvpipe.cache.plan import Plan
from kvpipe.errors import ConfigError, KvpipeError
from kvpipe.files.atomic import write_atomic
from kvpipe.notes import Note
from kvpipe.pipeline import Prepared, Result, execute
from kvpipe.report.accounts import replicas_of, split_bytes
from kvpipe.report.base import Headline, ReportInput
from kvpipe.report.document import plan_document
from kvpipe.report.memory_map import memory_map
from kvpipe.report.summary import summary
from kvpipe.stages.binding.base import VerifyReport

if TYPE_CHECKING:  # needed for logs alone
    from kvpipe.answers.log_answer import LogComparison


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """status: fits | does_not_fit | wrong_request | failed. lines: to stderr."""

    status: str
    exit_code: int
    lines: tuple[str, ...] = ()
    fields: Mapping[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "status": self.status,
            "exit_code": self.exit_code,
            "error": "; ".join(self.lines),
            "errors": list(self.lines),
            **(self.fields or {}),
        }


def run_job(
    prepared: Prepared, make_folder: Callable[[], Path], stream: TextIO | None, job: str | None
) -> Outcome:
    """Run, write the job's files, report on `stream` (None: nowhere). job: its name in a sweep.

    make_folder is called once there is something to write: a request that turns out to be wrong
    raises ConfigError before that, and leaves nothing.
    """
    report_plugin = prepared.config.plugins["report"].make()
    try:
        result = execute(prepared)
    except ConfigError:
        raise
    except KvpipeError as error:
        if stream is not None:
            report_plugin.render_failure(error, job, stream)
        return write_outcome(make_folder(), failure(error))
    folder = make_folder()
    report = report_input(result, job)
    document = plan_document(report)
    write_atomic(folder / "plan.json", json.dumps(document, indent=1) + "\n")
    write_atomic(folder / "memory_map.svg", memory_map(document))
    if stream is not None:
        report_plugin.render(report, stream)
    if wrong := _unproven(report.verify):
        return write_outcome(folder, Outcome(status="failed", exit_code=3, lines=(wrong,)))
    fields = summary(document)
    if nothing := _holds_nothing(result.plan):
        return write_outcome(
            folder, Outcome(status="does_not_fit", exit_code=1, lines=(nothing,), fields=fields)
        )
    return write_outcome(folder, Outcome(status="fits", exit_code=0, fields=fields))


def _holds_nothing(plan: Plan) -> str:
    """An engine whose admission looks away starts; a plan that can run no request does not fit."""
    capacity = plan.capacity
    if capacity is None or capacity.requests_at_peak:
        return ""
    return (
        f"scheduler.max_model_len: engine={plan.engine} starts, but not one request of "
        f"{capacity.request_len:,} tokens can run. Lower it to {capacity.longest_request:,}, or "
        "give the cache more memory"
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


def run_beside(prepared: Prepared) -> Outcome:
    """A process that is not the first of several: the same stages; no report and no files."""
    if wrong := _unproven(_proof([bound.verify for bound in execute(prepared).bound])):
        return Outcome(status="failed", exit_code=3, lines=(wrong,))
    return Outcome(status="fits", exit_code=0)


def failure(error: Exception) -> Outcome:
    """What an exception means for the job's status and exit code."""
    if isinstance(error, KvpipeError):
        return Outcome(status=error.status, exit_code=error.exit_code, lines=tuple(error.lines()))
    where = traceback.extract_tb(error.__traceback__)[-1]
    line = f"{type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})"
    return Outcome(status="failed", exit_code=3, lines=(" ".join(line.split()),))


def write_outcome(folder: Path, outcome: Outcome) -> Outcome:
    write_atomic(folder / "result.json", json.dumps(outcome.to_json(), indent=1) + "\n")
    return outcome


def report_input(result: Result, job: str | None = None) -> ReportInput:
    """What the reports are given of a run."""
    resolved, plan = result.prepared.resolved, result.plan
    return ReportInput(
        headline=Headline(
            model=f"{resolved.model.name} ({resolved.served_dtype}, cache {resolved.cache_dtype})",
            engine=plan.engine,
            device=resolved.device.name,
            backend=resolved.backend,
            backend_reason=resolved.backend_reason,
        ),
        plan=plan,
        profile=result.profile,
        accounts=split_bytes(plan, result.profile, resolved.max_num_seqs, replicas_of(resolved)),
        verify=_proof([bound.verify for bound in result.bound]),
        notes=(*resolved.notes, *result.profile.notes, *_notes(result), *advise(result)),
        timings=result.timings,
        address_map={"ranks": [where.to_json() for where in result.addresses]},
        config=result.prepared.raw,
        backend_facts=result.backend.describe(),
        job=job,
        log=_compared_with_log(result),
        serve=line_of(result),
    )


def _compared_with_log(result: Result) -> LogComparison | None:
    log = result.profile.log
    if log is None:
        return None
    from kvpipe.answers.log_answer import compare_with_log

    return compare_with_log(result.prepared, log, result.plan.limits.max_model_len)


def _proof(reports: list[VerifyReport]) -> VerifyReport:
    """One report for the ranks that ran here: counts add up; digests stand side by side."""
    first = reports[0]
    if len(reports) == 1:
        return first
    return VerifyReport(
        layers=sum(report.layers for report in reports),
        tokens=sum(report.tokens for report in reports),
        state_pages=sum(report.state_pages for report in reports),
        rows=sum(report.rows for report in reports),
        gathered_rows=sum(report.gathered_rows for report in reports),
        mismatches=sum(report.mismatches for report in reports),
        digest=" ".join(report.digest for report in reports),
        digest_of=first.digest_of,
        inject=first.inject,
        reason=first.reason,
        summary="; ".join(report.summary for report in reports if report.summary),
    )


def _notes(result: Result) -> list[Note]:
    texts = [text for where in result.addresses for text in where.notes]
    for bound in result.bound:
        texts += bound.notes
    return [Note(text=text) for text in dict.fromkeys(texts)]
