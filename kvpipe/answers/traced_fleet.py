"""How many of which cards serve a trace of requests within bounds on waiting.

A fleet is the least number of equal replicas that keep up: found by doubling and bisection, each
step a replay of the whole trace, so that what is told was replayed, and one replica less was, too.
A candidate stops where it becomes dearer than the fleets that are already known, and is left out
at once where even an empty server is provably too slow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial

from kvpipe.answers.fleet_candidates import Choice, Refusals, Server, planned, shapes, unpriced
from kvpipe.answers.lateness import Lateness, LostError
from kvpipe.answers.waits import Waits, is_timed, too_late
from kvpipe.errors import DoesNotFit
from kvpipe.pipeline import Prepared, plan_with, profile_ranks
from kvpipe.simulation.play import replay
from kvpipe.simulation.result import ReplayResult
from kvpipe.simulation.traces.base import TraceOptions, TraceRequest
from kvpipe.specs.edges import smallest
from kvpipe.text.figures import count
from kvpipe.text.meanwhile import Tell, silent

MOST_FLEETS = 5  # that are looked for: dearer ones are not replayed
MOST_REPLICAS = 256
_NAMES = {"wait": "wait", "first_token": "first token", "token": "a token"}


@dataclass(frozen=True, kw_only=True)
class TracedLoad:
    """length: tokens that a server must take, prompt and output."""

    requests: Sequence[TraceRequest]
    options: TraceOptions
    length: int
    waits: Waits


@dataclass(frozen=True, kw_only=True)
class TracedFleet:
    """replicas: the least that serve the load. result: its replay. one_less: what it lacks with a
    replica less ("" where it has one). cost: of all cards an hour (None: no price)."""

    server: Server
    replicas: int
    result: ReplayResult
    one_less: str
    cost: float | None

    @property
    def cards(self) -> int:
        return self.replicas * self.server.shape.cards


@dataclass(frozen=True, kw_only=True)
class TracedAnswer:
    """fleets: the best first. refused: reason -> names of candidates. replays: how many. unpriced:
    devices without a price, where others have one. unsure: what the first fleet lacks at the low
    end of the estimated memory ("" where it serves the load there, too)."""

    fleets: tuple[TracedFleet, ...]
    refused: Mapping[str, tuple[str, ...]]
    tried: int
    replays: int
    unpriced: tuple[str, ...] = ()
    unsure: str = ""


def serve_trace(
    prepared: Prepared,
    load: TracedLoad,
    choice: Choice,
    prices: Mapping[str, float],
    tell: Tell = silent,
) -> TracedAnswer:
    """Ranked by cost where every device has a price, else by cards. tell: is told which candidate
    is planned, and each replay."""
    priced = all(device in prices for device in choice.devices)
    price = prices if priced else dict.fromkeys(choice.devices, 1.0)
    candidates = shapes(choice, prepared.resolved.model)
    found: list[TracedFleet] = []
    refused, replays = Refusals(), 0
    by_price = sorted(candidates, key=lambda s: (price[s.device] * s.cards, s.cards))
    for number, shape in enumerate(by_price, 1):
        candidate = f"candidate {number} of {len(by_price)}: {shape.name}"
        tell(candidate)
        server = planned(prepared, load.length, shape, load.options.efficiency)
        why = server if isinstance(server, str) else _too_slow(server, load)
        if isinstance(server, str) or why:
            refused.add(why, shape)
            continue
        each = price[shape.device] * shape.cards
        most = _most_replicas(found, each, price, len(load.requests))
        search = _Search(server=server, load=load, tell=partial(_told, tell, candidate))
        known = shape.device in prices
        fleet = search.least(most, prices[shape.device] * shape.cards if known else None)
        replays += search.replays
        if fleet is None:
            refused.add(search.why, shape)
        else:
            found = sorted([*found, fleet], key=lambda f: _rank(f, price))[:MOST_FLEETS]
    return TracedAnswer(
        fleets=tuple(found),
        refused=refused.told(),
        tried=len(by_price),
        replays=replays,
        unpriced=unpriced(choice, prices),
        unsure=_lacks_at_low_end(found[0], load) if found else "",
    )


def _lacks_at_low_end(fleet: TracedFleet, load: TracedLoad) -> str:
    """Replayed whole with the least memory of the estimate."""
    server = fleet.server
    memory = [rank.available_kv.at_least for rank in profile_ranks(server.made).ranks]
    try:
        plan = plan_with(server.made, memory, compared=())
    except DoesNotFit:
        return "the weights or one request do not fit"
    return _lacks(_replayed(replace(server, plan=plan), load, fleet.replicas), load.waits)


def _replayed(server: Server, load: TracedLoad, replicas: int) -> ReplayResult | str:
    """A text: what it lacks, where it was given up as lost."""
    lateness = Lateness(waits=load.waits, requests=len(load.requests))
    try:
        return _whole(server, load, replicas, lateness)
    except LostError as lost:
        return f"{_NAMES[lost.wait]} too late"


def _whole(server: Server, load: TracedLoad, replicas: int, lateness: Lateness) -> ReplayResult:
    made = server.made
    return replay(
        load.requests,
        server.plan,
        load.options.model_copy(update={"replicas": replicas}),
        max_num_seqs=made.resolved.max_num_seqs,
        prefix_caching=made.config.cache.enable_prefix_caching,
        best=server.speed.bound,
        copies=made.resolved.parallel.dp,
        together=bool(made.resolved.model.experts_per_token),
        latencies=lateness.latencies,
    )


def _told(tell: Tell, candidate: str, replicas: int) -> None:
    tell(f"{candidate}, the trace with {count(replicas, 'replica')}")


def _rank(fleet: TracedFleet, price: Mapping[str, float]) -> tuple[float, int, float]:
    """The cheapest first, then the fewest cards, then who answers first."""
    first = fleet.result.first_token
    price_of_all = price[fleet.server.shape.device] * fleet.cards
    return (price_of_all, fleet.cards, first.p99 if first else 0.0)


def _most_replicas(
    found: Sequence[TracedFleet], each: float, price: Mapping[str, float], requests: int
) -> int:
    """As many as are not dearer than the last of the fleets that would be told."""
    most = min(MOST_REPLICAS, requests)
    if len(found) < MOST_FLEETS:
        return most
    return min(most, int(_rank(found[-1], price)[0] / each + 1e-9))


def _too_slow(server: Server, load: TracedLoad) -> str:
    """Why not even one request alone comes in time, or no time is known; "" where neither is so."""
    bound, waits = server.speed.bound, load.waits
    if bound is None:
        return "" if is_timed(load.options, bound) else server.speed.why
    shortest = min(request.prompt_tokens for request in load.requests)
    if waits.token_s is not None and bound.token_seconds(1, shortest) > waits.token_s:
        return f"want.token_ms: no token within {1000 * waits.token_s:g} ms, even alone (bound)"
    chunk = server.made.resolved.limits.max_num_batched_tokens
    first = waits.first_token_s
    if first is not None and bound.first_token_seconds(shortest, chunk) > first:
        return f"want.first_token_ms: none within {1000 * first:g} ms, even alone (bound)"
    return ""


class _Search:
    """The least number of one server that serve a load. replays: how many it took; why: what the
    last that failed lacked. tell: is told the replicas of each."""

    def __init__(self, *, server: Server, load: TracedLoad, tell: Callable[[int], None]) -> None:
        self.server, self.load, self.replays, self.why = server, load, 0, ""
        self.tell = tell
        self._played: Callable[[int], ReplayResult | str] = cache(self._play)

    def least(self, most: int, price: float | None) -> TracedFleet | None:
        """Of at most `most` replicas. price: of one an hour."""
        tried = 1
        while tried <= most and not self._serves(tried):
            tried *= 2
        if tried > most and not (tried // 2 < most and self._serves(most)):
            dearer = most < min(MOST_REPLICAS, len(self.load.requests))
            self.why += "; more are dearer than the fleets above" if self.why and dearer else ""
            self.why = self.why or "dearer than the fleets above, with any number of replicas"
            return None
        replicas = smallest(tried // 2 + 1, min(tried, most), self._serves) or most
        lacks = _lacks(self._played(replicas - 1), self.load.waits) if replicas > 1 else ""
        result = self._played(replicas)
        assert not isinstance(result, str), result  # it serves
        return TracedFleet(
            server=self.server,
            replicas=replicas,
            result=result,
            one_less=lacks,
            cost=None if price is None else price * replicas,
        )

    def _serves(self, replicas: int) -> bool:
        lacks = _lacks(self._played(replicas), self.load.waits)
        if lacks:
            self.why = f"{count(replicas, 'replica')}: {lacks}"
        return not lacks

    def _play(self, replicas: int) -> ReplayResult | str:
        self.replays += 1
        self.tell(replicas)
        return _replayed(self.server, self.load, replicas)


def _lacks(result: ReplayResult | str, waits: Waits) -> str:
    """What keeps the load from being served; "" where it is."""
    if isinstance(result, str):
        return result
    if result.counts.never_fit:
        return f"{count(result.counts.never_fit, 'request')} larger than the pool"
    if not result.counts.finished:
        return "no request finished"
    if result.overload is not None:
        return "overloaded"
    for name, _, _ in too_late(result, waits):
        return f"{_NAMES[name]} too late"
    return ""
