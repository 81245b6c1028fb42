"""A fleet, told: a ranked table, what each is limited by, the winner's command line."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from kvpipe.answers.fleet import Fleet, FleetAnswer, Wanted
from kvpipe.text.figures import count
from kvpipe.text.lines import Command, Line, Section

MOST_ROWS = 12


def sections(answer: FleetAnswer, wanted: Wanted, model: str) -> list[Section]:
    found = answer.fleets
    table = Section(
        title=f"find: {count(wanted.requests, 'request')} of {count(wanted.length, 'token')} at "
        f"once, {model}",
        headers=("cards", "of", "as", "users each", "headroom", "cost/h", "a token >=", "limit"),
        align="rllrrrrl",
        rows=[_row(fleet) for fleet in found[:MOST_ROWS]],
        paragraphs=[
            Line(
                f"{count(answer.tried, 'candidate')}, {len(found):,} serve the load; each replica "
                "was planned. users each: of one replica, one of them reading its prompt. cost/h: "
                "by the prices you gave. a token: no faster than this with all users (a bound)",
                "faint",
            ),
            *(Line(f"{reason} ({_names(names)})") for reason, names in answer.refused.items()),
        ],
    )
    if not found:
        return [table]
    best = found[0]
    lines: list[Line | Command] = [
        Line(f"  on each of {count(best.replicas, 'replica')}:", "faint"),
        *([Command(best.replica.command, "  ")] if best.replica.command else []),
    ]
    return [table, Section(title="The first of them, to start", verbatim=lines)]


def _row(fleet: Fleet) -> tuple[str, ...]:
    replica = fleet.replica
    shape = f"{fleet.replicas:,} x TP {replica.tp}"
    if replica.pp > 1:
        shape += f" PP {replica.pp}"
    token = replica.token_bound_s
    return (
        f"{fleet.cards:,}",
        replica.device,
        shape,
        f"{replica.users:,}",
        f"{100 * fleet.headroom:.0f}%",
        "-" if fleet.cost is None else f"{fleet.cost:,.2f}",
        "-" if token is None else f"{1000 * token:,.1f} ms",
        replica.limit,
    )


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
                **asdict(fleet.replica),
            }
            for fleet in answer.fleets
        ],
        "refused": [
            {"reason": reason, "candidates": list(names)}
            for reason, names in answer.refused.items()
        ],
    }
