"""How many of which cards serve a number of users: devices x tensor x pipeline parallel x replicas.

Each candidate is a replica that was planned (its users are those that its memory holds, and its
engine admits); replicas are what the users need of it. A bound on the time of a token takes users
away that no such card can serve in time: that is proved, since nothing is faster than the bound.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvpipe.answers.serve_line import line_for
from kvpipe.answers.speed import speed_of
from kvpipe.cache.load import Load, running
from kvpipe.cache.plan import Plan
from kvpipe.errors import KvpipeError
from kvpipe.pipeline import Prepared, make_backend, plan_with, prepare, profile_ranks
from kvpipe.request.changed import changed
from kvpipe.specs.edges import largest

TENSOR_PARALLEL = (1, 2, 4, 8)
PIPELINE_PARALLEL = (1, 2)


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
    one more lacks. token_bound_s: no faster than this with all of them (None: not known)."""

    device: str
    tp: int
    pp: int
    users: int
    limit: str
    token_bound_s: float | None
    command: str

    @property
    def cards(self) -> int:
        return self.tp * self.pp


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
        return self.replicas * self.replica.cards


@dataclass(frozen=True, kw_only=True)
class FleetAnswer:
    """fleets: the best first. refused: reason -> the candidates that it is the reason of; each
    reason once."""

    fleets: tuple[Fleet, ...]
    refused: Mapping[str, tuple[str, ...]]
    tried: int


def plan_fleet(
    prepared: Prepared, wanted: Wanted, devices: Sequence[str], prices: Mapping[str, float]
) -> FleetAnswer:
    """Ranked by cost where every device has a price, else by cards; then by cards, by headroom."""
    found: list[Fleet] = []
    refused: dict[str, list[str]] = {}
    tried = 0
    for device, tp, pp in _candidates(devices):
        tried += 1
        name = f"{device} TP {tp}" + (f" PP {pp}" if pp > 1 else "")
        made = _replica(prepared, wanted, device, tp, pp)
        if isinstance(made, str):
            refused.setdefault(made, []).append(name)
        else:
            found.append(_fleet(made, wanted, prices.get(device)))
    by_cost = all(fleet.cost is not None for fleet in found)
    ranked = sorted(
        found,
        key=lambda f: (f.cost or 0.0 if by_cost else 0.0, f.cards, -f.headroom, f.replica.device),
    )
    return FleetAnswer(
        fleets=tuple(ranked),
        refused={reason: tuple(names) for reason, names in refused.items()},
        tried=tried,
    )


def _candidates(devices: Sequence[str]) -> Iterator[tuple[str, int, int]]:
    for device in devices:
        for pp in PIPELINE_PARALLEL:
            yield from ((device, tp, pp) for tp in TENSOR_PARALLEL)


def _fleet(replica: Replica, wanted: Wanted, price: float | None) -> Fleet:
    replicas = -(-wanted.requests // replica.users)
    return Fleet(
        replica=replica,
        replicas=replicas,
        headroom=replicas * replica.users / wanted.requests - 1,
        cost=None if price is None else price * replicas * replica.cards,
    )


def _replica(prepared: Prepared, wanted: Wanted, device: str, tp: int, pp: int) -> Replica | str:
    """The replica, or why there is none, in the words that name no number of the candidate."""
    try:
        made = prepare(_changed(prepared, wanted, device, tp, pp))
        backend = make_backend(made.config, made.resolved.backend)
        memory = profile_ranks(made, backend).available_kv_bytes
        plan = plan_with(made, memory, compared=())
    except KvpipeError as error:
        key = error.lines()[0].partition(":")[0]
        return f"{key}: {_short(error)}"
    users, limit = _users(made, plan)
    bound = speed_of(made).bound
    if wanted.token_s is not None and bound is not None:
        in_time = _in_time(bound.token_seconds, wanted, users)
        if in_time < users:
            users, limit = in_time, f"{1000 * wanted.token_s:g} ms a token (bound)"
    if not users:
        return f"want.token_ms: not one user within {1000 * (wanted.token_s or 0):g} ms a token"
    return Replica(
        device=device,
        tp=tp,
        pp=pp,
        users=users,
        limit=limit,
        token_bound_s=None if bound is None else bound.token_seconds(users, wanted.length),
        command=line_for(made, plan),
    )


def _short(error: KvpipeError) -> str:
    return "the weights or one request do not fit" if error.exit_code == 1 else "not for this model"


def _users(made: Prepared, plan: Plan) -> tuple[int, str]:
    held = plan.capacity.requests_running if plan.capacity else made.resolved.max_num_seqs
    most = made.resolved.max_num_seqs
    return (held, "memory") if held <= most else (most, "scheduler.max_num_seqs")


def _in_time(token_seconds: Any, wanted: Wanted, users: int) -> int:
    """The most users, up to `users`, whose tokens the bound lets come in time."""

    def in_time(running: int) -> bool:
        return bool(token_seconds(running, wanted.length) <= (wanted.token_s or 0))

    return largest(1, users, in_time) or 0


def _changed(prepared: Prepared, wanted: Wanted, device: str, tp: int, pp: int) -> dict[str, Any]:
    changes: dict[str, Any] = {
        "device": device,
        "scheduler.max_model_len": wanted.length,
        "parallel.tensor_parallel_size": tp,
        "parallel.pipeline_parallel_size": pp,
    }
    raw = prepared.raw
    if raw["cache"]["kv_cache_memory_bytes"] is None and raw["profiling"]["name"] != "estimate":
        changes["profiling"] = "estimate"
    return changed(raw, changes)
