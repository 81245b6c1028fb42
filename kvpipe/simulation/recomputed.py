"""What preemptions cost: tokens that were computed more than once."""

from __future__ import annotations

from collections.abc import Sequence

from kvpipe.simulation.arrivals import Arrivals
from kvpipe.simulation.result import ReplayResult
from kvpipe.simulation.traces.base import TraceRequest


def recomputed_tokens(requests: Sequence[TraceRequest], result: ReplayResult) -> int | None:
    """Of all that were computed, those that no request would have needed, had none been preempted:
    what was taken from it, but for what it found in the cache when it came back. None where
    requests were turned away half-way: what theirs were is not counted apart."""
    if result.counts.never_fit:
        return None
    needed = sum(item.target for item in Arrivals(requests, result.request_len))
    return result.counts.stored_tokens - (needed - result.counts.hit_tokens)
