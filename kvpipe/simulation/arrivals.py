"""What of a trace comes to a server: each request is made into traffic when its turn is there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from kvpipe.simulation.counts import Counts
from kvpipe.simulation.traces.base import TraceRequest
from kvpipe.simulation.traffic import Traffic


@dataclass
class Arrivals:
    """Requests whose prompt leaves room for an output token; outputs are cut at max_model_len.
    counts: is told of the others, and of those that are cut. last_s: when the last one so far
    arrives. A million requests as traffic would be 300 MB: to be walked once, and forgotten."""

    requests: Sequence[TraceRequest]
    max_model_len: int
    counts: Counts = field(default_factory=Counts)
    last_s: float = 0.0

    def __iter__(self) -> Iterator[Traffic]:
        for number, request in enumerate(self.requests):
            if not 1 <= request.prompt_tokens < self.max_model_len:
                self.counts.too_long += 1
                continue
            wanted = request.prompt_tokens + max(1, request.output_tokens) - 1
            self.counts.cut_short += wanted > self.max_model_len - 1
            self.last_s = max(self.last_s, request.arrival_s)
            target = min(wanted, self.max_model_len - 1)
            yield Traffic(number, request, target, request.prompt_tokens)
