"""Lengths by their percentiles, as a load is often described: {50: 900, 90: 3000, 99: 8000}."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator

from kvpipe.simulation.traces.base import MOST_TOKENS


def length_at(percentiles: Mapping[int, int], percent: float) -> int:
    """Tokens that `percent` of the requests do not exceed: on straight lines from 1 token at 0
    through the given points; beyond the last of them nothing is known, and nothing is longer."""
    points = [(0, 1), *sorted(percentiles.items())]
    for (low, shorter), (high, longer) in pairwise(points):
        if percent <= high:
            return round(shorter + (longer - shorter) * (percent - low) / (high - low))
    return points[-1][1]


def _whole_keys(value: Any) -> Any:
    """A saved file writes the keys as text."""
    if not isinstance(value, Mapping):
        return value
    return {int(key) if str(key).isdecimal() else key: tokens for key, tokens in value.items()}


def _rising(percentiles: dict[int, int]) -> dict[int, int]:
    if not percentiles:
        raise ValueError("at least one percentile, as in {50: 900, 99: 8000}")
    wrong = [percent for percent in percentiles if not 1 <= percent <= 100]
    if wrong:
        raise ValueError(f"percentiles from 1 to 100, not {wrong[0]}")
    points = sorted(percentiles.items())
    if not 1 <= points[0][1] <= max(tokens for _, tokens in points) < MOST_TOKENS:
        raise ValueError(f"lengths from 1 to {MOST_TOKENS - 1:,} tokens")
    for (low, shorter), (high, longer) in pairwise(points):
        if longer < shorter:
            raise ValueError(
                f"lengths that do not fall: {shorter:,} at {low}%, but {longer:,} at {high}%"
            )
    return percentiles


LengthPercentiles = Annotated[dict[int, int], BeforeValidator(_whole_keys), AfterValidator(_rising)]
