"""What engines print of their queue while they serve: one line is a sample, a log has many.

vLLM     Running: 23 reqs, Waiting: 19 reqs, GPU KV cache usage: 99.8%  (before 0.8: Pending)
SGLang   Decode batch. #running-req: 30, #token: 292000, token usage: 0.99, ..., #queue-req: 22,
Either   how many requests lost their memory and are computed again (preempted, retracted).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from kvpipe.logs.figures import number, whole_number

TRIGGERS = ("KV cache usage: ", "token usage: ", "cumulative_preemption", "#retracted_reqs: ")
FULL = 0.95  # of the cache: what is left lies in pieces of blocks and of requests that just ended
_LONGEST = 2000  # characters of a line that are read
_PERCENT = re.compile(r"GPU KV cache usage: (\d{1,3}(?:\.\d{1,4})?)%")
_SHARE = re.compile(r"token usage: (\d(?:\.\d{1,4})?)")
_RUNNING = re.compile(r"(?:Running: |#running-req: )(\d{1,9})")
_WAITING = re.compile(r"(?:Waiting: |Pending: |#queue-req: )(\d{1,9})")
_PREEMPTED = re.compile(r"cumulative_preemption(?:_cnt)?=(\d{1,9})")
_RETRACTED = re.compile(r"#retracted_reqs: (\d{1,9})")


@dataclass(frozen=True, kw_only=True)
class Load:
    """lines: samples. full: those in which requests wait and the cache is full. running, waiting,
    usage (0 to 1): of the worst of these, or of the last sample. preempted: requests in all."""

    lines: int = 0
    full: int = 0
    running: int = 0
    waiting: int = 0
    usage: float = 0.0
    preempted: int = 0

    def with_line(self, line: str) -> Load:
        """And what one more line says."""
        text = line[:_LONGEST]
        total, more = _PREEMPTED.search(text), _RETRACTED.search(text)
        if total is not None:
            return replace(self, preempted=max(self.preempted, whole_number(total[1])))
        if more is not None:
            return replace(self, preempted=self.preempted + whole_number(more[1]))
        return self._with_sample(text)

    def _with_sample(self, text: str) -> Load:
        running, waiting, usage = _RUNNING.search(text), _WAITING.search(text), _usage(text)
        if running is None or waiting is None or usage is None:
            return self
        queue = whole_number(waiting[1])
        is_full = bool(queue) and usage >= FULL
        seen = replace(self, lines=self.lines + 1, full=self.full + is_full)
        if self.full and not (is_full and queue > self.waiting):
            return seen
        return replace(seen, running=whole_number(running[1]), waiting=queue, usage=usage)


def _usage(text: str) -> float | None:
    """The fullest pool's."""
    if (percent := _PERCENT.search(text)) is not None:
        return number(percent[1]) / 100
    return max((number(share) for share in _SHARE.findall(text)), default=None)
