"""`kvpipe page llama-3.1-70b --on 2xh200`: the answer as one HTML file with sliders.

Files: page.json (every plan of the page) and page.html, which needs nothing else.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field

from kvpipe.commands.base import Command, CommandOptions
from kvpipe.errors import ConfigError, DoesNotFit, Problem, problems_of
from kvpipe.pipeline import Prepared
from kvpipe.report.base import Answer
from kvpipe.request.config import Count
from kvpipe.request.want import Want, requests_asked
from kvpipe.text.figures import count
from kvpipe.text.lines import Line, Section, lay_out

if TYPE_CHECKING:
    from kvpipe.answers.search import Search
    from kvpipe.page.axes import AskedStops

LARGEST_BYTES = 500_000
Stops = Annotated[list[Count], Field(min_length=1, max_length=64)] | None


class Page(Command):
    class Options(CommandOptions):
        """lengths, batches, caches, cards: stops of the sliders (null: usual ones)."""

        folder: str | None
        engines: list[str]
        lengths: Stops
        batches: Stops
        caches: Annotated[list[str], Field(min_length=1, max_length=8)] | None
        cards: Stops

    summary = "One HTML file, no network: sliders, the memory map, a table, the command"
    wants = tuple(Want.model_fields)
    example = "kvpipe page llama-3.1-8b --on h100 command.lengths=[8192] command.cards=[1,2]"
    files: ClassVar[tuple[str, ...]] = ("page.json", "page.html")

    @classmethod
    def wrong(cls, raw: Mapping[str, Any]) -> Sequence[Problem]:
        from kvpipe.commands.unread_wants import of_users, unread
        from kvpipe.page.asked import wrong_stops
        from kvpipe.page.sources import check_folder

        folder = raw["command"].get("folder")
        found = problems_of(lambda: check_folder(folder)) if isinstance(folder, str) else ()
        length = of_users(raw)
        return [*found, *unread(raw), *length, *dict.fromkeys(wrong_stops(raw))]

    def run(self, prepared: Prepared, job: str | None) -> Answer:
        """ConfigError for a folder that is no sweep's, or more plans than a page holds."""
        from kvpipe.page.html import page_html  # as all of kvpipe/page: no other command needs it

        users = requests_asked(prepared.config.want)
        document = self._document(prepared, users)
        html = page_html(document)
        num_bytes = len(html.encode())
        if num_bytes > LARGEST_BYTES:
            expected = f"stops that make a page of at most {LARGEST_BYTES:,} bytes"
            raise ConfigError(Problem("command.lengths", expected, f"{num_bytes:,}"))
        return Answer(
            status="fits",
            exit_code=0,
            lines=partial(lay_out, [_section(document, num_bytes)]),
            document=document,
            pictures={"page.html": html},
            fields={"plans": _plans(document)},
        )

    def _document(self, prepared: Prepared, users: int) -> dict[str, Any]:
        from kvpipe.page.axes import AskedStops
        from kvpipe.page.document import page_document
        from kvpipe.page.sources import ENGINES_DIFFER, of_engines, of_request, of_sweep

        asked = AskedStops(
            lengths=self.options.lengths,
            batches=self.options.batches,
            caches=self.options.caches,
            cards=self.options.cards,
        )
        if self.options.folder is not None and self.options.engines:
            got = "both a folder and engines"
            raise ConfigError(Problem("command.folder", "a sweep, or engines, on a page", got))
        if self.options.folder is not None:
            subjects, left_out = of_sweep(Path(self.options.folder), asked)
            return page_document("sweep", subjects, users=users, notes=left_out)
        if prepared.config.want.get("device"):
            return self._of_fleets(prepared, asked)
        if self.options.engines:
            engines = of_engines(prepared, asked, self.options.engines)
            return page_document("comparison", engines, users=users, notes=[ENGINES_DIFFER])
        return page_document("request", of_request(prepared, asked), users=users)

    def _of_fleets(self, prepared: Prepared, asked: AskedStops) -> dict[str, Any]:
        """The fleets that `find` ranks. ConfigError beside engines; DoesNotFit where none serves
        the load."""
        from kvpipe.answers.search import Search, read_want
        from kvpipe.commands.unread_wants import is_traced

        if self.options.engines:
            raise ConfigError(Problem("command.engines", "engines or cards, not both", "both"))
        search = Search(prepared=prepared, want=read_want(prepared.config.want, prepared))
        of_load = _of_trace if is_traced(prepared.config.trace) else _of_users
        return of_load(search, asked)


def _of_users(search: Search, asked: AskedStops) -> dict[str, Any]:
    from kvpipe.commands.fleet_answers import NOT_SERVED, fleets_of_users
    from kvpipe.page.document import page_document
    from kvpipe.page.fleets import notes_of, of_fleets, share_of_one

    answer, wanted = fleets_of_users(search)
    if not answer.fleets:
        raise DoesNotFit(NOT_SERVED)
    subjects = of_fleets(search.prepared, answer, wanted, asked)
    users, notes = share_of_one(answer, wanted), list(notes_of(answer, wanted))
    return page_document("fleet", subjects, users=users, notes=notes)


def _of_trace(search: Search, asked: AskedStops) -> dict[str, Any]:
    from kvpipe.commands.fleet_answers import NOT_SERVED, fleets_of_trace
    from kvpipe.page.document import page_document
    from kvpipe.page.traced_fleets import notes_of_traced, of_traced_fleets, users_of_traced
    from kvpipe.text.meanwhile import meanwhile

    with meanwhile(sys.stderr) as tell:  # whole replays
        answer, load = fleets_of_trace(search, tell)
    if not answer.fleets:
        raise DoesNotFit(NOT_SERVED)
    subjects = of_traced_fleets(search.prepared.words, answer, asked)
    users, notes = users_of_traced(answer, subjects), list(notes_of_traced(answer, load))
    return page_document("fleet", subjects, users=users, notes=notes)


def _plans(document: dict[str, Any]) -> int:
    return sum(len(subject["positions"]) for subject in document["subjects"])


def _section(document: dict[str, Any], num_bytes: int) -> Section:
    subjects = document["subjects"]
    rows = [(axis["title"], ", ".join(_stops(subjects[0], axis))) for axis in subjects[0]["axes"]]
    more = f", and {len(subjects) - 1} more" if len(subjects) > 1 else ""
    return Section(
        title=f"page: {subjects[0]['model']} on {subjects[0]['device']}{more}",
        align="ll",
        rows=rows,
        paragraphs=[Line(f"page.html: {count(_plans(document), 'plan')}, {num_bytes:,} bytes")],
    )


def _stops(subject: dict[str, Any], axis: dict[str, Any]) -> list[str]:
    """As the sliders say them: cards of a whole server, where a stop is ranks of one stage."""
    from kvpipe.page.axes import CARDS

    each = subject["pipeline"] * subject["copies"] if axis["key"] == CARDS else 1
    return [str(stop * each if isinstance(stop, int) else stop) for stop in axis["stops"]]


PLUGIN = Page
