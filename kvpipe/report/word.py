"""A word of a report and what it means."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Word:
    """text: what it means. see: the setting that changes it, or another word ("" neither)."""

    text: str
    see: str = ""
