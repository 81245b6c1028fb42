"""The servers of the fleets that serve a trace as subjects of a page; what each replay told."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kvpipe.answers.traced_fleet import TracedAnswer, TracedFleet, TracedLoad
from kvpipe.answers.waits import turned_away
from kvpipe.page.axes import AskedStops
from kvpipe.page.fleets import of_server, refused_notes, title_of_cards
from kvpipe.page.subject import Subject
from kvpipe.report.traced_fleet import load_words, told_times
from kvpipe.text.figures import count

ONE_SERVER = (
    "Each map is of one card. Users are requests of the length that is chosen, in one server; the "
    "trace's are of all lengths, and those that ran at once in the fullest server are named"
)


def of_traced_fleets(
    words: Sequence[str], answer: TracedAnswer, asked: AskedStops
) -> tuple[Subject, ...]:
    """Each server as it was planned for the longest request. words: of the request."""
    fleets = answer.fleets
    return tuple(
        of_server(words, fleet.server, _title(fleet), asked, len(fleets)) for fleet in fleets
    )


def _title(fleet: TracedFleet) -> str:
    return title_of_cards(fleet.cards, fleet.replicas, fleet.server.shape)


def notes_of_traced(answer: TracedAnswer, load: TracedLoad) -> Iterator[str]:
    served = count(answer.tried, "candidate")
    yield f"{load_words(load)}: {served} planned, {count(answer.replays, 'replay')} of it all."
    yield f"{ONE_SERVER}. {told_times(load)}"
    for place, fleet in enumerate(answer.fleets, 1):
        yield f"{place}. {_title(fleet)}{_figures(fleet)}"
        yield from turned_away(fleet.result)
    yield from refused_notes(answer.refused)


def _figures(fleet: TracedFleet) -> str:
    result = fleet.result
    parts = ["" if fleet.cost is None else f", {fleet.cost:,.2f} an hour"]
    times = ((result.first_token, "first token"), (result.each_token, "a token"))
    for found, name in times:
        if found is not None:
            shares = ", ".join(f"{1000 * each:,.1f}" for each in (found.p50, found.p90, found.p99))
            parts.append(f"; {name} {shares} ms (50%, 90%, 99%)")
    parts.append(f"; at most {busiest(fleet):,} at once in a server")
    if fleet.one_less:
        parts.append(f"; with a replica less: {fleet.one_less}")
    return "".join(parts)


def busiest(fleet: TracedFleet) -> int:
    """The most requests at once in one server: of its copies, together."""
    result, copies = fleet.result, fleet.result.copies
    if not result.replicas:
        return result.max_running
    running = [share.max_running for share in result.replicas]
    return max(sum(running[at : at + copies]) for at in range(0, len(running), copies))


def users_of_traced(answer: TracedAnswer, subjects: Sequence[Subject]) -> int:
    """That the page opens with: those that ran at once in the first fleet, or as many of the
    longest requests as its server holds."""
    first = subjects[0]
    stops = [axis.start for axis in first.axes]
    at = 0
    for axis, stop in zip(first.axes, stops, strict=True):
        at = at * len(axis.stops) + stop
    return max(1, min(busiest(answer.fleets[0]), first.positions[at].users))
