"""One job: a prepared request is answered, reported, and its files are written.

Each file is written whole or not at all; result.json (status, exit code, the few figures of a
sweep's row) comes last. The composed config lies in .hydra/config.yaml.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from kvpipe.commands.base import Command
from kvpipe.errors import ConfigError, KvpipeError
from kvpipe.files.atomic import write_atomic
from kvpipe.files.named import in_words, named
from kvpipe.pipeline import Prepared
from kvpipe.report.base import Answer, Report
from kvpipe.text.strict_json import strict_json


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """status: fits | does_not_fit | wrong_request | failed. lines: to stderr."""

    status: str
    exit_code: int
    lines: tuple[str, ...] = ()
    fields: Mapping[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "status": self.status,
            "exit_code": self.exit_code,
            "error": "; ".join(self.lines),
            "errors": list(self.lines),
            **(self.fields or {}),
        }


def run_job(
    prepared: Prepared, make_folder: Callable[[], Path], stream: TextIO | None, job: str | None
) -> Outcome:
    """Answer, write the job's files, report on `stream` (None: nowhere). job: its name in a sweep.

    make_folder is called once there is something to write: a request that turns out to be wrong
    raises ConfigError before that, and leaves nothing.
    """
    report = prepared.config.plugins["report"].make(Report)
    command = prepared.config.plugins["command"].make(Command)
    try:
        answer = command.run(prepared, job)
    except ConfigError:
        raise
    except KvpipeError as error:
        _tell(stream, partial(report.render_failure, error, job))
        folder = make_folder()
        _write_pictures(folder, command.pictures_of_failure(prepared, error))
        return write_outcome(folder, failure(error))
    is_wrong = answer.exit_code == ConfigError.exit_code  # as far as it could be answered
    if is_wrong or (job is None and not command.leaves):
        _tell(stream, partial(report.render, answer, job))
        return _outcome(answer)
    folder = make_folder()
    document, *_ = command.files
    indent = 1 if job is None else None  # of many jobs each is one line, written ten times as fast
    write_atomic(folder / document, strict_json(answer.document, indent))
    _write_pictures(folder, answer.pictures)
    _tell(stream, partial(report.render, answer, job, folder=folder))
    return write_outcome(folder, _outcome(answer))


def _tell(stream: TextIO | None, render: Callable[[TextIO], None]) -> None:
    if stream is not None:
        with named("stdout"):
            render(stream)


def _write_pictures(folder: Path, pictures: Mapping[str, str]) -> None:
    for name, text in pictures.items():
        write_atomic(folder / name, text)


def run_beside(prepared: Prepared) -> Outcome:
    """A process that is not the first of several: the same stages; no report and no files."""
    return _outcome(prepared.config.plugins["command"].make(Command).run(prepared, None))


def _outcome(answer: Answer) -> Outcome:
    return Outcome(
        status=answer.status,
        exit_code=answer.exit_code,
        lines=answer.complaints,
        fields=answer.fields,
    )


def failure(error: Exception) -> Outcome:
    """What an exception means for the job's status and exit code."""
    if isinstance(error, KvpipeError):
        return Outcome(status=error.status, exit_code=error.exit_code, lines=tuple(error.lines()))
    if isinstance(error, OSError):  # a full disk, a folder of others
        return Outcome(status="failed", exit_code=3, lines=(in_words(error),))
    import traceback

    where = traceback.extract_tb(error.__traceback__)[-1]
    line = f"{type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})"
    return Outcome(status="failed", exit_code=3, lines=(" ".join(line.split()),))


def write_outcome(folder: Path, outcome: Outcome) -> Outcome:
    write_atomic(folder / "result.json", strict_json(outcome.to_json(), indent=1))
    return outcome
