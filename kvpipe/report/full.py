"""The whole report for a person: every figure, with where it comes from."""

from __future__ import annotations

from pathlib import Path
from typing import TextIO

from pydantic import BaseModel, ConfigDict

from kvpipe.errors import KvpipeError
from kvpipe.report.base import Answer, Report
from kvpipe.report.last_line import headline
from kvpipe.report.text import write_lines
from kvpipe.text.lines import terminal_width


class FullReport(Report):
    class Options(BaseModel):
        model_config = ConfigDict(frozen=True, extra="forbid")
        name: str

    def __init__(self, options: Options) -> None:
        self.options = options

    def render(
        self, answer: Answer, job: str | None, stream: TextIO, folder: Path | None = None
    ) -> None:
        write_lines(answer.lines(terminal_width()), stream)

    def render_failure(self, error: KvpipeError, job: str | None, stream: TextIO) -> None:
        write_lines(headline(error), stream)


PLUGIN = FullReport
