"""Subjects -> the JSON values that a page carries. Words of commands are written once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from kvpipe import __version__
from kvpipe.page.position import Position
from kvpipe.page.subject import Subject
from kvpipe.report.accounts import CAUSES

SCHEMA, SCHEMA_VERSION = "kvpipe.page", 1
_CAUSES = tuple(CAUSES)


def page_document(
    kind: str, subjects: Sequence[Subject], *, users: int, notes: Sequence[str] = ()
) -> dict[str, Any]:
    """kind: request | sweep | comparison | fleet | live. users: that the page opens with."""
    words: dict[str, int] = {}
    return {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "kvpipe": __version__,
        "kind": kind,
        "users": users,
        "notes": list(notes),
        "causes": [{"name": name, "means": CAUSES[name]} for name in _CAUSES],
        "subjects": [subject_document(subject, words) for subject in subjects],
        "words": list(words),
    }


def subject_document(subject: Subject, words: dict[str, int]) -> dict[str, Any]:
    """words: those of commands so far, and their numbers; new ones are added."""
    return {
        "title": subject.title,
        "words": list(subject.words),
        "model": subject.model,
        "device": subject.device,
        "axes": [asdict(axis) for axis in subject.axes],
        "positions": [
            {**position_document(position), "serve": _numbered(position.serve, words)}
            for position in subject.positions
        ],
    }


def position_document(position: Position) -> dict[str, Any]:
    """shares: [number of the cause, fixed, each]."""
    shares = [[_CAUSES.index(share.cause), share.fixed, share.each] for share in position.shares]
    return {**asdict(position), "shares": shares}


def _numbered(line: str, words: dict[str, int]) -> list[int]:
    return [words.setdefault(word, len(words)) for word in line.split(" ")] if line else []
