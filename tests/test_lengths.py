"""Lengths by percentiles: what is drawn has them, and a distribution that cannot be is refused."""

from __future__ import annotations

import random
from bisect import bisect_right

import pytest

from kvpipe.errors import ConfigError
from kvpipe.request.confdir import shipped_option
from kvpipe.simulation.play import read_trace
from kvpipe.simulation.traces.lengths import length_at

TABLE = {50: 900, 90: 3000, 99: 8000}


def trace(**changes):
    return read_trace(shipped_option("trace", "synthetic") | changes)


@pytest.mark.parametrize("side", ["prompt", "output"])
def test_what_is_drawn_has_the_percentiles_that_were_given(side: str) -> None:
    made = trace(**{f"{side}_percentiles": TABLE}, max_requests=20_000).requests()
    lengths = sorted(getattr(request, f"{side}_tokens") for request in made)
    for percent, tokens in TABLE.items():
        share = 100 * bisect_right(lengths, tokens) / len(lengths)
        assert share == pytest.approx(100 if percent == 99 else percent, abs=1.0)
    assert lengths[-1] == 8000  # nothing is known beyond the last of them


def test_a_length_lies_between_its_neighbours() -> None:
    draw = random.Random(0)
    for _ in range(2000):
        percent = 100 * draw.random()
        low = max([(0, 1), *((p, n) for p, n in TABLE.items() if p <= percent)])
        high = min(((p, n) for p, n in TABLE.items() if p >= percent), default=(100, 8000))
        assert low[1] <= length_at(TABLE, percent) <= high[1]
    assert [length_at(TABLE, p) for p in (0, 50, 70, 90, 99, 100)] == [
        1,
        900,
        1950,
        3000,
        8000,
        8000,
    ]


def test_a_saved_file_writes_the_keys_as_text() -> None:
    written = {str(percent): tokens for percent, tokens in TABLE.items()}
    assert (
        trace(prompt_percentiles=written).requests() == trace(prompt_percentiles=TABLE).requests()
    )


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({50: 900, 99: 80}, "lengths that do not fall: 900 at 50%, but 80 at 99%"),
        ({0: 1}, "percentiles from 1 to 100, not 0"),
        ({101: 1}, "percentiles from 1 to 100, not 101"),
        ({}, "at least one percentile"),
        ({50: 0}, "lengths from 1 to"),
        ({50: 2**31}, "lengths from 1 to"),
        ({"a": 1}, "a whole number"),
        ([50], "expected settings"),
    ],
)
def test_a_distribution_that_cannot_be_is_refused(given: object, said: str) -> None:
    with pytest.raises(ConfigError, match=r"trace\.prompt_percentiles") as caught:
        trace(prompt_percentiles=given)
    assert said in str(caught.value)
