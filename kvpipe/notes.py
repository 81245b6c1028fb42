"""What a run has to say beside its numbers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Note:
    """Something the user should know about the run. knob: the setting that changes it ("" if none).
    is_warning: it costs memory, speed or correctness; otherwise it only explains a choice."""

    text: str
    knob: str = ""
    is_warning: bool = False
