"""What a run has to say beside its numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Note:
    """Something the user should know about the run. knob: the key of the setting that decides it
    ("" if none), or, where `changes` stand beside it, what is recommended in words.
    is_warning: it costs memory, speed or correctness; otherwise it only explains a choice. changes:
    settings that the knob recommends, each of which was planned and does what is said."""

    text: str
    knob: str = ""
    is_warning: bool = False
    changes: tuple[Mapping[str, Any], ...] = field(default=(), hash=False)


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """A change of settings that may help. words: what it brings about ("" none needed).
    least_kv_bytes: the cache of the poorest rank is at least that (None: the hint is gone)."""

    changes: Mapping[str, Any]
    words: str = ""
    least_kv_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class Hint(Note):
    """A note with changes that nobody has planned yet: who knows a plan's numbers proposes, who can
    plan again (`answers/hints.py`) keeps what helps. about: what it is about, the same words in a
    run with other numbers; a change helps where the fresh run has no such hint, or the bytes that
    it promises. proposals: in order of preference; of those that change
    the same keys the first that helps is told."""

    about: str
    proposals: tuple[Proposal, ...] = field(default=(), hash=False)
