"""A replay is given up where it has lost, and nowhere else."""

from __future__ import annotations

import random

import pytest

from kvpipe.answers.lateness import Lateness, LostError
from kvpipe.answers.waits import Waits, of
from kvpipe.simulation.latencies import percentiles


@pytest.mark.parametrize("percentile", [50, 90, 99])
def test_exactly_the_waits_whose_percentile_is_too_late_are_given_up(percentile: int) -> None:
    """Beside the percentile of all of them, where each request has its wait."""
    chance = random.Random(percentile)
    outcomes = set()
    for _ in range(2000):
        number = chance.randint(1, 300)
        waits = [float(chance.random() > chance.choice((0.4, 0.9, 0.99))) for _ in range(number)]
        held = Lateness(waits=Waits(percentile=percentile, token_s=0.5), requests=number)
        lost = False
        try:
            for waited in waits:
                held.see("token", waited, 0.5)
        except LostError as error:
            lost = error.wait == "token"
        found = percentiles(waits)
        assert found is not None
        assert lost is (of(found, percentile) > 0.5)
        outcomes.add(lost)
    assert outcomes == {True, False}


def test_what_is_lost_of_all_requests_is_lost_of_those_with_an_answer() -> None:
    """Some are turned away: fewer waits never allow more late ones."""
    for percentile in (50, 90, 99):
        waits = Waits(percentile=percentile)
        allowed = [Lateness(waits=waits, requests=n).allowed for n in range(1, 2000)]
        assert allowed == sorted(allowed)
