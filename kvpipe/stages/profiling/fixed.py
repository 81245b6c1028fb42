"""cache.kv_cache_memory_bytes -> the same bytes on every rank: nothing is measured or charged."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from kvpipe.errors import ConfigError, Problem
from kvpipe.stages.profiling.base import (
    AsksMemory,
    MemoryItem,
    MemoryProfile,
    ProfilingRequest,
    RankMemory,
    device_total,
    same_on_every_rank,
)


class FixedProfiling:
    """The tutorial of this folder."""

    class Options(BaseModel):
        model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
        name: str

    def __init__(self, options: Options) -> None:
        self.options = options

    def run(self, request: ProfilingRequest, backend: AsksMemory) -> MemoryProfile:
        if request.kv_cache_memory_bytes is None:
            raise ConfigError(
                Problem(
                    "cache.kv_cache_memory_bytes",
                    "bytes a rank, since profiling=fixed",
                    "null",
                    'set it ("30GiB"), or choose profiling=auto',
                )
            )
        return same_on_every_rank(self.options.name, request, by_hand(request))


def by_hand(request: ProfilingRequest) -> RankMemory:
    """The account of a rank whose cache size the user set."""
    size = request.kv_cache_memory_bytes
    assert size is not None
    item = MemoryItem(
        name="KV cache", num_bytes=size, how="set", source="cache.kv_cache_memory_bytes"
    )
    total = device_total(request.device)
    return RankMemory(rank=0, total=total, requested=item, charged=(), available_kv=item)


PLUGIN = FixedProfiling
