"""profiling=kvx_share: a share of the device, whatever else needs memory."""

from pydantic import BaseModel, ConfigDict

from kvpipe.stages.profiling.base import MemoryItem, RankMemory, device_total, same_on_every_rank


class ShareProfiling:
    class Options(BaseModel):
        model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
        name: str
        percent: int

    def __init__(self, options):
        self.options = options

    def run(self, request, backend):
        total = device_total(request.device)
        share = total.num_bytes * self.options.percent // 100
        cache = MemoryItem(name="KV cache", num_bytes=share, how="set", source="kvx_share")
        memory = RankMemory(rank=0, total=total, requested=cache, charged=(), available_kv=cache)
        return same_on_every_rank(self.options.name, request, memory)
