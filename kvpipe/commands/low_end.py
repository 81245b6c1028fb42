"""A line that starts by the best value of an estimate, and may not at the low end of its range:
what is missing there, and the changes with which it surely starts.
"""

from __future__ import annotations

from collections.abc import Iterator

from kvpipe.answers.more_room import more_room
from kvpipe.answers.remedies import LENGTH, Advice, ways_out
from kvpipe.answers.trials import Goal
from kvpipe.commands.told_ways import distinct_ways, told_ways
from kvpipe.commands.trouble import Trouble
from kvpipe.pipeline import Prepared
from kvpipe.report.run_input import ReportInput
from kvpipe.report.verdict import verdict_of

_MOST_TOLD = 4  # ways, in a diagnosis of 20 lines


def of_low_end(
    prepared: Prepared, report: ReportInput | None, is_whole: bool = True
) -> Iterator[Trouble]:
    """report: of the run with what was pasted (None: it was refused). is_whole: nothing is known
    to come on top."""
    if report is None:
        return
    verdict = verdict_of(report)
    if not verdict.serves or verdict.word != "may not fit":
        return
    ways = _sure_ways(prepared)
    change = dict(ways[0].changes) if ways else None
    planned = told_ways(ways, is_whole)
    text = f"{verdict.short}; {verdict.figures}. {planned}"
    yield Trouble(text=text, may_stop=True, change=change)


def _sure_ways(prepared: Prepared) -> list[Advice]:
    """Those that keep the length before those that shorten it: this line may serve as it is."""
    found = [*ways_out(prepared, Goal(surely=True)), *more_room(prepared)]
    ways = [way for way in distinct_ways(found) if way.is_sure]
    return sorted(ways, key=lambda way: LENGTH in way.changes)[:_MOST_TOLD]
