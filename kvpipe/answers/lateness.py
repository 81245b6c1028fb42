"""A replay that has lost is not played to its end: once more requests are late than the percentile
leaves, no later one can take that back.

Of n requests whose waits are known, as many as n - ceil(p n / 100) may be late, and never more of
fewer: what is too many of all requests of the trace is too many of those that will have an answer.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from kvpipe.answers.waits import Waits
from kvpipe.simulation.latencies import Latencies
from kvpipe.simulation.traffic import Traffic


class LostError(Exception):
    """wait: the one, of `want`, that is proved to be too late."""

    def __init__(self, wait: str) -> None:
        super().__init__(wait)
        self.wait = wait


@dataclass(kw_only=True)
class Lateness:
    """Of one replay, all its replicas together. requests: of the whole trace."""

    waits: Waits
    requests: int
    late: Counter[str] = field(default_factory=Counter)

    @property
    def allowed(self) -> int:
        return self.requests - -(-self.waits.percentile * self.requests // 100)

    def latencies(self) -> Latencies:
        """Of one server."""
        return _Held(lateness=self)

    def see(self, wait: str, waited_s: float, most_s: float | None) -> None:
        if most_s is None or waited_s <= most_s:
            return
        self.late[wait] += 1
        if self.late[wait] > self.allowed:
            raise LostError(wait)


@dataclass
class _Held(Latencies):
    lateness: Lateness = field(kw_only=True)

    def admitted(self, item: Traffic, arrival: float, now: float) -> None:
        known = len(self.wait)
        super().admitted(item, arrival, now)
        for waited in self.wait[known:]:
            self.lateness.see("wait", waited, self.lateness.waits.wait_s)

    def answered(self, item: Traffic, arrival: float, now: float) -> None:
        super().answered(item, arrival, now)
        self.lateness.see("first_token", self.first_token[-1], self.lateness.waits.first_token_s)

    def finished(self, item: Traffic, now: float) -> None:
        known = len(self.each_token)
        super().finished(item, now)
        for waited in self.each_token[known:]:
            self.lateness.see("token", waited, self.lateness.waits.token_s)
