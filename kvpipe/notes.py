"""What a run has to say beside its numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Note:
    """Something the user should know about the run. knob: the setting that changes it ("" if none).
    is_warning: it costs memory, speed or correctness; otherwise it only explains a choice. changes:
    settings that the knob recommends, each of which was planned and does what is said."""

    text: str
    knob: str = ""
    is_warning: bool = False
    changes: tuple[Mapping[str, Any], ...] = field(default=(), hash=False)
