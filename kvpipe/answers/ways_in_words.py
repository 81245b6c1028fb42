"""Planned ways to more room, in words: those that surely fit apart from those that may."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

FITS, MAY_FIT = "Planned, and fits", "Planned, and may fit, since the memory is an estimate"
NONE_FITS = "No single change of settings makes it fit"


class Way(Protocol):
    """written: the changes, as the user would type them. is_sure: at the low end of an estimate,
    too."""

    @property
    def changes(self) -> Mapping[str, Any]: ...
    @property
    def written(self) -> str: ...
    @property
    def promise(self) -> str: ...
    @property
    def is_sure(self) -> bool: ...


def ways_told(ways: Sequence[Way]) -> tuple[str, tuple[Mapping[str, Any], ...]]:
    """Planned ways in one line, and as changes."""
    said = [(f"{way.written} ({way.promise})", way.is_sure) for way in ways]
    return in_a_sentence(by_sureness(said, "; ")), tuple({**way.changes} for way in ways)


def by_sureness(ways: Sequence[tuple[str, bool]], joint: str) -> str:
    """Ways in words, those that surely fit before those that fit by the middle of an
    estimate."""
    parts = (
        (word, joint.join(way for way, is_sure in ways if is_sure == sure))
        for word, sure in ((FITS, True), (MAY_FIT, False))
    )
    return ". ".join(f"{word}: {said}" for word, said in parts if said) or NONE_FITS


def in_a_sentence(line: str) -> str:
    """After other words."""
    return line[0].lower() + line[1:]
