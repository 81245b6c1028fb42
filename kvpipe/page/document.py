"""Subjects -> the JSON values that a page carries. Words of commands are written once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from kvpipe import __version__
from kvpipe.page.between import Form, Piece
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
        "pipeline": subject.pipeline,
        "copies": subject.copies,
        "axes": [asdict(axis) for axis in subject.axes],
        "positions": [
            {
                **position_document(position),
                "serve": _numbered(position.serve, words),
                "no_serve": _numbered(position.no_serve, words),
            }
            for position in subject.positions
        ],
        "between": [[_piece(piece, words) for piece in cell] for cell in subject.between],
    }


def position_document(position: Position) -> dict[str, Any]:
    """shares: [number of the cause, fixed, each]."""
    shares = [[_CAUSES.index(share.cause), share.fixed, share.each] for share in position.shares]
    return {**asdict(position), "shares": shares}


def _piece(piece: Piece, words: dict[str, int]) -> dict[str, Any]:
    """Each figure as a number, or as [base, slope, [height, r, m] ...]. shares: [number of the
    cause, fixed, each]."""
    alike, figures = piece.alike, piece.figures
    shares = [
        [number, fixed, each]
        for number, cause in enumerate(_CAUSES)
        for fixed, each in [[_figure(figures.get(f"{cause} {part}")) for part in ("fixed", "each")]]
        if fixed != 0 or each != 0
    ]
    kept = {name: value for name, value in asdict(alike).items() if name != "layout"}
    return {
        "first": piece.first,
        "last": piece.last,
        **kept,
        "serve": _numbered(" ".join(alike.serve), words),
        "no_serve": _numbered(alike.no_serve, words),
        "peak": _figure(figures["peak"]),
        "steady": _figure(figures["steady"]),
        "request_bytes": _figure(figures["request_bytes"]),
        "shares": shares,
        "held_before": piece.held_before,
        "period": piece.period,
    }


def _figure(form: Form | None) -> Any:
    if form is None:
        return 0
    if not form.slope and not form.steps:
        return form.base
    return [form.base, form.slope, *form.steps]


def _numbered(line: str, words: dict[str, int]) -> list[int]:
    return [words.setdefault(word, len(words)) for word in line.split(" ")] if line else []
