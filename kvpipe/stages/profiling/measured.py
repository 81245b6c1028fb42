"""The device's free memory, asked of the backend now, x utilization -> available bytes."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from kvpipe.errors import ConfigError, Problem
from kvpipe.stages.profiling.base import (
    AsksMemory,
    MemoryItem,
    MemoryProfile,
    ProfilingRequest,
    RankMemory,
    same_on_every_rank,
)


class MeasuredProfiling:
    class Options(BaseModel):
        model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
        name: str

    def __init__(self, options: Options) -> None:
        self.options = options

    def run(self, request: ProfilingRequest, backend: AsksMemory) -> MemoryProfile:
        if not request.device.is_here:
            raise ConfigError(
                Problem(
                    "profiling.name",
                    f"utilization or fixed, since device '{request.device.name}' is not here",
                    "'measured'",
                )
            )
        info = backend.memory_info()
        total = MemoryItem(
            name="total", num_bytes=info.total_bytes, how="measured", source=info.source
        )
        # A CPU's memory is everybody's: half of it at most, unless the size is set by hand.
        share = request.gpu_memory_utilization
        if request.device.type == "cpu":
            share = min(share, 0.5)
        free = MemoryItem(
            name="KV cache",
            num_bytes=int(info.free_bytes * share),
            how="measured",
            source=f"{info.free_bytes:,} bytes free x {share}",
        )
        memory = RankMemory(rank=0, total=total, requested=free, charged=(), available_kv=free)
        return same_on_every_rank(self.options.name, request, memory)


PLUGIN = MeasuredProfiling
