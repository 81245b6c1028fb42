"""`kvpipe find want.device=[...] trace=...`: fleets that serve what arrives, each replayed anew."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any
from xml.etree import ElementTree

import pytest

from kvpipe.answers import traced_fleet
from kvpipe.answers.fleet_candidates import Choice, Shape, shapes
from kvpipe.answers.speed import speed_of
from kvpipe.answers.traced_fleet import MOST_FLEETS, TracedAnswer, TracedLoad, Waits, serve_trace
from kvpipe.front.main import run
from kvpipe.front.prepared import prepared_request
from kvpipe.pipeline import plan_of
from kvpipe.report.pareto import Point, front
from kvpipe.simulation.latencies import Percentiles
from kvpipe.simulation.play import read_trace, replay
from kvpipe.simulation.result import ReplayResult

MODEL = ("model=llama", "engine=vllm", "backend=meta")
TRACE = ("trace=synthetic", "trace.requests_per_second=12", "trace.max_requests=60")
LENGTH = 4096
REQUESTS = 20  # no fleet has more replicas than requests
DEVICES = ("l4", "l40s")
PRICES = {"l4": 0.5, "l40s": 2.0}
ANY = Waits(percentile=90)
WAITS = Waits(percentile=90, first_token_s=3.0, token_s=0.2)


@cache
def answer(priced: bool) -> TracedAnswer:
    prepared = prepared_request([*MODEL, *TRACE]).prepared
    trace = read_trace(prepared.config.trace)
    load = TracedLoad(requests=trace.requests(), options=trace.options, length=LENGTH, waits=WAITS)
    return serve_trace(prepared, load, Choice(devices=DEVICES), PRICES if priced else {})


def replayed(shape: Shape, replicas: int) -> ReplayResult:
    """As `kvpipe replay` would, on a server composed anew."""
    prepared = prepared_request(
        [
            *MODEL,
            *TRACE,
            f"device={shape.device}",
            f"parallel.tensor_parallel_size={shape.tp}",
            f"parallel.pipeline_parallel_size={shape.pp}",
            f"scheduler.max_model_len={LENGTH}",
            f"trace.replicas={replicas}",
        ]
    ).prepared
    trace = read_trace(prepared.config.trace)
    return replay(
        trace.requests(),
        plan_of(prepared),
        trace.options,
        max_num_seqs=prepared.resolved.max_num_seqs,
        prefix_caching=prepared.config.cache.enable_prefix_caching,
        best=speed_of(prepared).bound,
    )


def serves(result: ReplayResult) -> bool:
    first, token = result.first_token, result.each_token
    assert first is not None and token is not None
    in_time = first.p90 <= 3.0 and token.p90 <= 0.2
    return in_time and result.overload is None and not result.counts.never_fit


@pytest.mark.full
@pytest.mark.parametrize("priced", [False, True])
def test_each_fleet_serves_the_load_and_one_replica_less_does_not(priced: bool) -> None:
    found = answer(priced).fleets
    assert 1 < len(found) <= MOST_FLEETS
    assert not priced or any(fleet.replicas > 1 for fleet in found)  # else nothing is shown
    for fleet in found:
        result = replayed(fleet.server.shape, fleet.replicas)
        assert serves(result) and result.to_json() == fleet.result.to_json()
        if fleet.replicas > 1:
            less = replayed(fleet.server.shape, fleet.replicas - 1)
            assert fleet.one_less and not serves(less)


def found(monkeypatch, waits: Waits, so: Callable[[int, int], dict[str, Any]]) -> TracedAnswer:
    """The fleets of a load whose replay differs from a real one so: (replicas, cards of each)."""
    prepared = prepared_request([*MODEL, *TRACE]).prepared
    trace = read_trace(prepared.config.trace)
    requests = trace.requests()[:REQUESTS]
    one = replay(requests[:1], plan_of(prepared), trace.options)

    def played(_requests, plan, options, **_more) -> ReplayResult:
        pretended = replace(one)
        for name, value in so(options.replicas, len(plan.ranks)).items():
            object.__setattr__(pretended, name, value)  # what is worked out is pretended, too
        return pretended

    monkeypatch.setattr(traced_fleet, "replay", played)
    load = TracedLoad(requests=requests, options=trace.options, length=LENGTH, waits=waits)
    return serve_trace(prepared, load, Choice(devices=["l40s"]), {})


@pytest.mark.parametrize("need", [1, 2, 3, 5, 6, 7])
def test_the_least_number_of_replicas_is_found_whatever_it_is(need: int, monkeypatch) -> None:
    told = found(monkeypatch, ANY, lambda n, _: {"overload": None if n >= need else 2.0})
    lacks = "overloaded" if need > 1 else ""
    assert {(each.replicas, each.one_less) for each in told.fleets} == {(need, lacks)}


@pytest.mark.parametrize("seed", range(8))
def test_no_fleet_that_was_left_out_takes_fewer_cards_than_the_last_that_is_told(
    seed: int, monkeypatch
) -> None:
    """Servers of so many cards, of which a load needs any number: each tried, one by one."""
    rng = random.Random(seed)
    need = {cards: rng.randint(1, 40 // cards + 2) for cards in (1, 2, 4, 8, 16)}
    told = found(monkeypatch, ANY, lambda n, cards: {"overload": [2.0, None][n >= need[cards]]})
    model = prepared_request(MODEL).prepared.resolved.model
    sizes = [shape.cards for shape in shapes(Choice(devices=["l40s"]), model)]
    every = sorted(cards * need[cards] for cards in sizes if need[cards] <= REQUESTS)
    assert [each.cards for each in told.fleets] == every[:MOST_FLEETS]


def test_a_candidate_whose_further_replicas_are_dearer_is_said_to_have_them(monkeypatch) -> None:
    """Twelve of any server are needed: twelve of sixteen cards were never looked for."""
    told = found(monkeypatch, ANY, lambda n, _: {"overload": None if n >= 12 else 2.0})
    reasons = [reason for reason in told.refused if "replica" in reason]
    assert len(told.fleets) == MOST_FLEETS and len(reasons) > 0
    assert all(
        reason.endswith("overloaded; more are dearer than the fleets above") for reason in reasons
    )
    lacking = found(monkeypatch, ANY, lambda *_: {"overload": 2.0})
    assert list(lacking.refused) == ["20 replicas: overloaded"]


@pytest.mark.parametrize(("percentile", "need"), [(50, 2), (90, 3), (99, 5)])
@pytest.mark.parametrize(
    ("name", "bound", "lacks"),
    [
        ("wait", "wait_s", "wait too late"),
        ("first_token", "first_token_s", "first token too late"),
        ("each_token", "token_s", "a token too late"),
    ],
)
def test_each_wait_is_held_at_the_percentile_that_is_asked(
    name: str, bound: str, lacks: str, percentile: int, need: int, monkeypatch
) -> None:
    told = found(
        monkeypatch,
        Waits(**{"percentile": percentile, bound: 1.0}),
        lambda n, _: {name: Percentiles(count=20, p50=2 / n, p90=3 / n, p99=5 / n)},
    )
    assert {(each.replicas, each.one_less) for each in told.fleets} == {(need, lacks)}


@pytest.mark.parametrize(
    ("bound", "why"),
    [
        ("token_s", "want.token_ms: no token within 0.01 ms, even alone (bound)"),
        ("first_token_s", "want.first_token_ms: none within 0.01 ms, even alone (bound)"),
    ],
)
def test_a_server_that_is_too_slow_when_it_is_empty_is_not_replayed(bound, why, monkeypatch):
    told = found(monkeypatch, Waits(**{"percentile": 90, bound: 1e-5}), lambda *_: {})
    assert why in told.refused and (told.fleets, told.replays) == ((), 0)


@pytest.mark.full
def test_the_cheapest_is_told_first_and_every_other_candidate_is_refused_by_name() -> None:
    told = answer(True)
    last = told.fleets[-1].cost
    assert last is not None and len(told.fleets) == MOST_FLEETS
    costs = [fleet.cost for fleet in told.fleets]
    assert costs == sorted(costs)
    named = {fleet.server.shape.name for fleet in told.fleets}
    refused = [name for names in told.refused.values() for name in names]
    assert named.isdisjoint(refused) and len(refused) + len(named) <= told.tried == 16


def test_of_the_front_nothing_else_is_both_cheaper_and_quicker() -> None:
    points = [
        Point(name=f"{x}", cost=x, delay=y)
        for x, y in ((1, 9), (2, 9), (2, 5), (3, 6), (4, 1), (5, 1))
    ]
    assert [(p.cost, p.delay) for p in front(points)] == [(1, 9), (2, 5), (4, 1)]


def test_a_trace_is_served_on_the_screen_and_in_files(capsys, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["find", *MODEL, *TRACE, "want.device=[l40s]", "hydra.run.dir=out"]
    assert run(words) == 0
    out = capsys.readouterr().out
    assert "8 candidates planned" in out and "no engine reaches" in out
    document = json.loads((tmp_path / "out/find.json").read_text())
    assert document["fleets"][0]["replay"]["overload"] is None
    ElementTree.fromstring((tmp_path / "out/fleets.svg").read_text())
    assert run([*words, "want.token_ms=0.01"]) == 1
    assert "no token within 0.01 ms, even alone" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["want.device=[l4]", "want.wait_ms=5"], "want.wait_ms: expected a trace of requests"),
        (["want.first_token_ms=5"], "want.first_token_ms: expected a trace of requests"),
        (["trace=synthetic"], "trace: expected cards to serve it with, got none; want.device="),
        (["want.device=[h101,l4]", "want.prices={l5:1}"], "want.prices: expected names of device"),
        (["want.device=[l4]", "want.prices={h100:1}"], "want.prices: expected prices of want.dev"),
        (["want.percentile=80"], "want.percentile: expected 50, 90, 99"),
        (["want.device=[l4]", "want.percentile=50"], "want.percentile: expected a trace of req"),
        (["want.device=[l4]", "want.image=mine"], "want.image: expected a file that names it"),
        (["want.token_ms=20"], "want.token_ms: expected cards to choose from, got want.device"),
        (["want.prices={h100:2.5}"], "want.prices: expected cards to choose from, got want.dev"),
        (["want.write=compose"], "want.write: expected cards to choose from, got want.device=n"),
        (["want.image=mine"], "want.image: expected cards to choose from, got want.device=null"),
    ],
)
def test_what_a_trace_needs_is_said(words, said, capsys, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["find", *MODEL, *words]) == 2
    assert said in capsys.readouterr().err
    assert not list(tmp_path.rglob("*.json"))


def test_everything_that_find_would_not_read_is_told_at_once(capsys, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    said = ["token_ms=20", "first_token_ms=9", "wait_ms=9", "percentile=50", "write=compose"]
    assert run(["find", *MODEL, *(f"want.{word}" for word in said), "cache.block_size=x"]) == 2
    told = capsys.readouterr().err
    assert all(f"want.{word.partition('=')[0]}: expected" in told for word in said)
    assert "cache.block_size: expected" in told


@pytest.mark.parametrize("words", [["scheduler.max_model_len=3000"], ["want.length=3000"]])
def test_a_length_that_is_said_is_what_servers_take(words, capsys, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["find", *MODEL, *TRACE, "want.device=[l40s]", *words]) == 1
    out, err = capsys.readouterr()
    assert "--max-model-len 3000" in out
    assert "5 of 60 requests are longer than 3,000 tokens, and were turned away" in err
