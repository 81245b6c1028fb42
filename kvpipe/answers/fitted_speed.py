"""What share of a card's nominal speed an engine reached, from its own throughput lines.

A sample: so many requests decoded at a length, so many tokens a second came. The bound says how
many could come at best; the quotient is the share. Lengths that a line does not print are taken
from its share of the pool, as the plan counts it, or, where there is neither, as one token: the
share is then too small, never too large.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from kvpipe.cache.plan import Plan
from kvpipe.logs.throughput import Throughput
from kvpipe.physics.bounds import StepBound


@dataclass(frozen=True, kw_only=True)
class Reached:
    """length: tokens of each request. length_from: printed, pool or nothing. best_per_s: tokens a
    second by the bound. share: what was reached of it."""

    sample: Throughput
    length: int
    length_from: str
    best_per_s: float

    @property
    def share(self) -> float:
        return self.sample.tokens_per_s / self.best_per_s


@dataclass(frozen=True, kw_only=True)
class FittedSpeed:
    """efficiency: the median share. too_fast: samples beyond the bound, which no card can be: the
    log is then of another model, weights or card. possible: the others, of which the median is;
    all, where there are no others."""

    reached: tuple[Reached, ...]

    @property
    def efficiency(self) -> float:
        return median(each.share for each in self.possible)

    @property
    def possible(self) -> tuple[Reached, ...]:
        return tuple(each for each in self.reached if each.share <= 1) or self.reached

    @property
    def too_fast(self) -> tuple[Reached, ...]:
        return tuple(each for each in self.reached if each.share > 1)


def fitted_speed(
    samples: Iterable[Throughput], bound: StepBound, plan: Plan | None
) -> FittedSpeed | None:
    """None where there is no sample. plan: whose pool a printed share of the pool is of."""
    reached = tuple(_reached(sample, bound, plan) for sample in samples)
    return FittedSpeed(reached=reached) if reached else None


def needs_plan(samples: Iterable[Throughput]) -> bool:
    """Whether a length is to be taken from a printed share of the pool."""
    return any(sample.tokens is None and sample.usage is not None for sample in samples)


def _reached(sample: Throughput, bound: StepBound, plan: Plan | None) -> Reached:
    length, source = _length(sample, plan)
    best = sample.users / bound.token_seconds(sample.users, length)
    return Reached(sample=sample, length=length, length_from=source, best_per_s=best)


def _length(sample: Throughput, plan: Plan | None) -> tuple[int, str]:
    if sample.tokens is not None:
        return max(1, sample.tokens // sample.users), "printed"
    capacity = plan.capacity if plan else None
    if sample.usage is None or plan is None or capacity is None or not capacity.bytes_per_token:
        return 1, "nothing"
    pool = capacity.usable_blocks * plan.ranks[0].config.bytes_per_block
    each = sample.usage * pool / sample.users - capacity.bytes_fixed
    length = int(each / capacity.bytes_per_token)
    return min(max(1, length), plan.limits.max_model_len), "pool"
