"""What a user should know about a plan that stands, a line each, with the key that changes it."""

from __future__ import annotations

from collections.abc import Iterator

from kvpipe.stages.grouping._admission import size, smaller_batch
from kvpipe.stages.grouping._ranks import RankedPlans
from kvpipe.stages.grouping.base import Capacity, GroupingRequest


def notes(request: GroupingRequest, made: RankedPlans, capacity: Capacity | None) -> Iterator[str]:
    yield from _stranded(made)
    yield from _batch_beside_windows(request, made)
    if capacity is not None:
        yield from _unschedulable(request, capacity)
        yield from _too_many_requests(request, capacity)


def _stranded(made: RankedPlans) -> Iterator[str]:
    stranded = [(i, r.stranded_bytes) for i, r in enumerate(made.ranks) if r.stranded_bytes]
    if stranded:
        listed = ", ".join(f"rank {i} {size(num_bytes)}" for i, num_bytes in stranded)
        yield f"unused, since every rank has the blocks of the poorest: {listed}"


def _batch_beside_windows(request: GroupingRequest, made: RankedPlans) -> Iterator[str]:
    asked = request.rules.limits(request.limits)
    if made.limits.max_model_len == asked.max_model_len:
        return
    if batch := smaller_batch(made.admissions, asked):
        yield (
            f"scheduler.max_num_batched_tokens={asked.max_num_batched_tokens}: tokens in flight "
            f"are held beside each window; with {batch} all {asked.max_model_len:,} tokens fit"
        )


def _unschedulable(request: GroupingRequest, capacity: Capacity) -> Iterator[str]:
    longest = capacity.longest_request
    if longest < capacity.request_len:
        yield (
            f"engine={request.rules.name} starts, but a request beyond {longest:,} tokens can "
            f"never be scheduled; set scheduler.max_model_len={max(1, longest)}"
        )


def _too_many_requests(request: GroupingRequest, capacity: Capacity) -> Iterator[str]:
    if request.max_num_seqs and capacity.requests_at_peak < request.max_num_seqs:
        yield (
            f"scheduler.max_num_seqs={request.max_num_seqs}, but memory holds "
            f"{capacity.requests_at_peak:,} requests of {capacity.request_len:,} tokens at their "
            "peak"
        )
