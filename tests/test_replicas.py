"""Several replicas of one trace: each is replayed by itself, and what is told of them adds up."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import asdict, replace

import pytest

from kvpipe.front.main import run
from kvpipe.front.prepared import prepared_request
from kvpipe.pipeline import plan_of
from kvpipe.simulation.latencies import percentiles
from kvpipe.simulation.play import read_trace, replay
from kvpipe.simulation.replicas import played as played_each
from kvpipe.simulation.result import ReplayResult
from kvpipe.simulation.routing import MOST_BEYOND, MOST_TIMES, ROUTINGS, by_prefix, round_robin
from kvpipe.simulation.traces.base import TraceRequest

SHARED = ("requests", "busy_s", "max_running", "peak_in_use", "hit_rate")  # told of each replica
WORDS = ("model=llama", "device=l4", "backend=meta", "cache.kv_cache_memory_bytes=1GiB")


def sample(*words: str) -> list[TraceRequest]:
    return list(read_trace(prepared_request([*WORDS, *words]).prepared.config.trace).requests())


def played(replicas: int, routing: str, *words: str) -> tuple[ReplayResult, list[ReplayResult]]:
    """All replicas at once; and each part of the trace alone, on a server of its own."""
    prepared = prepared_request(
        [*WORDS, f"trace.replicas={replicas}", f"trace.routing={routing}", *words]
    ).prepared
    trace, plan = read_trace(prepared.config.trace), plan_of(prepared)
    alone = trace.options.model_copy(update={"replicas": 1})
    parts = ROUTINGS[routing](trace.requests(), replicas)
    return (
        replay(trace.requests(), plan, trace.options, prefix_caching=True),
        [replay(part, plan, alone, prefix_caching=True) for part in parts],
    )


@pytest.mark.parametrize("routing", ROUTINGS)
@pytest.mark.parametrize("replicas", [1, 2, 5])
def test_every_request_goes_to_one_replica_and_keeps_its_order(replicas: int, routing: str) -> None:
    requests = sample("trace=mooncake_sample")
    parts = ROUTINGS[routing](requests, replicas)
    assert len(parts) == replicas
    assert Counter(map(id, requests)) == Counter(id(r) for part in parts for r in part)
    for part in parts:
        assert part == sorted(part, key=lambda request: request.arrival_s)


def test_a_prompt_goes_where_its_beginning_went() -> None:
    """Two conversations, each of two turns; a third that nobody knows goes to the idler server."""
    turns = [((1,), 9), ((2,), 9), ((2, 3), 1), ((1, 4), 1), ((5,), 1)]
    requests = [
        TraceRequest(
            arrival_s=n,
            prompt_tokens=512 * len(ids),
            output_tokens=out,
            prefix_ids=ids,
            prefix_block=512,
        )
        for n, (ids, out) in enumerate(turns)
    ]
    parts = by_prefix(requests, 2)
    assert [r.prefix_ids[0] for r in parts[0][:2]] == [1, 1]
    assert [r.prefix_ids[0] for r in parts[1][:2]] == [2, 2]
    assert [len(part) for part in round_robin(requests, 2)] == [3, 2]


def test_of_two_servers_that_know_a_beginning_the_one_that_knows_more_of_it_is_sent_it() -> None:
    """The first is full when the second turn comes, and has less to do when the third does."""
    turns = [((1,), 100_000), ((1, 2), 1), ((9,), 150_000), ((1, 2, 3), 1)]
    requests = [
        TraceRequest(
            arrival_s=n, prompt_tokens=size, output_tokens=1, prefix_ids=ids, prefix_block=512
        )
        for n, (ids, size) in enumerate(turns)
    ]
    parts = by_prefix(requests, 2)
    assert [request.prefix_ids for request in parts[1]] == [(1, 2), (9,), (1, 2, 3)]


@pytest.mark.parametrize("seed", range(20))
def test_no_server_is_sent_far_more_than_another(seed: int) -> None:
    """Even where all prompts begin alike, which following prefixes alone sends to one."""
    rng = random.Random(seed)
    requests = [
        TraceRequest(
            arrival_s=n,
            prompt_tokens=rng.randrange(1, 20_000),
            output_tokens=rng.randrange(1, 500),
            prefix_ids=(0, rng.randrange(3)),
            prefix_block=16,
        )
        for n in range(600)
    ]
    sent = [sum(r.prompt_tokens + r.output_tokens for r in part) for part in by_prefix(requests, 4)]
    assert max(sent) <= max(MOST_TIMES * min(sent), min(sent) + MOST_BEYOND) + 20_500


@pytest.mark.parametrize("routing", ROUTINGS)
@pytest.mark.parametrize("trace", ["azure_code_sample", "mooncake_sample"])
def test_what_is_told_of_all_is_the_sum_of_each_alone(trace: str, routing: str) -> None:
    asked = [f"trace={trace}", "trace.max_requests=120"]
    together, alone = played(3, routing, *asked)
    for name, value in asdict(together.counts).items():
        assert value == sum(getattr(each.counts, name) for each in alone), name
    for name in SHARED:
        assert [getattr(share, name) for share in together.replicas] == [
            getattr(each, name) for each in alone
        ], name
    assert [each.counts.preemptions for each in alone] == [s.preemptions for s in together.replicas]
    assert together.requests == sum(each.requests for each in alone)
    assert together.peak_in_use == alone[together.busiest].peak_in_use
    assert together.peak_in_use == max(each.peak_in_use for each in alone)
    assert together.simulated_s == max(each.simulated_s for each in alone)
    assert together.arrivals_s == max(each.arrivals_s for each in alone)
    for name in ("wait", "first_token", "each_token"):
        waits = [value for each in alone for value in getattr(each.latencies, name)]
        assert getattr(together, name) == percentiles(waits), name


@pytest.mark.parametrize(("longest", "told"), [(0.0, 3.0), (200.0, None)])
def test_replicas_are_overloaded_as_a_whole(longest: float, told: float | None) -> None:
    """Work of 300 seconds for arrivals of 100, where one request alone may have taken the rest."""
    one, _ = played(1, "round_robin", "trace=azure_code_sample", "trace.max_requests=3")
    times = (100.0, 90.0, longest), (10.0, 300.0, 0.0)
    results = [
        replace(one, arrivals_s=arrivals, simulated_s=served, peak_in_use=-number,
                latencies=replace(one.latencies, longest_service=service))
        for number, (arrivals, served, service) in enumerate(times)
    ]  # fmt: skip
    request, left = sample("trace=azure_code_sample")[:1], iter(results)
    together = played_each([request, request], lambda _: next(left))
    assert together.overload == told and together.busiest == 0
    assert (together.arrivals_s, together.simulated_s) == (100.0, 300.0)


def conversations(number: int, turns: int) -> list[TraceRequest]:
    """In turn; each turn's prompt is the one before, and a block of 512 tokens more."""
    return [
        TraceRequest(
            arrival_s=2.0 * (turn * number + one),
            prompt_tokens=512 * (turn + 1),
            output_tokens=8,
            prefix_ids=tuple(1000 * one + block for block in range(turn + 1)),
            prefix_block=512,
        )
        for turn in range(turns)
        for one in range(number)
    ]


def test_a_router_that_follows_prefixes_finds_more_of_them() -> None:
    """Seven conversations over four servers: in turn, each turn goes elsewhere. Followed, all that
    was said before is found, but for the last block, of which a token must be computed."""
    requests = conversations(7, 5)
    prepared = prepared_request([*WORDS, "trace=synthetic"]).prepared
    plan, options = plan_of(prepared), read_trace(prepared.config.trace).options
    hits = {}
    for routing in ROUTINGS:
        routed = options.model_copy(update={"replicas": 4, "routing": routing})
        hits[routing] = replay(requests, plan, routed, prefix_caching=True).counts.hit_tokens
    assert hits["prefix"] == 7 * 512 * (1 + 2 + 3 + 4)
    assert hits["round_robin"] < hits["prefix"] / 2


def test_replicas_are_told_on_the_screen(capsys, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["replay", *WORDS, "trace=azure_code_sample", "trace.max_requests=10"]
    assert run([*words, "trace.replicas=3", "trace.arrivals=at_once"]) == 0
    assert "replicas    3, with 4, 3, 3 requests; counts and waits" in capsys.readouterr().out
    assert run([*words, "trace.replicas=0"]) == 2
    assert run([*words, "trace.routing=nearest"]) == 2
    assert "'prefix'" in capsys.readouterr().err
