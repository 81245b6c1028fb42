"""What a user should know about a plan that stands, a line each, with the key that changes it."""

from __future__ import annotations

from collections.abc import Iterator

from kvpipe.cache.plan import Capacity
from kvpipe.notes import Hint, Note, Proposal
from kvpipe.stages.grouping.admission import short_size, smaller_batch
from kvpipe.stages.grouping.base import GroupingRequest
from kvpipe.stages.grouping.ranks import RankedPlans
from kvpipe.text.figures import count


def notes(request: GroupingRequest, made: RankedPlans, capacity: Capacity | None) -> Iterator[Note]:
    yield from _release(request)
    yield from _stranded(request, made)
    yield from _batch_beside_windows(request, made)
    yield from _useless_scratch(request, made)
    yield from _useless_subslots(request, made)
    if capacity is not None:
        yield from _unschedulable(request, capacity)
        yield from _too_many_requests(request, capacity)


def _release(request: GroupingRequest) -> Iterator[Note]:
    rules = request.rules
    if rules.unread:
        text = f"vLLM {rules.version} is {rules.unread}"
        yield Note(text=text, knob="engine.version", is_warning=True)


def _stranded(request: GroupingRequest, made: RankedPlans) -> Iterator[Note]:
    stranded = [(i, r.stranded_bytes) for i, r in enumerate(made.ranks) if r.stranded_bytes]
    if stranded:
        listed = ", ".join(f"rank {i} {short_size(num_bytes)}" for i, num_bytes in stranded)
        asked = request.num_gpu_blocks_override
        reason = "every rank has the blocks of the poorest"
        if asked is not None:
            reason = f"cache.num_gpu_blocks_override={asked:,}"
        yield Note(text=f"unused, since {reason}: {listed}", is_warning=True)


def _batch_beside_windows(request: GroupingRequest, made: RankedPlans) -> Iterator[Note]:
    asked = request.rules.limits(request.limits)
    if made.limits.max_model_len == asked.max_model_len:
        return
    if batch := smaller_batch(made.admissions, asked):
        yield Hint(
            about="a batch beside windows",
            text="tokens in flight are held beside each window, and cost length: with fewer all "
            f"{asked.max_model_len:,} tokens fit",
            proposals=(Proposal(changes={"scheduler.max_num_batched_tokens": batch}),),
            is_warning=True,
        )


def _useless_scratch(request: GroupingRequest, made: RankedPlans) -> Iterator[Note]:
    if request.rules.groups != "slots":
        return
    if request.scratch and not any(any(rank.config.scratch) for rank in made.ranks):
        text = (
            "no chunk lies in scratch: that needs windows, a placement with blocks outermost, "
            "equal shares of all ranks, and layers whose cache no other layer reads"
        )
        yield Note(text=text, knob="grouping.scratch")


def _useless_subslots(request: GroupingRequest, made: RankedPlans) -> Iterator[Note]:
    if not request.slots.subslots or request.rules.groups != "slots":
        return
    if all(group.blocks_per_slot == 1 for group in made.grouping.groups):
        text = (
            "no block shares a slot: that needs states beside attention layers, several of whose "
            "smallest blocks, as kernels read them, fit into a state; and blocks outermost"
        )
        yield Note(text=text, knob="grouping.subslots")


def _unschedulable(request: GroupingRequest, capacity: Capacity) -> Iterator[Note]:
    longest = capacity.longest_request
    if longest < capacity.request_len:
        yield Hint(
            about="a length that is never scheduled",
            text=f"engine={request.rules.name} starts, but a request beyond "
            f"{count(longest, 'token')} can never be scheduled",
            proposals=(Proposal(changes={"scheduler.max_model_len": max(1, longest)}),),
            is_warning=True,
        )


def _too_many_requests(request: GroupingRequest, capacity: Capacity) -> Iterator[Note]:
    if request.max_num_seqs and capacity.requests_at_peak < request.max_num_seqs:
        held = capacity.requests_at_peak
        whose = "its" if held == 1 else "their"
        yield Note(
            text=f"scheduler.max_num_seqs={request.max_num_seqs}, but memory holds "
            f"{count(held, 'request')} of {count(capacity.request_len, 'token')} at {whose} peak"
        )
