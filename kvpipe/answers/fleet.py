"""How many of which cards serve a number of users: each server that may do it, x replicas.

Each candidate is a replica that was planned (its users are those that its memory holds, and its
engine admits); replicas are what the users need of it. A bound on the time of a token takes users
away that no such card can serve in time: that is proved, since nothing is faster than the bound.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvpipe.answers.fleet_candidates import (
    Choice,
    Refusals,
    Server,
    Shape,
    planned,
    shapes,
    unpriced,
)
from kvpipe.answers.low_end import users_at_low_end
from kvpipe.cache.load import Load, running
from kvpipe.pipeline import Prepared, profile_ranks
from kvpipe.specs.edges import largest
from kvpipe.text.meanwhile import Tell, silent


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """A running load (cache/load.py), and the seconds that a token may take (None: any)."""

    requests: int
    length: int
    token_s: float | None = None

    @property
    def load(self) -> Load:
        return running(self.requests, self.length)


@dataclass(frozen=True, kw_only=True)
class Replica:
    """One server that was planned. users: of the load's length, in a running server. limit: what
    one more lacks. sure_users: of these, those that the low end of the estimated memory holds, too.
    token_bound_s: no faster than this with all of them (None: not known).
    no_command: why there is no command, "" where there is."""

    shape: Shape
    users: int
    sure_users: int
    limit: str
    token_bound_s: float | None
    command: str
    no_command: str


@dataclass(frozen=True, kw_only=True)
class Fleet:
    """As many replicas as the load needs. cost: of all cards an hour (None: no price was given).
    headroom: users beyond those asked for, as a share of these."""

    replica: Replica
    replicas: int
    headroom: float
    cost: float | None

    @property
    def cards(self) -> int:
        return self.replicas * self.replica.shape.cards

    def is_sure(self, requests: int) -> bool:
        """Whether it serves so many at the low end of the estimated memory, too."""
        return self.replicas * self.replica.sure_users >= requests


@dataclass(frozen=True, kw_only=True)
class FleetAnswer:
    """fleets: the best first. refused: reason -> the candidates that it is the reason of; each
    reason once. unpriced: devices without a price, where others have one."""

    fleets: tuple[Fleet, ...]
    refused: Mapping[str, tuple[str, ...]]
    tried: int
    unpriced: tuple[str, ...] = ()


def plan_fleet(
    prepared: Prepared,
    wanted: Wanted,
    choice: Choice,
    prices: Mapping[str, float],
    tell: Tell = silent,
) -> FleetAnswer:
    """Ranked by cost where every device has a price, else by cards; then by cards, by headroom.
    tell: is told which candidate is planned."""
    found: list[Fleet] = []
    refused, candidates = Refusals(), shapes(choice, prepared.resolved.model)
    for number, shape in enumerate(candidates, 1):
        tell(f"candidate {number} of {len(candidates)}: {shape.name}")
        server = planned(prepared, wanted.length, shape, efficiency=1.0)
        made = server if isinstance(server, str) else _replica(server, wanted)
        if isinstance(made, str):
            refused.add(made, shape)
        else:
            found.append(_fleet(made, wanted, prices.get(shape.device)))
    by_cost = all(device in prices for device in choice.devices)
    ranked = sorted(
        found,
        key=lambda f: (
            f.cost or 0.0 if by_cost else 0.0,
            f.cards,
            -f.headroom,
            f.replica.shape.device,
        ),
    )
    return FleetAnswer(
        fleets=tuple(ranked),
        refused=refused.told(),
        tried=len(candidates),
        unpriced=unpriced(choice, prices),
    )


def _fleet(replica: Replica, wanted: Wanted, price: float | None) -> Fleet:
    replicas = -(-wanted.requests // replica.users)
    return Fleet(
        replica=replica,
        replicas=replicas,
        headroom=replicas * replica.users / wanted.requests - 1,
        cost=None if price is None else price * replicas * replica.shape.cards,
    )


def _replica(server: Server, wanted: Wanted) -> Replica | str:
    copies, bound = server.shape.dp, server.speed.bound
    users, limit = _users(server)  # of one copy
    if wanted.token_s is not None and bound is None:
        return server.speed.why
    if wanted.token_s is not None and bound is not None:
        in_time = _in_time(bound.token_seconds, wanted, users)
        if in_time < users:
            users, limit = in_time, f"{1000 * wanted.token_s:g} ms a token (bound)"
    if not users:
        return f"want.token_ms: not one user within {1000 * (wanted.token_s or 0):g} ms a token"
    return Replica(
        shape=server.shape,
        users=users * copies,
        sure_users=copies * users_at_low_end(server.plan, profile_ranks(server.made), users),
        limit=limit,
        token_bound_s=None if bound is None else bound.token_seconds(users, wanted.length),
        command=server.command,
        no_command=server.no_command,
    )


def _users(server: Server) -> tuple[int, str]:
    most, capacity = server.made.resolved.max_num_seqs, server.plan.capacity
    held = capacity.requests_running if capacity else most
    return (held, "memory") if held <= most else (most, "scheduler.max_num_seqs")


def _in_time(token_seconds: Any, wanted: Wanted, users: int) -> int:
    """The most users, up to `users`, whose tokens the bound lets come in time."""

    def in_time(running: int) -> bool:
        return bool(token_seconds(running, wanted.length) <= (wanted.token_s or 0))

    return largest(1, users, in_time) or 0
