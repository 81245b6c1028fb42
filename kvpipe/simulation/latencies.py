"""What requests wait for, in simulated seconds: the queue, the first token, each further one."""

from __future__ import annotations

from array import array
from collections.abc import MutableSequence, Sequence
from dataclasses import dataclass, field

from kvpipe.simulation.traffic import Traffic

SHARES = (0.50, 0.90, 0.99)
Seconds = MutableSequence[float]  # 8 bytes each, where a list has 32
LATE = 1.25  # times of the arrivals' span from which on their work was not kept up with


@dataclass(frozen=True, kw_only=True)
class Percentiles:
    """Of `count` requests: the smallest value that so many percent do not exceed."""

    count: int
    p50: float
    p90: float
    p99: float


def percentiles(values: Sequence[float]) -> Percentiles | None:
    """None of nothing."""
    if not values:
        return None
    ordered = sorted(values)
    picked = [ordered[max(0, -(-int(share * 1e9) * len(ordered) // 10**9) - 1)] for share in SHARES]
    return Percentiles(count=len(ordered), p50=picked[0], p90=picked[1], p99=picked[2])


@dataclass
class Latencies:
    """Filled while a trace runs; times are those at which a step ends."""

    wait: Seconds = field(default_factory=lambda: array("d"))
    first_token: Seconds = field(default_factory=lambda: array("d"))
    each_token: Seconds = field(default_factory=lambda: array("d"))
    longest_service: float = 0.0

    def admitted(self, item: Traffic, arrival: float, now: float) -> None:
        """At the step's start; again after a preemption counts once."""
        if item.admitted_s is None:
            item.admitted_s = now
            self.wait.append(now - arrival)

    def answered(self, item: Traffic, arrival: float, now: float) -> None:
        item.first_token_s = now
        self.first_token.append(now - arrival)

    def finished(self, item: Traffic, now: float) -> None:
        if item.admitted_s is not None:
            self.longest_service = max(self.longest_service, now - item.admitted_s)
        more = item.target - item.request.prompt_tokens
        if item.first_token_s is not None and more > 0:
            self.each_token.append((now - item.first_token_s) / more)


def overload(arrivals_s: float, served_s: float, longest_service_s: float) -> float | None:
    """How many times longer the work took than its arrivals, where that is more than the last
    request explains; None where the load was kept up with. Each of the two excuses, a share of the
    span and one slow request with a little of a queue before it, stands alone: added up they would
    hide a queue as long as both."""
    after_s = max((LATE - 1) * arrivals_s, LATE * longest_service_s)
    if arrivals_s <= 0 or served_s - arrivals_s <= after_s:
        return None
    return served_s / arrivals_s
