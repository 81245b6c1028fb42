"""A server of several data-parallel copies: each a server of its own; how they step together."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvpipe.commands.base import Command
from kvpipe.front.main import run
from kvpipe.front.prepared import prepared_request
from kvpipe.front.words import words_to_overrides
from kvpipe.pipeline import plan_of
from kvpipe.simulation.play import read_trace, replay
from kvpipe.simulation.result import ReplayResult
from kvpipe.simulation.routing import round_robin
from kvpipe.simulation.traces.base import TraceRequest

WORDS = ("model=llama", "device=l4", "backend=meta", "cache.kv_cache_memory_bytes=1GiB")
# A second for each step and one for each token, so that times are counted by hand.
BY_HAND = ("trace=azure_code_sample", "trace.step_seconds=1", "trace.prefill_tokens_per_second=1")


def played(
    requests: list[TraceRequest], copies: int, together: bool, *words: str, seqs: int = 256
) -> ReplayResult:
    prepared = prepared_request([*WORDS, *words]).prepared
    options = read_trace(prepared.config.trace).options
    return replay(
        requests,
        plan_of(prepared),
        options,
        max_num_seqs=seqs,
        prefix_caching=True,
        copies=copies,
        together=together,
    )


def asked(*requests: tuple[float, int, int]) -> list[TraceRequest]:
    return [
        TraceRequest(arrival_s=at, prompt_tokens=prompt, output_tokens=out)
        for at, prompt, out in requests
    ]


@pytest.mark.parametrize("copies", [2, 3])
def test_copies_that_share_nothing_are_servers_of_their_own(copies: int) -> None:
    """All waiting from the start, they go round in turn: each copy beside a replay of its part."""
    words = ("trace=mooncake_sample", "trace.max_requests=60", "trace.arrivals=at_once")
    trace = read_trace(prepared_request([*WORDS, *words]).prepared.config.trace)
    requests = [each for each in trace.requests() if each.prompt_tokens < 8000]
    result = played(requests, copies, False, *words)
    alone = [played(part, 1, False, *words) for part in round_robin(requests, copies)]
    assert [each.requests for each in result.replicas] == [each.requests for each in alone]
    assert [each.busy_s for each in result.replicas] == [each.busy_s for each in alone]
    assert [each.peak_in_use for each in result.replicas] == [each.peak_in_use for each in alone]
    assert sorted(result.latencies.first_token) == sorted(
        value for each in alone for value in each.latencies.first_token
    )
    assert result.counts.finished == sum(each.counts.finished for each in alone)
    assert result.counts.too_long == sum(each.counts.too_long for each in alone)
    assert (result.requests, result.copies) == (len(requests), copies)
    assert result.simulated_s == max(each.simulated_s for each in alone)


def test_copies_that_share_experts_wait_for_the_slowest_in_every_step() -> None:
    """A prompt of ten beside one of a token, three tokens each: steps of 11, 2 and 2 seconds where
    all wait; the short one's of 2 where nobody does."""
    requests = asked((0, 10, 3), (0, 1, 3))
    apart = played(requests, 2, False, *BY_HAND)
    assert sorted(apart.latencies.first_token) == [2, 11]
    assert sorted(share.busy_s for share in apart.replicas) == [6, 15]
    together = played(requests, 2, True, *BY_HAND)
    assert list(together.latencies.first_token) == [11, 11]
    assert [share.busy_s for share in together.replicas] == [15, 15]
    # One that comes later joins the step after: 3 of 11 s are over, it takes 2 until its token.
    later = played(asked((0, 10, 3), (3, 1, 1)), 2, True, *BY_HAND)
    assert sorted(later.latencies.wait) == [0, 8]
    assert sorted(later.latencies.first_token) == [10, 11]


def test_a_request_goes_to_the_copy_with_the_least_to_do() -> None:
    """The second copy is through with its short one when the third and fourth come: they are its,
    where turns would have sent the third to the first."""
    result = played(asked((0, 10, 40), (0, 1, 1), (3, 1, 1), (6, 1, 1)), 2, False, *BY_HAND)
    assert [share.requests for share in result.replicas] == [1, 3]


@pytest.mark.parametrize("together", [False, True])
def test_idle_copies_take_turns_and_begin_when_they_are_asked(together: bool) -> None:
    result = played(asked((0, 1, 1), (100, 1, 1), (200, 1, 1)), 2, together, *BY_HAND)
    assert [share.requests for share in result.replicas] == [2, 1]
    assert list(result.latencies.first_token) == [2, 2, 2] and not any(result.latencies.wait)
    assert result.simulated_s == 202


def test_a_queue_weighs_more_where_the_pool_is_full() -> None:
    """One at a time. When the fifth comes, each copy runs one and has one waiting; the first's pool
    is 61% full of a prompt of 5,000: 2 + 6 * 0.11 against 2, where turns would have chosen it."""
    requests = asked((0, 5000, 2000), (0, 10, 4000), (1, 5000, 9), (6000, 10, 9), (6001, 10, 9))
    result = played(requests, 2, False, *BY_HAND, "scheduler.max_model_len=8176", seqs=1)
    assert [share.requests for share in result.replicas] == [2, 3]


def test_replicas_of_copies_are_all_told() -> None:
    words = ("trace=azure_code_sample", "trace.replicas=2")
    prepared = prepared_request([*WORDS, *words]).prepared
    requests = read_trace(prepared.config.trace).requests()
    result = played(requests, 3, True, *words)
    assert len(result.replicas) == 6 and result.copies == 3
    assert sum(share.requests for share in result.replicas) == result.requests == len(requests)
    fullest = max(share.peak_in_use for share in result.replicas)
    assert result.replicas[result.busiest].peak_in_use == result.peak_in_use == fullest
    assert replace(result, busiest=0) != result or result.busiest == 0


def test_replay_serves_with_as_many_copies_as_the_plan_has(capsys, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["replay", "model=mixtral", "device=h200", "parallel.data_parallel_size=4"]
    assert run([*words, "trace=azure_code_sample", "trace.max_requests=40"]) == 0
    assert "1 of 4 data-parallel copies each" in " ".join(capsys.readouterr().out.split())


def test_a_sweep_shows_what_all_copies_hold() -> None:
    asked = ["llama", "device=h100", "scheduler.max_model_len=8192", "backend=meta"]
    for engine in ("kvpipe", "sglang"):
        rows = []
        for copies in (1, 3):
            words = words_to_overrides([*asked, f"engine={engine}", f"dp={copies}"])
            prepared = prepared_request(words).prepared
            command = prepared.config.plugins["command"].make(Command)
            rows.append(command.run(prepared, "0").fields)
        one, three = rows
        for name in ("requests_at_peak", "requests_steady"):
            assert one[name] > 0 and three[name] == 3 * one[name]
