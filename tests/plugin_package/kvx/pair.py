"""trace=kvx_pair: two requests, one after the other."""

from kvpipe.simulation.traces.base import Trace, TraceOptions, TraceRequest


class PairTrace(Trace):
    class Options(TraceOptions):
        prompt_tokens: int

    def requests(self):
        size = self.options.prompt_tokens
        return [
            TraceRequest(arrival_s=at, prompt_tokens=size, output_tokens=5) for at in (0.0, 1.0)
        ]
