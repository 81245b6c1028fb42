"""Times of a replay: recomputed by hand on small traces; what overload is."""

from __future__ import annotations

from typing import Any

import pytest

from kvpipe.physics.lengths import Lengths
from kvpipe.simulation.latencies import overload, percentiles
from kvpipe.simulation.play import replay, step_time
from kvpipe.simulation.step_time import NominalStep
from kvpipe.simulation.traces.base import TraceOptions, TraceRequest
from kvpipe.specs.base import CacheLayer, RequestLimits
from kvpipe.specs.full import FullAttentionSpec
from kvpipe.stages.grouping.planning import plan

OPTIONS: dict[str, Any] = {
    "name": "made",
    "max_requests": None,
    "arrivals": "trace",
    "arrival_rate_scale": 1.0,
    "step_seconds": "auto",
    "prefill_tokens_per_second": "auto",
    "efficiency": 1.0,
    "acceptance_rate": 0.7,
}


class OneSecond:
    """Every step takes a second; what it was told is kept."""

    def __init__(self) -> None:
        self.told: list[tuple[tuple[int, ...], int]] = []

    def seconds(self, decoding: Lengths, new_tokens: int) -> float:
        self.told.append((tuple(decoding.each()), new_tokens))
        return 1.0


def served(requests: list[tuple[float, int, int]], best: Any, *, blocks: int = 64, **more: Any):
    spec = FullAttentionSpec(block_size=4, num_kv_heads=1, head_size=4, dtype="float32")
    limits = RequestLimits(max_model_len=60, max_num_batched_tokens=10)
    memory = blocks * spec.page_size_bytes
    made = plan([CacheLayer(name="l", spec=spec)], limits, memory)
    asked = [
        TraceRequest(arrival_s=at, prompt_tokens=prompt, output_tokens=answer)
        for at, prompt, answer in requests
    ]
    return replay(asked, made, TraceOptions(**OPTIONS | more), best=best)


def test_times_are_those_of_the_steps_that_a_request_passes() -> None:
    """A prompt of 25 in steps of 10: three steps to the first token; four tokens more, one each."""
    result = served([(0.0, 25, 5)], OneSecond())
    assert result.wait.p50 == 0.0
    assert result.first_token.p50 == 3.0
    assert result.each_token.p50 == 1.0
    assert result.simulated_s == 7.0


def test_who_comes_later_waits_for_the_budget_of_a_step() -> None:
    """Both come at once; the first prompt fills two steps, of which the second leaves 5 tokens."""
    result = served([(0.0, 15, 1), (0.0, 5, 1)], OneSecond())
    assert (result.wait.p50, result.wait.p99) == (0.0, 1.0)
    assert (result.first_token.p50, result.first_token.p99) == (2.0, 2.0)


def test_a_step_is_told_what_decodes_in_it_and_how_many_tokens_are_new() -> None:
    steps = OneSecond()
    served([(0.0, 8, 3)], steps)
    assert steps.told == [((), 8), ((9,), 1), ((10,), 1)]


def test_a_preempted_request_has_one_wait_and_one_first_token() -> None:
    result = served([(0.0, 9, 30), (0.0, 9, 30)], OneSecond(), blocks=17)
    assert result.counts.preemptions > 0
    assert result.wait.count == result.first_token.count == result.each_token.count == 2
    assert result.each_token.p99 > 1.0


def test_percentiles_are_values_that_were_seen() -> None:
    found = percentiles([float(n) for n in range(1, 101)])
    assert (found.p50, found.p90, found.p99) == (50.0, 90.0, 99.0)
    assert percentiles([3.0]).p99 == 3.0
    assert percentiles([]) is None


def test_overloaded_is_work_that_outlasts_its_arrivals_and_the_last_request() -> None:
    assert overload(100.0, 1047.0, 20.0) == pytest.approx(10.47)
    assert overload(100.0, 120.0, 5.0) is None
    assert overload(100.0, 130.0, 30.0) is None  # the last one alone takes that long
    assert overload(232.8, 354.9, 64.0) == pytest.approx(1.524, abs=1e-3)  # no one of them does
    assert overload(0.38, 22.90, 22.49) is None  # two that came nearly at once
    assert overload(0.0, 50.0, 1.0) is None  # all waited from the start


def test_twice_the_requests_a_second_than_can_be_served_are_an_overload() -> None:
    """One request takes two steps alone, and one runs at a time."""
    kept_up = [(3.0 * i, 10, 2) for i in range(40)]
    assert served(kept_up, OneSecond()).overload is None
    too_many = served(kept_up, OneSecond(), arrival_rate_scale=12.0)
    assert too_many.overload is not None and too_many.overload > 2


def test_times_that_are_set_win_over_the_card() -> None:
    best = OneSecond()
    assert step_time(TraceOptions(**OPTIONS), best) is best
    assert step_time(TraceOptions(**OPTIONS), None) == NominalStep()
    asked = TraceOptions(**OPTIONS | {"step_seconds": 0.5})
    assert step_time(asked, best) == NominalStep(each=0.5)
