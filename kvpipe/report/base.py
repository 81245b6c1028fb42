"""The contract of a report: what a command found out -> text, JSON or nothing, on one stream.

A report computes nothing: it is given an Answer, never a stage or a config object, and needs no
torch. The tutorial is `none.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from kvpipe.errors import KvpipeError
from kvpipe.text.lines import Line


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a command found out, ready to be told in any way.

    status: fits | may_not_fit | does_not_fit | failed; exit_code: 0, 1 or 3. lines: the text of a
    given width in columns; screen: the same at first sight, at most 16 lines (None: lines are short
    already).
    verdict: the last line on a screen. document: JSON values, every figure; it begins with the
    status, the exit code and the verdict (null where a command judges nothing). pictures: file name
    -> SVG, or any other text that the job leaves beside its document. fields: the few figures that
    stand in result.json and in a sweep's row. complaints: lines for stderr, one a problem.
    """

    status: str
    exit_code: int
    lines: Callable[[int], Iterable[Line]]
    screen: Callable[[int], Iterable[Line]] | None = None
    verdict: Line | None = None
    document: Mapping[str, Any]
    pictures: Mapping[str, str] = field(default_factory=dict)
    fields: Mapping[str, Any] = field(default_factory=dict)
    complaints: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        said = None if self.verdict is None else self.verdict.text
        outcome = {"status": self.status, "exit_code": self.exit_code}
        whole = {**outcome, "verdict": said, **self.document, **outcome}
        object.__setattr__(self, "document", whole)


class Report(ABC):
    """One way to tell it. A plugin also has `Options` and takes them in its constructor."""

    @abstractmethod
    def render(
        self, answer: Answer, job: str | None, stream: TextIO, folder: Path | None = None
    ) -> None:
        """Write an answer. job: its name in a sweep, else None. folder: where its files are."""

    def render_failure(self, error: KvpipeError, job: str | None, stream: TextIO) -> None:
        """Write what a job that ended with `error` has to say here. The error's own lines go to
        stderr whatever the report is, so most reports say nothing."""
        return None
