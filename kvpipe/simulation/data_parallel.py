"""One server of several data-parallel copies, each with a pool and a queue of its own.

A request goes to the copy with the least to do, as vLLM 0.32's client scores them:

    score = running + waiting + 6 * waiting * max(0, share of the pool in use - 1/2)

ties in turn; our counts are those of the moment, where an engine's are up to 100 ms old. Copies of
a model with experts step together, since all ranks share these: a step lasts as long as that of
the slowest, and a copy without work runs along.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import inf

from kvpipe.simulation.serving import Serving
from kvpipe.simulation.traffic import Traffic

QUEUE_WEIGHT, HALF_FULL = 6.0, 0.5


@dataclass
class Copies:
    """together: they step together. sent: requests that each was given."""

    copies: Sequence[Serving]
    together: bool
    sent: list[int] = field(default_factory=list)
    _first: int = 0  # where the search for the least begins

    def __post_init__(self) -> None:
        self.sent = [0] * len(self.copies)

    def serve(self, arrivals: Iterable[Traffic]) -> None:
        """Until every request is finished or turned away. arrivals: in order of arrival."""
        for item in arrivals:
            at = self.copies[0].arrival(item)
            self._run_until(at)
            chosen = self._least_busy()
            copy = self.copies[chosen]
            if not copy.is_busy:
                copy.now = max(copy.now, at)
            copy.waiting.append(item)
            self.sent[chosen] += 1
        self._run_until(inf)

    def _run_until(self, at: float) -> None:
        if not self.together:
            for copy in self.copies:
                while copy.is_busy and copy.now < at:
                    copy.end_step(copy.begin_step())
            return
        while busy := [copy for copy in self.copies if copy.is_busy]:
            now = max(copy.now for copy in busy)
            if now >= at:
                return
            for copy in busy:
                copy.now = now
            longest = max([copy.begin_step() for copy in busy])
            for copy in busy:
                copy.end_step(longest)

    def _least_busy(self) -> int:
        num = len(self.copies)
        order = [(self._first + i) % num for i in range(num)]
        self._first = (self._first + 1) % num
        return min(order, key=lambda index: _score(self.copies[index]))


def _score(copy: Serving) -> float:
    pool, waiting = copy.manager.pool, len(copy.waiting)
    in_use = 1 - pool.num_free / max(1, pool.num_blocks - 1)
    return len(copy.running) + waiting + QUEUE_WEIGHT * waiting * max(0.0, in_use - HALF_FULL)
