"""Requests made up here: Poisson arrivals, log-normal lengths, an optional common prefix."""

from __future__ import annotations

import random
from typing import Annotated

from pydantic import Field

from kvpipe.replay.traces.base import Positive, Trace, TraceOptions, TraceRequest

Tokens = Annotated[int, Field(ge=1)]


class SyntheticTrace(Trace):
    class Options(TraceOptions):
        """requests_per_second: mean. *_tokens: medians; spread: sigma of the logarithm of a length
        (0: every length is the median). shared_prefix_tokens: tokens that all prompts start with,
        before their own."""

        seed: int
        requests_per_second: Positive
        prompt_tokens: Tokens
        output_tokens: Tokens
        spread: Annotated[float, Field(ge=0, le=4)]
        shared_prefix_tokens: Annotated[int, Field(ge=0)]

    def requests(self) -> list[TraceRequest]:
        options = self.options
        assert isinstance(options, SyntheticTrace.Options)
        draw, arrival = random.Random(options.seed), 0.0
        made = []
        for number in range(options.max_requests or 1000):
            prompt = self._length(draw, options.prompt_tokens, options.spread)
            made.append(self._request(options, number, arrival, prompt, draw))
            arrival += draw.expovariate(options.requests_per_second)
        return made

    def _request(
        self, options: Options, number: int, arrival: float, prompt: int, draw: random.Random
    ) -> TraceRequest:
        shared = options.shared_prefix_tokens
        return TraceRequest(
            arrival_s=arrival,
            prompt_tokens=shared + prompt,
            output_tokens=self._length(draw, options.output_tokens, options.spread),
            # Blocks as long as the shared part: the first is everyone's, the others one's own.
            prefix_ids=(0, *self._own_ids(number, prompt, shared)) if shared else (),
            prefix_block=shared,
        )

    @staticmethod
    def _own_ids(number: int, prompt: int, shared: int) -> range:
        blocks = -(-prompt // shared)
        return range(1 + number * 10_000, 1 + number * 10_000 + blocks)

    @staticmethod
    def _length(draw: random.Random, median: int, spread: float) -> int:
        return max(1, round(median * draw.lognormvariate(0.0, spread)))


PLUGIN = SyntheticTrace
