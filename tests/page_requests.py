"""Pages of real requests, and what the planner says, asked by the command that the page shows."""

from __future__ import annotations

import random
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from itertools import product
from math import ceil
from typing import Any

from kvpipe.answers.served import held_at_high_end, refused
from kvpipe.cache.plan import Plan
from kvpipe.commands.base import Command
from kvpipe.errors import DoesNotFit, KvpipeError
from kvpipe.front.flags import flags_to_words
from kvpipe.front.prepared import prepared_request
from kvpipe.front.words import words_to_overrides
from kvpipe.page.planner import planned_report
from kvpipe.pipeline import Prepared, make_backend, plan_with, profile_ranks
from kvpipe.report.accounts import CAUSES, replicas_of, split_bytes
from kvpipe.report.base import Answer
from kvpipe.report.verdict import verdict_of
from kvpipe.stages.profiling.base import MemoryProfile

SMALL = ("page", "llama", "--on", "h100", "command.batches=[2048]", "command.cards=[1,2]")
SMALL = (*SMALL, "command.lengths=[1024,32768,131072]")


def answered(*words: str) -> Answer:
    """What a page command answers."""
    asked = words_to_overrides(flags_to_words(words))
    prepared = prepared_request(asked).prepared
    command: Command = prepared.config.plugins["command"].make(Command)
    return command.run(prepared, None)


@cache
def small_page() -> Answer:
    return answered(*SMALL)


@dataclass(frozen=True, kw_only=True)
class Place:
    """A state of the sliders. stops: an index of each axis; length: in tokens, at the last one's
    stop or between two."""

    subject: int
    stops: tuple[int, ...]
    users: int
    length: int


def places(document: Mapping[str, Any], number: int, seed: int) -> list[Place]:
    """Combinations at random, each with ten numbers of users, the edges of its plan among them.
    Where lengths between stops are known every second one is such a length."""
    chance = random.Random(seed)
    found: list[Place] = []
    while len(found) < number:
        subject = chance.randrange(len(document["subjects"]))
        axes = document["subjects"][subject]["axes"]
        stops = tuple(chance.randrange(len(axis["stops"])) for axis in axes)
        here = position_at(document["subjects"][subject], stops)
        length = axes[-1]["stops"][stops[-1]]
        if chance.random() < 0.5 and (pieces := pieces_at(document["subjects"][subject], stops)):
            piece = chance.choice(pieces)
            length = chance.randint(piece["first"], piece["last"])
        edge, sure = here["users"], here["low_users"]
        most = here["high_users"]
        users = [1, max(1, sure), sure + 1, max(1, edge - 1), max(1, edge), edge + 1]
        users += [max(1, most), most + 1] + [chance.randrange(1, 5000) for _ in range(2)]
        found += [Place(subject=subject, stops=stops, users=n, length=length) for n in users]
    return found[:number]


def position_at(subject: Mapping[str, Any], stops: Sequence[int]) -> Any:
    """By the order that `Subject` documents, not by the page's own arithmetic."""
    every = list(product(*(range(len(axis["stops"])) for axis in subject["axes"])))
    return subject["positions"][every.index(tuple(stops))]


def pieces_at(subject: Mapping[str, Any], stops: Sequence[int]) -> Any:
    """What is known of lengths between stops beside these of the other sliders."""
    every = list(product(*(range(len(axis["stops"])) for axis in subject["axes"][:-1])))
    return subject["between"][every.index(tuple(stops[:-1]))] if subject["between"] else []


def changes_at(document: Mapping[str, Any], place: Place) -> dict[str, Any]:
    """Setting -> value."""
    axes = document["subjects"][place.subject]["axes"]
    found = {axis["key"]: axis["stops"][i] for axis, i in zip(axes, place.stops, strict=True)}
    return {**found, axes[-1]["key"]: place.length}


def command_line(document: Mapping[str, Any], place: Place) -> str:
    """As the page writes it."""
    subject = document["subjects"][place.subject]
    changes = [f"{key}={value}" for key, value in changes_at(document, place).items()]
    words = ["kvpipe", "run", *subject["words"], *changes, f"want.requests={place.users}"]
    return shlex.join(words)


@dataclass(frozen=True, kw_only=True)
class Told:
    """What the planner says: bytes by cause (free blocks negative where the load is more than the
    pool), the verdict, and what of the card is missing."""

    status: str
    says: str
    causes: Mapping[str, int]
    card_bytes: int


def prepared(words: Sequence[str]) -> Prepared:
    """The request of a command line."""
    return prepared_request(words_to_overrides(words)).prepared


@lru_cache(maxsize=64)
def fresh(words: tuple[str, ...]) -> tuple[Prepared, MemoryProfile, Plan]:
    """A request of that command line, planned; kept for other numbers of users."""
    made = prepared(words)
    profile = profile_ranks(made, make_backend(made.config, made.resolved.backend))
    return made, profile, plan_with(made, profile.available_kv_bytes)


def told(line: str) -> Told:
    """What the planner says to a command line; the account of its load is made here."""
    _, _, *words = shlex.split(line)
    users = int(next(word for word in words if word.startswith("want.requests=")).split("=")[1])
    try:
        made, profile, plan = fresh(tuple(w for w in words if not w.startswith("want.requests=")))
    except DoesNotFit as error:
        told = refused(prepared(words), error)
        return Told(status=told.status, says=told.lines()[0], causes={}, card_bytes=0)
    except KvpipeError as error:
        return Told(status="wrong_request", says=error.lines()[0], causes={}, card_bytes=0)
    report = replace(planned_report(made, profile, plan), requests_asked=users)
    cap = plan.capacity
    assert cap is not None
    users = ceil(users / made.resolved.parallel.dp)  # those of one copy
    # One user, alone, decoding: the shipped account of a load of one, and its blocks.
    alone = replace(plan, capacity=replace(cap, requests_steady=1, requests_at_peak=1))
    accounts = split_bytes(alone, profile, None, replicas_of(made.resolved))
    spare = [account.steady["unused_richer_rank"] for account in accounts]
    poorest = spare.index(min(spare))  # which the page draws
    one, page = accounts[poorest].steady, plan.ranks[poorest].config.bytes_per_block
    needed = cap.blocks_of(users)
    steady = sum(demand.steady_blocks for demand in cap.demands)
    causes = dict(one)
    for cause in tuple(CAUSES)[3:10]:
        causes[cause] = one[cause] * users
    causes["prefill_in_flight"] += (needed - users * steady) * page
    causes["free_blocks"] = (cap.usable_blocks - needed) * page
    verdict = verdict_of(report)
    if not verdict.serves and (high := held_at_high_end(prepared(words))):
        verdict = verdict_of(replace(report, held_at_most=high))
    total = profile.ranks[poorest].total.num_bytes
    return Told(status=verdict.status, says=verdict.short, causes=causes, card_bytes=total)


def rows_of(document: Mapping[str, Any], asked: Sequence[Place]) -> list[list[Any]]:
    """Subject, stops, users and length of each place, as its own script is asked."""
    return [[p.subject, p.stops, p.users, p.length] for p in asked]


def check_script(document: Mapping[str, Any], place: Place, drawn: Any, verdict: Any) -> None:
    """What segments() and verdict() of the page's script gave, beside a fresh plan."""
    names = [cause["name"] for cause in document["causes"]]
    expected = told(command_line(document, place))
    assert verdict == {"status": expected.status, "says": expected.says}
    if expected.causes:
        named = [("overflow" if n < 0 else names[n], num_bytes) for n, num_bytes in drawn]
        assert named == list(segments(expected.causes, expected.card_bytes))


def segments(causes: Mapping[str, int], card_bytes: int) -> Iterator[tuple[str, int]]:
    """What the map draws of an account: inside of the card in order, then what is left of it, then
    what is too much, as one."""
    positive = {cause: n for cause, n in causes.items() if n > 0}
    left = positive.pop("not_requested", 0)
    room, beyond = card_bytes - left, 0
    for cause, num_bytes in positive.items():
        inside = max(0, min(num_bytes, room))
        room, beyond = room - inside, beyond + num_bytes - inside
        if inside:
            yield cause, inside
    if left:
        yield "not_requested", left
    if beyond:
        yield "overflow", beyond
