"""No report: for sweeps and programs that read the returned Result or plan.json instead.

The tutorial of this folder: a report is a class with `Options`, `render(answer, job, stream)`, and
`PLUGIN`; its twin `conf/report/none.yaml` writes out every option.
"""

from __future__ import annotations

from pathlib import Path
from typing import TextIO

from pydantic import BaseModel, ConfigDict

from kvpipe.report.base import Answer, Report


class NoReport(Report):
    class Options(BaseModel):
        model_config = ConfigDict(frozen=True, extra="forbid")
        name: str

    def __init__(self, options: Options) -> None:
        self.options = options

    def render(
        self, answer: Answer, job: str | None, stream: TextIO, folder: Path | None = None
    ) -> None:
        return None


PLUGIN = NoReport
