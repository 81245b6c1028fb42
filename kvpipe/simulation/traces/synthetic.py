"""Requests made up here: Poisson arrivals, log-normal lengths or those of given percentiles, an
optional common prefix."""

from __future__ import annotations

import random
from typing import Annotated

from pydantic import Field

from kvpipe.simulation.traces.base import MOST_TOKENS, Rate, Trace, TraceOptions
from kvpipe.simulation.traces.columns import Requests, TraceRequest
from kvpipe.simulation.traces.lengths import LengthPercentiles, length_at
from kvpipe.text.quantities import Tokens


class SyntheticTrace(Trace):
    class Options(TraceOptions):
        """requests_per_second: mean. *_tokens: medians; spread: sigma of the logarithm of a length
        (0: every length is the median). shared_prefix_tokens: tokens that all prompts start with,
        before their own. *_percentiles: instead of median and spread, percent of the requests ->
        tokens that they do not exceed, evenly spread from one to the next."""

        max_requests: Annotated[int, Field(ge=1, le=1_000_000)] | None
        seed: Annotated[int, Field(ge=0, lt=2**63)]
        requests_per_second: Rate
        prompt_tokens: Tokens
        output_tokens: Tokens
        spread: Annotated[float, Field(ge=0, le=4)]
        shared_prefix_tokens: Annotated[int, Field(ge=0, lt=2**31)]
        prompt_percentiles: LengthPercentiles | None = None
        output_percentiles: LengthPercentiles | None = None

    def requests(self) -> Requests:
        options = self.options
        assert isinstance(options, SyntheticTrace.Options)
        draw, arrival = random.Random(options.seed), 0.0
        made = Requests()
        for _ in range(options.max_requests or 1000):
            prompt = self._length(
                draw, options.prompt_tokens, options.spread, options.prompt_percentiles
            )
            made.append(self._request(options, arrival, prompt, draw))
            arrival += draw.expovariate(options.requests_per_second)
        return made

    def _request(
        self, options: Options, arrival: float, prompt: int, draw: random.Random
    ) -> TraceRequest:
        shared = options.shared_prefix_tokens
        return TraceRequest(
            arrival_s=arrival,
            prompt_tokens=min(shared + prompt, MOST_TOKENS - 1),
            output_tokens=self._length(
                draw, options.output_tokens, options.spread, options.output_percentiles
            ),
            # One block as long as the shared part; what follows without an id is one's own.
            prefix_ids=(0,) if shared else (),
            prefix_block=shared,
        )

    @staticmethod
    def _length(
        draw: random.Random, median: int, spread: float, percentiles: LengthPercentiles | None
    ) -> int:
        if percentiles is not None:
            return length_at(percentiles, 100 * draw.random())
        return min(max(1, round(median * draw.lognormvariate(0.0, spread))), MOST_TOKENS - 1)


PLUGIN = SyntheticTrace
