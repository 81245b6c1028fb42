"""Mooncake traces: arrival, lengths, and an id for each 512-token block of the prompt's prefix.

Qin et al., Mooncake, FAST 2025; github.com/kvcache-ai/Mooncake (Apache-2.0).
"""

from __future__ import annotations

import json
from typing import ClassVar

from kvpipe.replay.traces.base import FileTrace, TraceRequest
from kvpipe.specs.base import cdiv

PREFIX_BLOCK = 512  # tokens


class MooncakeTrace(FileTrace):
    format_name: ClassVar[str] = "Mooncake's jsonl"
    sample: ClassVar[str | None] = "mooncake_conversation_first_400.jsonl.gz"

    def parse(self, line: str) -> TraceRequest:
        row = json.loads(line)
        prompt, ids = int(row["input_length"]), tuple(map(int, row["hash_ids"]))
        if len(ids) != cdiv(prompt, PREFIX_BLOCK):
            raise ValueError(f"{len(ids)} hash_ids for {prompt} tokens")
        return TraceRequest(
            arrival_s=row["timestamp"] / 1000,
            prompt_tokens=prompt,
            output_tokens=int(row["output_length"]),
            prefix_ids=ids,
            prefix_block=PREFIX_BLOCK,
        )


PLUGIN = MooncakeTrace
