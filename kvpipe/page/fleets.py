"""The servers of the best fleets as subjects of a page, and what is told of them in a line each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from kvpipe.answers.fleet import Fleet, FleetAnswer, Wanted
from kvpipe.answers.fleet_candidates import Server, Shape, planned
from kvpipe.cache.load import of_a_copy
from kvpipe.page.axes import AskedStops, axes_of
from kvpipe.page.sources import MOST_POSITIONS
from kvpipe.page.subject import Subject
from kvpipe.page.subject import planned as planned_subject
from kvpipe.pipeline import Prepared
from kvpipe.text.figures import count

MOST_FLEETS = 6
ONE_SERVER = (
    "Each map is of one card, and users are those of one server: the page opens with what each of "
    "the first fleet's has of the load."
)


def of_fleets(
    prepared: Prepared, answer: FleetAnswer, wanted: Wanted, asked: AskedStops
) -> tuple[Subject, ...]:
    """Those of `shown`, each server planned anew at every stop."""
    fleets = shown(answer.fleets)
    return tuple(_subject(prepared, fleet, wanted, asked, len(fleets)) for fleet in fleets)


def shown(fleets: Sequence[Fleet]) -> tuple[Fleet, ...]:
    """MOST_FLEETS in the order of rank, the best of each device among them (of as many devices)."""
    best = {fleet.replica.shape.device: place for place, fleet in reversed([*enumerate(fleets)])}
    firsts = sorted(best.values())[:MOST_FLEETS]
    others = [place for place in range(len(fleets)) if place not in firsts]
    places = sorted([*firsts, *others[: MOST_FLEETS - len(firsts)]])
    return tuple(fleets[place] for place in places)


def _left_out(fleets: Sequence[Fleet], maps: Sequence[Fleet]) -> Iterator[str]:
    """What serves the load, too, and has no map."""
    if rest := [fleet for fleet in fleets if fleet not in maps]:
        names = ", ".join(title_of(fleet) for fleet in rest[:3])
        more = " and others" if len(rest) > 3 else ""
        words = "serves the load and has" if len(rest) == 1 else "serve the load and have"
        yield f"{len(rest):,} more {words} no map here: {names}{more}"


def _subject(
    prepared: Prepared, fleet: Fleet, wanted: Wanted, asked: AskedStops, fleets: int
) -> Subject:
    server = planned(prepared, wanted.length, fleet.replica.shape, efficiency=1.0)
    assert not isinstance(server, str), server  # it was planned so a moment ago
    return of_server(prepared.words, server, title_of(fleet), asked, fleets)


def of_server(
    words: Sequence[str], server: Server, title: str, asked: AskedStops, fleets: int
) -> Subject:
    """words: of the request that it was chosen for. fleets: that share the page."""
    made, shape = server.made, server.shape
    axes = axes_of(made, asked, MOST_POSITIONS // fleets, dense=False)
    return planned_subject(made, axes, title, [*_others(words, shape), *shape.settings], made.raw)


def title_of(fleet: Fleet) -> str:
    return title_of_cards(fleet.cards, fleet.replicas, fleet.replica.shape)


def title_of_cards(cards: int, replicas: int, shape: Shape) -> str:
    """`6 cards: 3 x TP 2 of h100_80gb`."""
    return f"{count(cards, 'card')}: {replicas:,} x {shape.words} of {shape.device}"


def _others(words: Sequence[str], shape: Shape) -> Iterator[str]:
    """The request's own, but for what the server sets and what it was chosen for."""
    said = {word.partition("=")[0] for word in shape.settings}
    for word in words:
        key = word.partition("=")[0]
        if key not in said and key.partition(".")[0] not in ("want", "trace"):
            yield word


def notes_of(answer: FleetAnswer, wanted: Wanted) -> Iterator[str]:
    load = f"{count(wanted.requests, 'request')} of {count(wanted.length, 'token')} at once"
    served = f"{len(answer.fleets):,} of {count(answer.tried, 'candidate')}"
    serve = "serves" if len(answer.fleets) == 1 else "serve"
    yield f"{load}: {served} {serve} them, each planned. {ONE_SERVER}"
    maps = shown(answer.fleets)
    for place, fleet in enumerate(answer.fleets, 1):
        if fleet not in maps:
            continue
        replica = fleet.replica
        cost = "" if fleet.cost is None else f", {fleet.cost:,.2f} an hour"
        bound = replica.token_bound_s
        token = "" if bound is None else f", a token no faster than {1000 * bound:,.1f} ms"
        yield (
            f"{place}. {title_of(fleet)}{cost}: {replica.users:,} users each, headroom "
            f"{100 * fleet.headroom:.0f}%{token}, limited by {replica.limit}"
        )
    yield from _left_out(answer.fleets, maps)
    yield from refused_notes(answer.refused)


def refused_notes(refused: Mapping[str, Sequence[str]]) -> Iterator[str]:
    for reason, names in refused.items():
        yield f"{reason} ({', '.join(names[:3])}{' ...' if len(names) > 3 else ''})"


def share_of_one(answer: FleetAnswer, wanted: Wanted) -> int:
    """Users of one server of the first fleet, spread as evenly as can be."""
    return of_a_copy(wanted.requests, answer.fleets[0].replicas)
