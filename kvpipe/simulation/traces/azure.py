"""Azure LLM inference traces, 2023: arrival times and lengths, no content.

Patel et al., Splitwise, ISCA 2024; github.com/Azure/AzurePublicDataset (CC-BY-4.0).
"""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar

from kvpipe.simulation.traces.base import FileTrace, TraceRequest, whole


class AzureTrace(FileTrace):
    format_name: ClassVar[str] = "Azure's csv"
    sample: ClassVar[str | None] = "azure_code_2023_first_500.csv"
    header: ClassVar[str | None] = "TIMESTAMP,ContextTokens,GeneratedTokens"

    def parse(self, line: str) -> TraceRequest:
        cells = line.strip().split(",")
        if len(cells) != 3:
            raise ValueError(f"{len(cells)} columns of 3")
        when, prompt, output = cells
        seconds, _, fraction = when.partition(".")  # seven digits, one more than datetime reads
        arrival = datetime.fromisoformat(seconds + "+00:00").timestamp()
        return TraceRequest(
            arrival_s=arrival + float(f"0.{fraction or 0}"),
            prompt_tokens=whole(prompt),
            output_tokens=whole(output),
        )


PLUGIN = AzureTrace
