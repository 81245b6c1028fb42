"""total x utilization - weights - activations - other -> available bytes, each with its source.

Utilization is a share of the whole device, not of what is free, as in vLLM. Without the device the
items are formulas; each says so, and each can be set by hand.
"""

from __future__ import annotations

from math import ceil
from typing import Literal

from pydantic import BaseModel, ConfigDict

from kvpipe.errors import DoesNotFit
from kvpipe.specs.base import cdiv
from kvpipe.stages.profiling._weights import adapters, weights
from kvpipe.stages.profiling.base import (
    AsksMemory,
    MemoryItem,
    MemoryProfile,
    ProfilingRequest,
    RankMemory,
    demanded,
    device_total,
    same_on_every_rank,
)
from kvpipe.text.figures import GIB
from kvpipe.text.quantities import Bytes

# CUDA context, cuBLAS workspaces and the allocator's own slack, as engines log it on one GPU.
CONTEXT_BYTES = GIB // 2


class UtilizationProfiling:
    class Options(BaseModel):
        model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
        name: str
        weights_bytes: Bytes | Literal["auto"]
        activation_bytes: Bytes | Literal["auto"]
        other_bytes: Bytes | Literal["auto"]

    def __init__(self, options: Options) -> None:
        self.options = options

    def run(self, request: ProfilingRequest, backend: AsksMemory) -> MemoryProfile:
        total = device_total(request.device)
        share = request.gpu_memory_utilization
        requested = MemoryItem(
            name="requested",
            num_bytes=ceil(total.num_bytes * share),
            how=total.how,
            source=f"total x cache.gpu_memory_utilization={share}",
        )
        charged = self.charged(request)
        left = requested.num_bytes - sum(item.num_bytes for item in charged)
        if left <= 0:
            needed = sum(item.num_bytes for item in charged)
            raise DoesNotFit(
                _nothing_left(request, requested.num_bytes, charged),
                needed_bytes=(needed,),
                available_bytes=(requested.num_bytes,),
                demand=demanded(requested, charged, total),
            )
        available = MemoryItem(
            name="KV cache",
            num_bytes=_capped(left, request),
            how="estimated",
            source="requested - weights - activations - other",
        )
        memory = RankMemory(
            rank=0, total=total, requested=requested, charged=charged, available_kv=available
        )
        return same_on_every_rank(self.options.name, request, memory)

    def charged(self, request: ProfilingRequest) -> tuple[MemoryItem, ...]:
        options = self.options
        return (
            _item("weights", options.weights_bytes) or weights(request),
            *adapters(request),
            _item("activations", options.activation_bytes) or activations(request),
            _item("other", options.other_bytes) or other(request),
        )


def _item(name: str, asked: int | Literal["auto"]) -> MemoryItem | None:
    if asked == "auto":
        return None
    key = {"weights": "weights_bytes", "activations": "activation_bytes"}.get(name, f"{name}_bytes")
    return MemoryItem(name=name, num_bytes=asked, how="set", source=f"profiling.{key}")


def activations(request: ProfilingRequest) -> MemoryItem:
    """The peak of one step: residual stream and the widest layer of max_num_batched_tokens tokens
    at 2 bytes, beside float32 logits of max_num_seqs requests."""
    if request.device.type == "cpu":
        return MemoryItem(name="activations", num_bytes=0, how="exact", source="no model runs")
    model, tp = request.model, request.parallel.tp
    widest = max(4 * model.hidden_size, 3 * model.intermediate_size)
    step = request.max_num_batched_tokens * (2 * model.hidden_size + cdiv(widest, tp)) * 2
    logits = request.max_num_seqs * cdiv(model.vocab_size, tp) * 4
    return MemoryItem(
        name="activations",
        num_bytes=step + logits,
        how="estimated",
        source=f"{request.max_num_batched_tokens:,} tokens x layer widths + logits; no graphs",
    )


def other(request: ProfilingRequest) -> MemoryItem:
    if request.device.type == "cpu":
        return MemoryItem(name="other", num_bytes=0, how="exact", source="no device context")
    return MemoryItem(
        name="other", num_bytes=CONTEXT_BYTES, how="nominal", source="device context and libraries"
    )


def _capped(left: int, request: ProfilingRequest) -> int:
    """A CPU's memory is everybody's: at most half of what is free, unless set by hand."""
    if request.device.type != "cpu" or request.device.free_bytes is None:
        return left
    return min(left, request.device.free_bytes // 2)


def _nothing_left(
    request: ProfilingRequest, requested: int, charged: tuple[MemoryItem, ...]
) -> str:
    """By how much, and the share above which there is something, where the device has it."""
    total, needed = request.device.total_bytes, sum(item.num_bytes for item in charged)
    parts = " + ".join(f"{item.name} {item.num_bytes / GIB:.2f}" for item in charged)
    text = f"cache.gpu_memory_utilization: {parts} need {needed / GIB:.2f} GiB before the first "
    text += f"block, {requested / GIB:.2f} GiB are requested: {(needed - requested) / GIB:.2f} GiB "
    text += "too few. "
    if needed < total:
        share = ceil(1000 * needed / total) / 1000  # rounded to the safe side
        return text + f"The first block needs more than {share:.3f} of the card"
    return text + f"Device {request.device.name} has {total / GIB:.2f} GiB"


PLUGIN = UtilizationProfiling
