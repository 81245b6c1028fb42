"""The report for programs: the command's document on stdout; in a sweep one line a job."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from pydantic import BaseModel, ConfigDict

from kvpipe.errors import ConfigError, DoesNotFit, KvpipeError
from kvpipe.report.base import Answer, Report
from kvpipe.report.document import SCHEMA, SCHEMA_VERSION
from kvpipe.text.strict_json import strict_json


class JsonReport(Report):
    class Options(BaseModel):
        model_config = ConfigDict(frozen=True, extra="forbid")
        name: str

    def __init__(self, options: Options) -> None:
        self.options = options

    def render(
        self, answer: Answer, job: str | None, stream: TextIO, folder: Path | None = None
    ) -> None:
        _write(answer.document, job, stream)

    def render_failure(self, error: KvpipeError, job: str | None, stream: TextIO) -> None:
        _write(failure_document(error, job), job, stream)


def short_document(
    status: str, exit_code: int, errors: list[str], job: str | None
) -> dict[str, Any]:
    """What every run without a plan.json says; `lost`: a job of a sweep that left nothing."""
    return {
        "status": status,
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "job": job,
        "exit_code": exit_code,
        "verdict": errors[0] if errors else None,
        "errors": errors,
    }


def failure_document(error: KvpipeError, job: str | None = None) -> dict[str, Any]:
    """What can be said without a plan. `status`: does_not_fit | wrong_request | failed."""
    document = short_document(error.status, error.exit_code, error.lines(), job)
    if isinstance(error, DoesNotFit):
        document["needed_bytes"] = list(error.needed_bytes)
        document["available_bytes"] = list(error.available_bytes)
        document["longest_len"] = error.longest_len
        document["advice"] = [dict(changes) for changes in error.changes]
    if isinstance(error, ConfigError):
        document["problems"] = [problem.to_json() for problem in error.problems]
    return document


def _write(document: Mapping[str, Any], job: str | None, stream: TextIO) -> None:
    stream.write(strict_json(document, indent=2 if job is None else None))


PLUGIN = JsonReport
