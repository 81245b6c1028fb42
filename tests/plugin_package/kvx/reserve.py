"""grouping=kvx_reserve: kvpipe's grouping over a part of the memory."""

from dataclasses import replace

from pydantic import BaseModel, ConfigDict, Field

from kvpipe.stages.grouping.hybrid import PLUGIN as Hybrid


class ReserveGrouping:
    class Options(BaseModel):
        model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
        name: str
        reserve_percent: int = Field(ge=0, lt=100)

    def __init__(self, options):
        self.options = options

    def run(self, request):
        kept = 100 - self.options.reserve_percent
        memory = tuple(size * kept // 100 for size in request.memory)
        return Hybrid(self.options).run(replace(request, memory=memory))
