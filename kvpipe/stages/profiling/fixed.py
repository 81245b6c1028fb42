"""cache.kv_cache_memory_bytes -> the same bytes on every rank: nothing is measured or charged."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from kvpipe.errors import ConfigError, Problem
from kvpipe.stages.profiling._weights import adapters, weights
from kvpipe.stages.profiling.base import (
    AsksMemory,
    MemoryItem,
    MemoryProfile,
    ProfilingRequest,
    RankMemory,
    device_total,
)


class FixedProfiling:
    """The tutorial of this folder."""

    class Options(BaseModel):
        model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
        name: str

    def __init__(self, options: Options) -> None:
        self.options = options

    def run(self, request: ProfilingRequest, backend: AsksMemory) -> MemoryProfile:
        """Asked only where no size is set."""
        raise ConfigError(
            Problem(
                "cache.kv_cache_memory_bytes",
                "bytes a rank, since profiling=fixed",
                "null",
                'set it ("30GiB"), or choose profiling=auto',
            )
        )


def by_hand(request: ProfilingRequest) -> RankMemory:
    """The account of a rank whose cache size the user set: taken at its word, as engines take it.
    Weights stand beside it, so that the report can say when the device has less than both."""
    size = request.kv_cache_memory_bytes
    assert size is not None
    source = "cache.kv_cache_memory_bytes"
    item = MemoryItem(name="KV cache", num_bytes=size, how="set", source=source)
    total, charged = device_total(request.device), _known_weights(request)
    needed = size + sum(charge.num_bytes for charge in charged)
    requested = MemoryItem(
        name="requested",
        num_bytes=needed,
        how=charged[0].how if charged else "set",
        source=f"weights + {source}" if charged else source,
    )
    return RankMemory(rank=0, total=total, requested=requested, charged=charged, available_kv=item)


def _known_weights(request: ProfilingRequest) -> tuple[MemoryItem, ...]:
    """Nothing on a CPU, where none are loaded, or where the model does not say."""
    model = request.model
    if request.device.type == "cpu" or (model.parameter_count or model.weight_bytes) is None:
        return ()
    return (weights(request), *adapters(request))


PLUGIN = FixedProfiling
