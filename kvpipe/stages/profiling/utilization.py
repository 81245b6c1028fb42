"""total x utilization - weights - activations - other -> available bytes, each with its source.

Utilization is a share of the whole device, not of what is free, as in vLLM. Without the device the
items are formulas; each says so, and each can be set by hand.
"""

from __future__ import annotations

from math import ceil
from typing import Literal

from pydantic import BaseModel, ConfigDict

from kvpipe.config import Bytes
from kvpipe.errors import ConfigError, DoesNotFit, Problem
from kvpipe.specs.base import DTYPE_BYTES, cdiv
from kvpipe.stages.profiling.base import (
    AsksMemory,
    MemoryItem,
    MemoryProfile,
    ProfilingRequest,
    RankMemory,
    device_total,
    same_on_every_rank,
)
from kvpipe.stages.profiling.fixed import by_hand

GIB = 2**30
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
        if request.kv_cache_memory_bytes is not None:
            return same_on_every_rank(self.options.name, request, by_hand(request))
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
            raise DoesNotFit(_nothing_left(requested, charged), available_bytes=(left,))
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
            _item("activations", options.activation_bytes) or activations(request),
            _item("other", options.other_bytes) or other(request),
        )


def _item(name: str, asked: int | Literal["auto"]) -> MemoryItem | None:
    if asked == "auto":
        return None
    key = {"weights": "weights_bytes", "activations": "activation_bytes"}.get(name, f"{name}_bytes")
    return MemoryItem(name=name, num_bytes=asked, how="set", source=f"profiling.{key}")


def weights(request: ProfilingRequest) -> MemoryItem:
    """Parameters x served dtype over TP x PP ranks; nothing on a CPU, where none are loaded."""
    if request.device.type == "cpu":
        return MemoryItem(name="weights", num_bytes=0, how="exact", source="none are loaded")
    model, ranks = request.model, request.parallel.tp * request.parallel.pp
    if model.weight_bytes is not None:
        total, source = model.weight_bytes, "the checkpoint's tensors"
    elif model.parameter_count is not None:
        total = model.parameter_count * DTYPE_BYTES[request.served_dtype]
        source = f"{model.parameter_count:,} parameters x {request.served_dtype}"
    else:
        raise ConfigError(
            Problem(
                "profiling.weights_bytes",
                f"bytes, since {model.name} does not say how many parameters it has",
                "auto",
                'set it ("16GiB"), or cache.kv_cache_memory_bytes',
            )
        )
    if ranks == 1:
        return MemoryItem(name="weights", num_bytes=total, how="exact", source=source)
    source += f" / {ranks} ranks (replicated parts not counted twice)"
    return MemoryItem(name="weights", num_bytes=cdiv(total, ranks), how="estimated", source=source)


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


def _nothing_left(requested: MemoryItem, charged: tuple[MemoryItem, ...]) -> str:
    parts = " + ".join(f"{item.name} {item.num_bytes / GIB:.2f} GiB" for item in charged)
    return (
        f"cache.gpu_memory_utilization: {requested.num_bytes / GIB:.2f} GiB requested, {parts} "
        "leave nothing for the KV cache. Raise it, raise parallel.tensor_parallel_size, or choose "
        "a larger device"
    )


PLUGIN = UtilizationProfiling
