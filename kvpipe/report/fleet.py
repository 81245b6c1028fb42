"""A fleet, told: a ranked table, what each is limited by, the winner's command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Protocol

from kvpipe.answers.fleet import Fleet, FleetAnswer, Replica, Wanted
from kvpipe.answers.fleet_candidates import Shape
from kvpipe.report.pareto import Point, pareto
from kvpipe.text.figures import count
from kvpipe.text.lines import Command, Line, Section

MOST_ROWS = 12


def sections(answer: FleetAnswer, wanted: Wanted, model: str) -> list[Section]:
    found = answer.fleets
    headers, align, rows = _table(answer, wanted)
    table = Section(
        title=f"find: {count(wanted.requests, 'request')} of {count(wanted.length, 'token')} at "
        f"once, {model}",
        headers=headers,
        align=align,
        rows=rows,
        spare=_SPARE,
        paragraphs=[
            Line(_means(answer, headers), "faint"),
            *low_end(answer, wanted),
            *by_cards(answer.unpriced),
            *refusals(answer.refused),
        ],
    )
    if not found:
        return [table]
    return [table, to_start(found[0], found[0].replica)]


_COLUMNS = ("cards", "of", "as", "users", "headroom", "cost/h", "token >=", "limit", "verdict")
_SPARE = ("headroom", "limit")  # users say the one; find.json has both
_ALIGNED = dict(zip(_COLUMNS, "rllrrrrll", strict=True))


def _table(
    answer: FleetAnswer, wanted: Wanted
) -> tuple[tuple[str, ...], str, list[tuple[str, ...]]]:
    """Headers, alignment, rows; without columns that say one thing of all, or nothing."""
    shown = answer.fleets[:MOST_ROWS]
    rows = [_row(fleet, wanted) for fleet in shown]
    silent = {"cost/h": "-", "token >=": "-", "limit": "memory", "verdict": "fits"}
    kept = [name for name in _COLUMNS if any(row[name] != silent.get(name) for row in rows)]
    return (
        tuple(kept),
        "".join(_ALIGNED[name] for name in kept),
        [tuple(row[name] for name in kept) for row in rows],
    )


def _means(answer: FleetAnswer, headers: Sequence[str]) -> str:
    tried, found = answer.tried, len(answer.fleets)
    verb = "serves" if found == 1 else "serve"
    words = f"{count(tried, 'candidate')}, {found:,} {verb} the load"
    if not found:
        return f"{words}; each was planned"
    words += "; each replica was planned. users: of one replica, one of them reading its prompt"
    if "limit" not in headers:
        words += ". limit of all: memory"
    if "cost/h" in headers:
        words += ". cost/h: by the prices you gave"
    if "token >=" in headers:
        words += ". token: no faster than this with all users (a bound)"
    return words


def _row(fleet: Fleet, wanted: Wanted) -> dict[str, str]:
    replica = fleet.replica
    token = replica.token_bound_s
    return {
        "cards": f"{fleet.cards:,}",
        "of": replica.shape.device,
        "as": shape_of(fleet.replicas, replica.shape),
        "users": f"{replica.users:,}",
        "headroom": f"{100 * fleet.headroom:.0f}%",
        "cost/h": "-" if fleet.cost is None else f"{fleet.cost:,.2f}",
        "token >=": "-" if token is None else f"{1000 * token:,.1f} ms",
        "limit": replica.limit,
        "verdict": "fits" if fleet.is_sure(wanted.requests) else "may not fit",
    }


class Started(Protocol):
    @property
    def command(self) -> str: ...
    @property
    def no_command(self) -> str: ...


def to_start(first: Counted, one: Started) -> Section:
    """one: of the replicas."""
    lines: list[Line | Command] = [
        Line(f"  {_on_each(first.replicas)}:", "faint"),
        Command(one.command, "  ") if one.command else Line(f"  no line: {one.no_command}"),
    ]
    return Section(title="The first of them, to start", verbatim=lines)


def _on_each(replicas: int) -> str:
    return f"on each of {replicas:,} replicas" if replicas > 1 else "on its one replica"


def low_end(answer: FleetAnswer, wanted: Wanted) -> list[Line]:
    """What the first fleet is, should the memory be the least of its range."""
    if not answer.fleets:
        return []
    first = answer.fleets[0]
    sure, words = (
        first.replica.sure_users,
        "memory: the estimate's best value; with the least of its range",
    )
    if first.is_sure(wanted.requests):
        return [
            Line(f"{words} the first serves the load, too ({count(sure, 'user')} each)", "faint")
        ]
    need = f"{-(-wanted.requests // sure):,} replicas" if sure else "no number of these"
    told = f"each of the first has {count(sure, 'user')}: {need} would serve the load"
    return [Line(f"{words} {told}", "warning")]


def by_cards(unpriced: Sequence[str]) -> list[Line]:
    """Why prices that were given rank nothing."""
    if not unpriced:
        return []
    names = ", ".join(unpriced)
    return [Line(f"ranked by cards, not by cost: want.prices has none of {names}")]


def refusals(refused: Mapping[str, tuple[str, ...]]) -> list[Line]:
    return [Line(f"{reason} ({_names(names)})") for reason, names in refused.items()]


def shape_of(replicas: int, shape: Shape) -> str:
    """`4 x TP 2 PP 2`."""
    return f"{replicas:,} x {shape.words}"


def named(replicas: int, shape: Shape) -> str:
    """`4 x TP 2 PP 2 of l40s`."""
    return f"{shape_of(replicas, shape)} of {shape.device}"


def _names(names: tuple[str, ...]) -> str:
    shown = ", ".join(names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"


def document(answer: FleetAnswer, wanted: Wanted) -> dict[str, Any]:
    return {
        "load": {**asdict(wanted), "name": wanted.load.name},
        "tried": answer.tried,
        "fleets": [
            {
                "cards": fleet.cards,
                "replicas": fleet.replicas,
                "headroom": fleet.headroom,
                "cost_per_hour": fleet.cost,
                **_plain(fleet.replica),
            }
            for fleet in answer.fleets
        ],
        "refused": refused_document(answer.refused),
    }


def refused_document(refused: Mapping[str, tuple[str, ...]]) -> list[dict[str, Any]]:
    return [{"reason": reason, "candidates": list(names)} for reason, names in refused.items()]


def _plain(replica: Replica) -> dict[str, Any]:
    plain = asdict(replica)
    return {**plain.pop("shape"), **plain}


def picture(answer: FleetAnswer, wanted: Wanted, model: str) -> str | None:
    """None where the time of a token is known of none of them."""
    timed = [
        (fleet, fleet.replica.shape, 1000 * fleet.replica.token_bound_s)
        for fleet in answer.fleets
        if fleet.replica.token_bound_s is not None
    ]
    if not timed:
        return None
    return drawn(
        timed,
        title=f"{count(wanted.requests, 'request')} of {count(wanted.length, 'token')} at once",
        model=model,
        delay="milliseconds a token, at best (a bound, with all users)",
    )


def drawn(
    timed: Sequence[tuple[Counted, Shape, float]], *, title: str, model: str, delay: str
) -> str:
    """timed: fleets, the shape of their replicas, milliseconds. All by what they cost, or, where
    that is not known of each, all by their cards."""
    priced = all(fleet.cost is not None for fleet, _, _ in timed)
    points = [
        Point(
            name=f"{shape_of(fleet.replicas, shape)} {shape.device}",
            cost=fleet.cost if priced and fleet.cost is not None else fleet.cards,
            delay=milliseconds,
        )
        for fleet, shape, milliseconds in timed
    ]
    cost = "price an hour" if priced else "cards"
    return pareto(points, title=title, model=model, cost=cost, delay=delay)


class Counted(Protocol):
    """A fleet, whatever it serves."""

    @property
    def replicas(self) -> int: ...
    @property
    def cards(self) -> int: ...
    @property
    def cost(self) -> float | None: ...
