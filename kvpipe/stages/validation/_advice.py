"""What a request that can be planned is told all the same."""

from __future__ import annotations

from kvpipe.models.base import ModelGeometry
from kvpipe.notes import Hint, Note, Proposal
from kvpipe.request.config import RunConfig
from kvpipe.stages.validation.drafting import draft_notes
from kvpipe.stages.validation.layers import WhatIf


def advice(config: RunConfig, model: ModelGeometry, what_if: WhatIf | None) -> list[Note]:
    notes: list[Note] = []
    cache = config.cache
    if what_if is not None:
        notes.append(Note(text=f"what-if: layers are planned as {what_if.spec}, not as published"))
    if what_if is not None and (cache.sliding_window or 0) >= model.context_length:
        notes.append(
            Note(
                text=f"the window of {cache.sliding_window:,} tokens covers the whole context "
                f"of {model.context_length:,}: it frees nothing",
                knob="cache.sliding_window",
                is_warning=True,
            )
        )
    if cache.gpu_memory_utilization == 1.0:
        notes.append(
            Hint(
                about="a share of the whole card",
                text="utilization 1.0 leaves nothing for what is not accounted for: expect "
                "out-of-memory errors",
                proposals=(Proposal(changes={"cache.gpu_memory_utilization": 0.95}),),
                is_warning=True,
            )
        )
    return [*notes, *draft_notes(config, model)]
