"""The Python API: what the command line answers, as values. Nothing is printed; `save` writes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from html import escape
from os import PathLike, fsdecode
from pathlib import Path
from typing import Any, Protocol

from kvpipe.commands.base import Command
from kvpipe.errors import ConfigError, DoesNotFit, Problem
from kvpipe.files.atomic import write_atomic
from kvpipe.front.flags import read_flags
from kvpipe.front.prepared import as_typed, prepared_request
from kvpipe.front.read_words import overrides_of
from kvpipe.front.words import read_words, typed_words, words_to_overrides
from kvpipe.models.base import ModelGeometry, ModelReader
from kvpipe.pipeline import Prepared, Result, execute
from kvpipe.plugins import COMMANDS
from kvpipe.report.base import Answer
from kvpipe.text.strict_json import strict_json

_ANSWERED = ("run", "find", "replay", "compare")


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
        text = strict_json(self.answer.document, indent=1)
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


def run(
    overrides: Iterable[str | PathLike[str]] = (), *, config_dir: str | PathLike[str] | None = None
) -> RunResult:
    """All five stages on the composed request; nothing is printed and nothing is written.

    overrides: as on the command line (`"cache=sliding"`, `"cache.block_size=32"`). ConfigError
    (every problem) or DoesNotFit otherwise (its `status` is "may_not_fit" where the high end of the
    memory's estimate would hold it). The result owns its memory until it is dropped.
    """
    prepared = _prepared("run", overrides, config_dir)
    try:
        made = execute(prepared)
    except DoesNotFit as error:
        from kvpipe.answers.served import refused  # as all of a refusal

        raise refused(prepared, error) from None
    return RunResult(**{field.name: getattr(made, field.name) for field in fields(Result)})


def find(
    overrides: Iterable[str | PathLike[str]] = (), *, config_dir: str | PathLike[str] | None = None
) -> CommandResult:
    """What `kvpipe find` answers: the least that serves `want.requests` of `want.length` tokens."""
    return _command("find", overrides, config_dir)


def replay(
    overrides: Iterable[str | PathLike[str]] = (), *, config_dir: str | PathLike[str] | None = None
) -> CommandResult:
    """What `kvpipe replay` answers: a trace (`trace=azure_code_sample`) on the planned cache."""
    return _command("replay", overrides, config_dir)


def compare(
    overrides: Iterable[str | PathLike[str]] = (), *, config_dir: str | PathLike[str] | None = None
) -> CommandResult:
    """What `kvpipe compare` answers: one request by each engine (`engines=[vllm,sglang]`)."""
    return _command("compare", overrides, config_dir)


def read_model(said: str | PathLike[str]) -> ModelGeometry:
    """A model's geometry: a preset's name, a folder, a config.json, or `org/name`.

    ConfigError where the file is not understood; nothing is guessed.
    """
    overrides = words_to_overrides(_listed([said]))
    if not any(word.partition("=")[0] == "model" for word in overrides):
        wanted = "a preset's name, a folder, a config.json or org/name"
        raise ConfigError(Problem("model", wanted, repr(said)))
    config = prepared_request([*overrides, "device=h200", "backend=meta"]).prepared.config
    geometry = config.plugins["model"].make(ModelReader).read()
    return geometry


def _command(
    name: str, overrides: Iterable[str | PathLike[str]], config_dir: str | PathLike[str] | None
) -> CommandResult:
    prepared = _prepared(name, overrides, config_dir)
    command = prepared.config.plugins["command"].make(Command)
    return CommandResult(answer=command.run(prepared, None), document_file=command.files[0])


def _prepared(
    name: str, overrides: Iterable[str | PathLike[str]], config_dir: str | PathLike[str] | None
) -> Prepared:
    """ConfigError where they name another command than the one that answers."""
    listed = _listed(overrides)
    flags = read_flags(listed)
    named = flags.words[0].replace("-", "_") if flags.words else ""
    words = flags.words if named in COMMANDS else (name, *flags.words)
    folder = _folder(config_dir)
    asked = overrides_of(flags, read_words(words, folder), config_dir=folder)
    request = prepared_request(asked, config_dir=folder)
    prepared = as_typed(request, typed_words(listed)).prepared
    chosen = prepared.config.plugins["command"].name
    if chosen != name:
        knob = (
            f"kvpipe.{chosen} answers it" if chosen in _ANSWERED else "the command line answers it"
        )
        raise ConfigError(Problem("command", f"{name}, which kvpipe.{name} answers", chosen, knob))
    return prepared


def _listed(overrides: Any) -> list[str]:
    """As the words of a command line; a path is one that starts with a folder."""
    wanted = "a list of settings, such as ['model=llama'], not one string"
    if isinstance(overrides, str | PathLike) or not isinstance(overrides, Iterable):
        raise ConfigError(Problem("overrides", wanted, repr(overrides)))
    words = list(overrides)
    wanted = "a setting, such as 'model=llama', or a path"
    wrong = [word for word in words if not isinstance(word, str | PathLike)]
    if wrong:
        raise ConfigError([Problem("overrides", wanted, repr(word)) for word in wrong])
    return [word if isinstance(word, str) else _as_path(word) for word in words]


def _as_path(path: PathLike[str]) -> str:
    word = fsdecode(path)
    return word if word.startswith(("/", ".")) else f"./{word}"


def _folder(config_dir: Any) -> str | None:
    if config_dir is None or isinstance(config_dir, str):
        return config_dir
    if isinstance(config_dir, PathLike):
        return fsdecode(config_dir)
    raise ConfigError(Problem("config_dir", "a folder", repr(config_dir)))
