"""A finished run -> what its reports are written from: notes, accounts, the log, the serve line."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

from kvpipe.answers.advice import advise
from kvpipe.answers.as_vllm_groups import as_vllm_groups
from kvpipe.answers.hints import stage_notes
from kvpipe.answers.serve_line import line_of
from kvpipe.answers.uncounted import weights_left_out
from kvpipe.answers.unserved import why_none
from kvpipe.cache.addresses import AddressMap
from kvpipe.cache.plan import Plan
from kvpipe.notes import Note
from kvpipe.pipeline import Result, block_rules
from kvpipe.report.accounts import replicas_of, split_bytes
from kvpipe.report.document import plain
from kvpipe.report.folded import SharedPart
from kvpipe.report.identity import model_words
from kvpipe.report.run_input import Headline, ReportInput
from kvpipe.report.verdict import verdict_of
from kvpipe.request.want import requests_asked
from kvpipe.stages.binding.base import VerifyReport
from kvpipe.stages.validation.base import ResolvedRun

if TYPE_CHECKING:  # needed for logs alone
    from kvpipe.answers.log_answer import LogComparison


def report_input(result: Result, job: str | None = None) -> ReportInput:
    """What the reports are given of a run."""
    resolved, plan, line = result.prepared.resolved, result.plan, line_of(result)
    theirs = as_vllm_groups(result) if line else None
    report = ReportInput(
        headline=headline_of(resolved, plan),
        plan=plan,
        profile=result.profile,
        accounts=split_bytes(plan, result.profile, resolved.max_num_seqs, replicas_of(resolved)),
        verify=_proof([bound.verify for bound in result.bound]),
        notes=(
            *([theirs] if theirs else []),  # first: the line may serve fewer than were asked for
            *stage_notes(result.prepared, result.profile, plan),
            *_notes(result),
            *advise(result),
        ),
        timings=result.timings,
        address_map={"ranks": [_told(where) for where in result.addresses]},
        config=result.prepared.raw,
        backend_facts=result.backend.describe(),
        job=job,
        log=_compared_with_log(result),
        serve=line,
        no_serve=why_none(result.prepared, plan),
        max_num_seqs=resolved.max_num_seqs,
        weights_left_out=weights_left_out(resolved, result.profile),
        requests_asked=requests_asked(result.prepared.config.want),
        copies=resolved.parallel.dp,
        unread=block_rules(result.prepared.config).unread,
    )
    if verdict_of(report).serves:
        return report
    from kvpipe.answers.served import held_at_high_end  # of a refusal alone

    return replace(report, held_at_most=held_at_high_end(result.prepared))


def headline_of(resolved: ResolvedRun, plan: Plan) -> Headline:
    return Headline(
        model=model_words(resolved),
        engine=plan.engine,
        device=resolved.device.name,
        backend=resolved.backend,
        backend_reason=resolved.backend_reason,
    )


@lru_cache(maxsize=32)
def _told(where: AddressMap) -> SharedPart:
    return SharedPart(plain(where.to_json()))


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
