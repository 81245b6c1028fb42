"""Processed traces of the Vidur simulator: lengths only, so that all requests arrive at once.

Agrawal et al., Vidur, MLSys 2024; github.com/microsoft/vidur (MIT).
"""

from __future__ import annotations

from typing import ClassVar

from kvpipe.simulation.traces.base import FileTrace, TraceRequest, whole


class VidurTrace(FileTrace):
    format_name: ClassVar[str] = "Vidur's csv"
    header: ClassVar[str | None] = "num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio"

    def parse(self, line: str) -> TraceRequest:
        cells = line.split(",")
        if len(cells) < 2:
            raise ValueError("1 column of 4")
        prompt, output = cells[:2]
        return TraceRequest(arrival_s=0.0, prompt_tokens=whole(prompt), output_tokens=whole(output))


PLUGIN = VidurTrace
