"""The Python API: what the command line answers, as values. Nothing is printed; `save` writes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any, Protocol

from kvpipe.commands.base import Command
from kvpipe.files.atomic import write_atomic
from kvpipe.front.prepared import prepared_request
from kvpipe.front.words import words_to_overrides
from kvpipe.models.base import ModelGeometry, ModelReader
from kvpipe.pipeline import Result, execute
from kvpipe.report.base import Answer


class _Answered(Protocol):
    @property
    def answer(self) -> Answer: ...

    @property
    def document_file(self) -> str: ...


class Telling:
    """How any answer is told: as JSON values, as text, as a picture, as files, in a notebook."""

    def to_json(self: _Answered) -> Mapping[str, Any]:
        """The command's document, plain values: what `report=json` prints."""
        return self.answer.document

    def text(self: _Answered, width: int = 80) -> str:
        """The report, in lines of at most `width` columns."""
        return "".join(f"{line.text}\n" for line in self.answer.lines(width))

    def svg(self: _Answered) -> str | None:
        """The command's picture, where it draws one."""
        return next(iter(self.answer.pictures.values()), None)

    def save(self: _Answered, folder: Path | str) -> None:
        """Write the document and the pictures, each whole or not at all, into `folder`."""
        text = json.dumps(self.answer.document, indent=1) + "\n"
        for name, content in {self.document_file: text, **self.answer.pictures}.items():
            write_atomic(Path(folder) / name, content)

    def _repr_html_(self) -> str:
        """What a notebook shows: the picture above the report."""
        return f"{self.svg() or ''}<pre>{escape(self.text(100))}</pre>"  # type: ignore[misc]


@dataclass(frozen=True, kw_only=True)
class RunResult(Telling, Result):
    """What all five stages made (see `Result`: plan, profile, bound, ...), and how to tell it.

    The memory lives as long as the RunResult.
    """

    document_file = "plan.json"

    @cached_property
    def answer(self) -> Answer:
        from kvpipe.commands.run import answer_of
        from kvpipe.report.of_run import report_input

        options = self.prepared.config.plugins["command"].options
        return answer_of(report_input(self), full=getattr(options, "document", "") == "full")


@dataclass(frozen=True, kw_only=True)
class CommandResult(Telling):
    """What a command other than run answered. fits: it serves what was asked."""

    answer: Answer
    document_file: str

    @property
    def fits(self) -> bool:
        return self.answer.exit_code == 0


def run(overrides: Sequence[str] = (), *, config_dir: str | None = None) -> RunResult:
    """All five stages on the composed request; nothing is printed and nothing is written.

    overrides: as on the command line (`"cache=sliding"`, `"cache.block_size=32"`). ConfigError
    (every problem) or DoesNotFit otherwise. The result owns its memory until it is dropped.
    """
    words = words_to_overrides(_listed(overrides))
    made = execute(prepared_request(words, config_dir=config_dir).prepared)
    return RunResult(**{field.name: getattr(made, field.name) for field in fields(Result)})


def find(overrides: Sequence[str] = (), *, config_dir: str | None = None) -> CommandResult:
    """What `kvpipe find` answers: the least that serves `want.requests` of `want.length` tokens."""
    return _command("find", overrides, config_dir)


def replay(overrides: Sequence[str] = (), *, config_dir: str | None = None) -> CommandResult:
    """What `kvpipe replay` answers: a trace (`trace=azure_code_sample`) on the planned cache."""
    return _command("replay", overrides, config_dir)


def compare(overrides: Sequence[str] = (), *, config_dir: str | None = None) -> CommandResult:
    """What `kvpipe compare` answers: one request by each engine (`engines=[vllm,sglang]`)."""
    return _command("compare", overrides, config_dir)


def read_model(said: str) -> ModelGeometry:
    """A model's geometry: a preset's name, a folder, a config.json, or `org/name`.

    ConfigError where the file is not understood; nothing is guessed.
    """
    overrides = words_to_overrides([said])
    config = prepared_request([*overrides, "device=h200", "backend=meta"]).prepared.config
    geometry = config.plugins["model"].make(ModelReader).read()
    return geometry


def _command(name: str, overrides: Sequence[str], config_dir: str | None) -> CommandResult:
    words = words_to_overrides([name, *_listed(overrides)])
    prepared = prepared_request(words, config_dir=config_dir).prepared
    command = prepared.config.plugins["command"].make(Command)
    return CommandResult(answer=command.run(prepared, None), document_file=command.files[0])


def _listed(overrides: Sequence[str]) -> Sequence[str]:
    if isinstance(overrides, str):
        raise TypeError("overrides is a list of settings, such as ['model=llama'], not one string")
    return overrides
