"""`kvpipe find want.requests=48 want.length=8192`: the least that serves them.

Files: find.json (what was wanted, and every finding); fleets.svg where want.device names cards.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from kvpipe.answers.as_asked import LENGTH, QUESTION
from kvpipe.answers.finding import Finding
from kvpipe.answers.pasted import changes_of
from kvpipe.answers.search import Search, read_want
from kvpipe.cache.load import ENDS
from kvpipe.commands.base import Command
from kvpipe.commands.fleet_answers import fleet_answer, unknown_cards
from kvpipe.commands.unread_wants import unread
from kvpipe.errors import Problem
from kvpipe.pipeline import Prepared, block_rules
from kvpipe.report.base import Answer
from kvpipe.report.identity import identity, model_words
from kvpipe.report.last_line import last_line
from kvpipe.request.schema import check_section
from kvpipe.request.want import Want
from kvpipe.text.figures import count
from kvpipe.text.lines import Line, Section, lay_out
from kvpipe.text.meanwhile import meanwhile


class Find(Command):
    summary = "What a load needs: the cache, share of the card, cards and device that serve it"
    reads = ("want", "trace")
    files = ("find.json",)
    wants = tuple(Want.model_fields)
    example = "kvpipe find model=llama device=h100_80gb want.requests=48 want.length=8192"

    @classmethod
    def wrong(cls, raw: Mapping[str, Any]) -> Sequence[Problem]:
        want = raw.get("want")
        if not want:
            return ()
        _, problems = check_section("want", Want, want)
        cards = unknown_cards(want) if isinstance(want, Mapping) else ()
        return [*problems, *cards, *unread(raw)]

    def run(self, prepared: Prepared, job: str | None) -> Answer:
        block_rules(prepared.config)  # refused once, not by every question
        search = Search(prepared=prepared, want=read_want(prepared.config.want, prepared))
        if search.want.device is not None:
            # A sweep has a bar of its own.
            with meanwhile(sys.stderr if job is None else None) as tell:
                return fleet_answer(search, tell)
        findings = list(search.findings())
        status = _status(findings)
        found = {
            **identity(prepared, "kvpipe.find"),
            "status": status,
            "load": search.load.to_json(),
            "want": {"requests": search.want.requests, "length": search.length},
            "findings": [asdict(finding) for finding in findings],
        }
        return Answer(
            status=status,
            exit_code=0 if _serves(search, status) else 1,
            verdict=_verdict(search, status),
            lines=partial(lay_out, [_section(search, findings)]),
            document=found,
            fields={finding.question: finding.answer or None for finding in findings},
        )


def _status(findings: Sequence[Finding]) -> str:
    """Of the load as it was asked for, on the device that was named; on a CPU, on any shipped one.
    What would serve it instead, or a smaller load, is an answer and no success."""
    for finding in findings:
        if finding.question == QUESTION:
            return str(finding.value)
    return "fits" if findings[-1].setting else "does_not_fit"


def _serves(search: Search, status: str) -> bool:
    """A load that the best value of an estimate refuses is not served, though it may fit."""
    if search.prepared.resolved.device.type == "cpu":
        return status == "fits"
    return search.as_asked.serves


def _verdict(search: Search, status: str) -> Line:
    device = search.prepared.resolved.device
    where = device.name if device.type != "cpu" else "the smallest device that serves them"
    load = f"{count(search.want.requests, 'request')} of {count(search.length, 'token')}"
    word, serves = status.replace("_", " "), _serves(search, status)
    asked = ", as asked" if device.type != "cpu" and (serves or word != "may not fit") else ""
    return last_line(word, f"{load} on {where}{asked}", serves=serves)


def _section(search: Search, findings: Sequence[Finding]) -> Section:
    return Section(
        title=f"find: {count(search.want.requests, 'request')} of {count(search.length, 'token')}, "
        f"{model_words(search.prepared.resolved)}",
        headers=("", "answer"),
        align="ll",
        rows=[(finding.question, finding.answer or "none") for finding in findings],
        paragraphs=[
            *_copies(search),
            Line(f"of these requests: {ENDS[search.load.name]} ({search.load.name})", "faint"),
            Line(
                "memory: the estimate's best value, unless profiling=utilization or "
                "cache.kv_cache_memory_bytes is set; as asked: as `kvpipe run` plans it",
                "faint",
            ),
            *_settings(search, findings),
            Line("what stands in the way of less, or of it at all", "faint"),
            *(Line(f"{f.question}: {f.limit}", "faint") for f in findings if f.limit),
        ],
    )


def _settings(search: Search, findings: Sequence[Finding]) -> Iterator[Line]:
    """Each in the words of the user's own line, and what it answers."""
    prepared = search.prepared
    settable = [finding for finding in findings if finding.setting]
    if not settable:
        return
    said = prepared.config.scheduler.max_model_len
    beside = {} if said == search.length else {LENGTH: search.length}
    yield Line("settings for your line, of kvpipe run: one of these", "faint")
    for finding in settable:
        may = " (may not fit with it)" if finding.setting_status == "may_not_fit" else ""
        typed = prepared.as_typed({**beside, **changes_of(finding.setting)})
        yield Line(f"{finding.question}{may}: {typed}")


def _copies(search: Search) -> Iterator[Line]:
    copies = search.prepared.resolved.parallel.dp
    if copies > 1:
        words = f"each of {copies:,} copies (data parallelism) runs {search.requests:,} of these"
        yield Line(f"{words}; bytes and settings are one copy's", "faint")


PLUGIN = Find
