"""`kvpipe find want.requests=48 want.length=8192`: the least that serves them.

Files: find.json (what was wanted, and every finding); fleets.svg where want.device names cards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from kvpipe.answers.finding import Finding
from kvpipe.answers.search import Search, read_want
from kvpipe.cache.load import ENDS
from kvpipe.commands.base import Command
from kvpipe.commands.fleet_answers import fleet_answer, refuse_trace, unknown_cards
from kvpipe.errors import Problem
from kvpipe.pipeline import Prepared, block_rules
from kvpipe.report.base import Answer
from kvpipe.report.identity import identity, model_words
from kvpipe.request.schema import check_section
from kvpipe.request.want import Want
from kvpipe.text.figures import count
from kvpipe.text.lines import Line, Section, lay_out


class Find(Command):
    summary = "What a load needs: the cache, share of the card, cards and device that serve it"
    reads = ("want", "trace")
    files = ("find.json",)
    example = "kvpipe find model=llama device=h100_80gb want.requests=48 want.length=8192"

    @classmethod
    def wrong(cls, raw: Mapping[str, Any]) -> Sequence[Problem]:
        want = raw.get("want")
        if not want:
            return ()
        _, problems = check_section("want", Want, want)
        return [*problems, *(unknown_cards(want) if isinstance(want, Mapping) else ())]

    def run(self, prepared: Prepared, job: str | None) -> Answer:
        block_rules(prepared.config)  # refused once, not by every question
        search = Search(prepared=prepared, want=read_want(prepared.config.want, prepared))
        if search.want.device is not None:
            return fleet_answer(search)
        refuse_trace(prepared, search.want)
        findings = list(search.findings())
        found = {
            **identity(prepared, "kvpipe.find"),
            "load": search.load.to_json(),
            "want": {"requests": search.want.requests, "length": search.length},
            "findings": [asdict(finding) for finding in findings],
        }
        served = _served(findings)
        return Answer(
            status="fits" if served else "does_not_fit",
            exit_code=0 if served else 1,
            lines=partial(lay_out, [_section(search, findings)]),
            document=found,
            fields={finding.question: finding.answer or None for finding in findings},
        )


def _served(findings: Sequence[Finding]) -> bool:
    """The load as it was asked for, on the device that was named; on a CPU, on any shipped one.
    What would serve it instead, or a smaller load, is an answer and no success."""
    asked = [finding for finding in findings if finding.question == "as asked"]
    return all(not finding.limit for finding in asked) if asked else bool(findings[-1].setting)


def _section(search: Search, findings: Sequence[Finding]) -> Section:
    return Section(
        title=f"find: {count(search.want.requests, 'request')} of {count(search.length, 'token')}, "
        f"{model_words(search.prepared.resolved)}",
        headers=("", "answer"),
        align="ll",
        rows=[(finding.question, finding.answer or "none") for finding in findings],
        paragraphs=[
            Line(f"of these requests: {ENDS[search.load.name]} ({search.load.name})", "faint"),
            Line(
                "memory: profiling=estimate, or cache.kv_cache_memory_bytes where it is set",
                "faint",
            ),
            *(Line(finding.setting) for finding in findings if finding.setting),
            *(Line(f"{f.question}: {f.limit}", "faint") for f in findings if f.limit),
        ],
    )


PLUGIN = Find
