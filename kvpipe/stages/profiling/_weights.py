"""Bytes of the model's weights on one rank."""

from __future__ import annotations

from kvpipe.errors import ConfigError, Problem
from kvpipe.specs.base import DTYPE_BYTES, cdiv
from kvpipe.stages.profiling.base import MemoryItem, ProfilingRequest


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
        how = "estimated" if request.model.is_formula else "exact"
        return MemoryItem(name="weights", num_bytes=total, how=how, source=source)
    source += f" / {ranks} ranks (replicated parts not counted twice)"
    return MemoryItem(name="weights", num_bytes=cdiv(total, ranks), how="estimated", source=source)


def adapters(request: ProfilingRequest) -> list[MemoryItem]:
    """A LoRA that lies beside the model, as often as it may be loaded at once; else nothing.

    An engine keeps as many slots of its largest rank, and what it does not split over ranks whole.
    """
    model = request.model
    total = model.adapter_bytes * model.max_loras
    if not total or request.device.type == "cpu":
        return []
    source = f"{model.max_loras} of adapter_model.safetensors (model.max_loras)"
    return [MemoryItem(name="LoRA adapters", num_bytes=total, how="estimated", source=source)]
