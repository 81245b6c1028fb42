"""What an estimate's figures do not show by themselves: where the sampler decides, graphs outside
the budget, neighbours on the card."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil, floor

from kvpipe.engines.defaults import graphs_reserved, others_charged
from kvpipe.notes import Hint, Note, Proposal
from kvpipe.stages.profiling.base import ProfilingRequest
from kvpipe.stages.profiling.estimates import activations, graphs
from kvpipe.text.figures import GIB

_SHARE = "cache.gpu_memory_utilization"
_BYTES = "cache.kv_cache_memory_bytes"


def estimate_notes(
    request: ProfilingRequest, *, available: int, is_eager: bool, held_by_others: int
) -> Iterator[Note]:
    """available: bytes for the cache of the poorest rank. is_eager: no graphs are captured.
    held_by_others: bytes of other processes."""
    yield from _sampler(request)
    if not is_eager and not graphs_reserved(request.engine_version):
        yield _graphs_outside(request)
    if held_by_others:
        yield _other_instances(held_by_others, available, request)


def _sampler(request: ProfilingRequest) -> Iterator[Note]:
    """max_num_seqs costs memory where the sampler is the peak."""

    def peak(seqs: int) -> int:
        return activations(
            request.model,
            batched_tokens=request.max_num_batched_tokens,
            max_num_seqs=seqs,
            tp=request.parallel.tp,
        ).best

    def decides(seqs: int) -> bool:
        return seqs >= 4 and peak(seqs) - peak(seqs // 4) > GIB

    asked = request.max_num_seqs
    if not decides(asked):
        return
    # The first of which this would not be said: the one that is advised is the one that is told.
    halvings = [asked >> n for n in range(1, asked.bit_length())]
    fewer = [seqs for seqs in halvings if not decides(seqs)]
    yield Hint(
        about="a sampler that decides",
        text=f"sampling for {asked:,} requests at once takes {peak(asked) / GIB:.2f} GiB of "
        f"activations, for {fewer[0]:,} it would be {peak(fewer[0]) / GIB:.2f} GiB",
        proposals=tuple(Proposal(changes={"scheduler.max_num_seqs": n}) for n in fewer),
        is_warning=True,
    )


def _graphs_outside(request: ProfilingRequest) -> Note:
    """A warning where what the share leaves of the card does not hold them."""
    found = graphs(
        request.model, num_layers=request.model.num_layers, max_num_seqs=request.max_num_seqs
    )
    low, high = (n // request.parallel.pp for n in (found.low, found.high))
    total = request.device.total_bytes
    left = total - ceil(total * request.gpu_memory_utilization)
    text = (
        f"vLLM {request.engine_version} captures CUDA graphs after it sized the cache: "
        f"{low / GIB:.2f} to {high / GIB:.2f} GiB, and the sampler's warm-up, lie outside its "
        f"budget; the rest of the card is {left / GIB:.2f} GiB"
    )
    if left >= high:
        return Note(text=text)
    share = floor(100 * (total - high) / total) / 100
    return Hint(
        about="graphs outside the budget",
        text=text,
        proposals=(
            Proposal(changes={_SHARE: share}),
            Proposal(changes={"profiling.enforce_eager": True}),
        ),
        is_warning=True,
    )


def _other_instances(held: int, available: int, request: ProfilingRequest) -> Note:
    total, share = request.device.total_bytes, request.gpu_memory_utilization
    by_hand = Proposal(
        changes={_BYTES: available},
        words="which no neighbour changes",
        least_kv_bytes=available,
    )
    if not others_charged(request.engine_version):
        return Hint(
            about="neighbours",
            text=f"other processes hold {held / GIB:.2f} GiB: vLLM {request.engine_version} counts "
            "what grows after its start, so they must be there before it starts, and grow no more",
            proposals=(by_hand,),
            is_warning=True,
        )
    alone = ceil(100 * (share + held / total)) / 100
    raised = Proposal(changes={_SHARE: alone}, least_kv_bytes=available + held)
    return Hint(
        about="neighbours",
        text=f"other processes hold {held / GIB:.2f} GiB, which counts against this instance's "
        f"share: it needs {share + held / total:.2f} to get what {share:.2f} gives it alone. Valid "
        "when the others started before: started at once, each counts the other's weights",
        proposals=(raised, by_hand) if alone < 1 else (by_hand,),
        is_warning=True,
    )
