"""Times that were taken in turn, step by step -> what one way costs beside another, with the
interval that a block bootstrap gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random

Steps = Sequence[Mapping[str, int]]  # of every step: nanoseconds by way
RESAMPLED = 2000
# Steps drawn together: what else a machine does lasts longer than one step.
TOGETHER = 10


@dataclass(frozen=True, kw_only=True)
class Interval:
    """value: of all steps. low, high: 95 of 100 resampled loads lie between them."""

    value: float
    low: float
    high: float

    def text(self, digits: int, unit: str) -> str:
        value, low, high = (f"{x:+.{digits}f}" for x in (self.value, self.low, self.high))
        return f"{value}{unit} ({low} to {high})"


def change_percent(steps: Steps, before: str, after: str) -> Interval:
    """By how much `after` needs more than `before`, of the mean step."""

    def of(drawn: Steps) -> float:
        return 100 * (_mean(drawn, after) / _mean(drawn, before) - 1)

    return resampled(steps, of)


def slope_microseconds(steps: Steps, sizes: Mapping[str, int]) -> Interval:
    """Least squares of mean times over sizes: microseconds that one more costs in a step."""
    center = sum(sizes.values()) / len(sizes)
    square = sum((size - center) ** 2 for size in sizes.values())

    def of(drawn: Steps) -> float:
        found = ((size - center) * _mean(drawn, way) for way, size in sizes.items())
        return sum(found) / square / 1000

    return resampled(steps, of)


def mean_milliseconds(steps: Steps, way: str) -> float:
    return _mean(steps, way) / 1e6


def resampled(steps: Steps, of: Callable[[Steps], float]) -> Interval:
    """The whole load's value, and the middle 95% of loads put together of its blocks."""
    blocks = [steps[i : i + TOGETHER] for i in range(0, len(steps), TOGETHER)]
    draw, found = Random(0), []
    for _ in range(RESAMPLED):
        drawn = draw.choices(blocks, k=len(blocks))
        found.append(of([step for block in drawn for step in block]))
    found.sort()
    low, high = found[RESAMPLED // 40], found[-RESAMPLED // 40 - 1]
    return Interval(value=of(steps), low=low, high=high)


def _mean(steps: Steps, way: str) -> float:
    return sum(step[way] for step in steps) / len(steps)
