"""Mooncake traces: arrival, lengths, and an id for each 512-token block of the prompt's prefix.

Qin et al., Mooncake, FAST 2025; github.com/kvcache-ai/Mooncake (Apache-2.0).
"""

from __future__ import annotations

import json
from typing import ClassVar

from kvpipe.simulation.traces.base import FileTrace, TraceRequest, number, whole
from kvpipe.specs.base import cdiv

PREFIX_BLOCK = 512  # tokens


class MooncakeTrace(FileTrace):
    format_name: ClassVar[str] = "Mooncake's jsonl"
    sample: ClassVar[str | None] = "mooncake_conversation_first_400.jsonl.gz"

    def parse(self, line: str) -> TraceRequest:
        row = json.loads(line)
        prompt, ids = whole(row["input_length"]), tuple(map(whole, row["hash_ids"]))
        if len(ids) != cdiv(prompt, PREFIX_BLOCK):
            raise ValueError(f"{len(ids)} hash_ids for {prompt} tokens")
        if not all(0 <= prefix < 2**63 for prefix in ids):
            raise ValueError("a hash_id below 0, or of more than 63 bits")
        return TraceRequest(
            arrival_s=number(row["timestamp"]) / 1000,
            prompt_tokens=prompt,
            output_tokens=whole(row["output_length"]),
            prefix_ids=ids,
            prefix_block=PREFIX_BLOCK,
        )


PLUGIN = MooncakeTrace
