"""`kvpipe find want.requests=48 want.length=8192`: the least that serves them.

File: find.json (what was wanted, and every finding).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from kvpipe.answers.finding import Finding
from kvpipe.answers.fleet import Wanted, plan_fleet
from kvpipe.answers.search import Search, read_want
from kvpipe.cache.load import ENDS
from kvpipe.commands.base import Command
from kvpipe.errors import ConfigError, Problem, did_you_mean
from kvpipe.pipeline import Prepared, block_rules
from kvpipe.report.base import Answer
from kvpipe.report.fleet import document, sections
from kvpipe.report.identity import identity
from kvpipe.request.confdir import CONF_DIR
from kvpipe.request.nicknames import option_named
from kvpipe.request.schema import check_section
from kvpipe.request.want import Want
from kvpipe.text.figures import count
from kvpipe.text.lines import Line, Section, lay_out

_NO_CARDS = ("auto", "cpu")


class Find(Command):
    summary = "What a load needs: the cache, share of the card, cards and device that serve it"
    reads = ("want",)
    files = ("find.json",)
    example = "kvpipe find model=llama device=h100_80gb want.requests=48 want.length=8192"

    @classmethod
    def wrong(cls, raw: Mapping[str, Any]) -> Sequence[Problem]:
        if not raw.get("want"):
            return ()
        _, problems = check_section("want", Want, raw["want"])
        return [*problems, *_unknown_cards(raw["want"])]

    def run(self, prepared: Prepared, job: str | None) -> Answer:
        block_rules(prepared.config)  # refused once, not by every question
        search = Search(prepared=prepared, want=read_want(prepared.config.want, prepared))
        if search.want.device is not None:
            return _fleets(search)
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


def _fleets(search: Search) -> Answer:
    """want.device: how many of which cards."""
    prepared, want = search.prepared, search.want
    if unknown := list(_unknown_cards(want.model_dump())):
        raise ConfigError(unknown)
    names = [_file_name(name) for name in want.device or ()]
    wanted = Wanted(
        requests=want.requests,
        length=search.length,
        token_s=None if want.token_ms is None else want.token_ms / 1000,
    )
    prices = {_file_name(name): p for name, p in (want.prices or {}).items()}
    answer = plan_fleet(prepared, wanted, names, prices)
    resolved = prepared.resolved
    model = f"{resolved.model.name} ({resolved.served_dtype}, cache {resolved.cache_dtype})"
    best = answer.fleets[0] if answer.fleets else None
    return Answer(
        status="fits" if best else "does_not_fit",
        exit_code=0 if best else 1,
        lines=partial(lay_out, sections(answer, wanted, model)),
        document={**identity(prepared, "kvpipe.fleet"), **document(answer, wanted)},
        fields={"cards": best.cards if best else None, "fleet": best and best.replica.device},
        complaints=() if best else ("want.device: none of these cards serves the load",),
    )


def _unknown_cards(want: Mapping[str, Any]) -> Iterator[Problem]:
    """Every name of a card that no option file has; want: as it was said, right or wrong."""
    known = sorted(path.stem for path in (CONF_DIR / "device").glob("*.yaml"))
    cards = [name for name in known if name not in _NO_CARDS]
    for key in ("device", "prices"):
        names = want.get(key)
        for name in names if isinstance(names, list | dict) else ():
            if isinstance(name, str) and option_named("device", name) in (None, *_NO_CARDS):
                hint = did_you_mean(name, cards)
                yield Problem(f"want.{key}", "names of device=...", f"'{name}'", hint)


def _file_name(said: str) -> str:
    """The option file of a device that is known."""
    return str(option_named("device", said))


def _served(findings: Sequence[Finding]) -> bool:
    """The load as it was asked for, on the device that was named; on a CPU, on any shipped one.
    What would serve it instead, or a smaller load, is an answer and no success."""
    asked = [finding for finding in findings if finding.question == "as asked"]
    return all(not finding.limit for finding in asked) if asked else bool(findings[-1].setting)


def _section(search: Search, findings: Sequence[Finding]) -> Section:
    head = search.prepared.resolved
    return Section(
        title=f"find: {count(search.want.requests, 'request')} of {count(search.length, 'token')}, "
        f"{head.model.name} ({head.served_dtype}, cache {head.cache_dtype})",
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
