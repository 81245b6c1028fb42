"""The default: a small budget on a CPU, on a GPU the estimate; kv_cache_memory_bytes wins."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from kvpipe.request.confdir import shipped_option
from kvpipe.stages.profiling.base import (
    AsksMemory,
    MemoryItem,
    MemoryProfile,
    ProfilingRequest,
    RankMemory,
    device_total,
    same_on_every_rank,
)
from kvpipe.stages.profiling.estimate import EstimateProfiling
from kvpipe.text.quantities import Bytes


class AutoProfiling:
    class Options(BaseModel):
        model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
        name: str
        budget_bytes: Bytes

    def __init__(self, options: Options) -> None:
        self.options = options

    def run(self, request: ProfilingRequest, backend: AsksMemory) -> MemoryProfile:
        if request.device.type != "cpu":
            return _estimate().run(request, backend)
        return same_on_every_rank("budget", request, self.budget(request))

    def beside_set_by_hand(
        self, profile: MemoryProfile, request: ProfilingRequest
    ) -> MemoryProfile:
        return _estimate().beside_set_by_hand(profile, request)

    def budget(self, request: ProfilingRequest) -> RankMemory:
        """min(budget, a quarter of what is free, over the ranks of this machine)."""
        free = request.device.free_bytes or request.device.total_bytes
        parallel = request.parallel
        quarter = free // 4 // (parallel.tp * parallel.pp * parallel.dp)
        by_budget = self.options.budget_bytes <= quarter
        item = MemoryItem(
            name="KV cache",
            num_bytes=min(self.options.budget_bytes, quarter),
            how="set" if by_budget else "measured",
            source="profiling.budget_bytes" if by_budget else "a quarter of the free memory",
        )
        total = device_total(request.device)
        return RankMemory(rank=0, total=total, requested=item, charged=(), available_kv=item)


def _estimate() -> EstimateProfiling:
    return EstimateProfiling(EstimateProfiling.Options(**shipped_option("profiling", "estimate")))


PLUGIN = AutoProfiling
