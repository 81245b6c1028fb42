"""A request as the user wrote it -> composed, checked, resolved; every problem raised at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvpipe.answers.log_settings import said_by, with_log_settings
from kvpipe.commands.base import Command
from kvpipe.commands.loads import wrong_loads
from kvpipe.commands.unread_wants import not_read
from kvpipe.errors import ConfigError, Problem, problems_of
from kvpipe.pipeline import Prepared, prepare
from kvpipe.plugins import COMMANDS
from kvpipe.request.confdir import CONFIG_NAME
from kvpipe.request.config import collect
from kvpipe.request.plain_yaml import dump_yaml
from kvpipe.request.quick import quick_choices, quick_compose, quick_folder
from kvpipe.request.typed import Typed

if TYPE_CHECKING:
    from omegaconf import DictConfig


@dataclass(frozen=True, kw_only=True)
class PreparedRequest:
    """prepared: checked and resolved. config: the composed values as YAML, which run again
    identically. wanted_folder: where the run's files shall lie; ConfigError where none is named."""

    prepared: Prepared
    config: Callable[[], str]
    wanted_folder: Callable[[], Path]


def as_typed(request: PreparedRequest, typed: Typed) -> PreparedRequest:
    """The same, whose advice is in the words of the line that it came from."""
    return replace(request, prepared=replace(request.prepared, typed=typed))


def prepared_values(raw: Mapping[str, Any], overrides: Sequence[str]) -> Prepared:
    """Composed values, checked and resolved; an engine's log speaks where the overrides do not."""
    said = said_by(overrides)
    filled, from_log = with_log_settings(raw, said)
    return replace(prepare(filled), said=said, words=tuple(overrides), from_log=from_log)


def prepared_request(
    overrides: Sequence[str],
    *,
    config_dir: str | None = None,
    config_path: str | None = None,
    config_name: str = CONFIG_NAME,
) -> PreparedRequest:
    """ConfigError with the problems of composing, of shape and type, and across fields."""
    if config_dir is None and config_path is None and config_name == CONFIG_NAME:
        raw = quick_compose(overrides)
        if raw is not None:
            return _quickly(raw, overrides)
    from kvpipe.request.compose import compose_request, configuration

    with configuration(config_dir, config_path):
        composed = compose_request(overrides, config_name)
        prepared = checked(composed.raw, overrides, composed.problems, composed.fallback)
        return _of_hydra(prepared, composed.config)


def wrong_by_itself(
    overrides: Sequence[str],
    *,
    config_dir: str | None = None,
    config_path: str | None = None,
    config_name: str | None = None,
) -> Sequence[Problem]:
    """What is wrong in each setting of a line that has wrong words besides. Not what all settings
    are together: the one that is missing (a model) would be another."""
    from kvpipe.request.compose import compose_request, configuration

    def check() -> None:
        with configuration(config_dir, config_path):
            composed = compose_request(overrides, config_name or CONFIG_NAME)
            of_values = collect(composed.raw, composed.fallback())[1]
            raise ConfigError([*composed.problems, *_of_command(composed.raw), *of_values])

    return problems_of(check)


def checked(
    raw: Mapping[str, Any],
    overrides: Sequence[str],
    problems: Sequence[Problem],
    fallback: Callable[[], Mapping[str, Any] | None],
) -> Prepared:
    """ConfigError with `problems`, met while composing, and those of the values; the fallback's
    stand in for wrong ones so that later checks can still run."""
    problems = [*problems, *_of_command(raw)]
    try:
        prepared = prepared_values(raw, overrides)
    except ConfigError as error:
        found = error.problems
        try:
            prepare(raw, fallback())
        except ConfigError as all_of_them:
            found = all_of_them.problems
        raise ConfigError(dict.fromkeys([*problems, *found])) from None
    if problems:
        raise ConfigError(dict.fromkeys(problems))
    return prepared


def _of_command(raw: Mapping[str, Any]) -> Sequence[Problem]:
    """What is wrong in the sections that some commands read, and in those of the chosen one."""
    loads = list(wrong_loads(raw))
    section = raw.get("command")
    name = section.get("name") if isinstance(section, Mapping) else None
    if not isinstance(name, str) or name not in COMMANDS:
        return loads
    command: type[Command] = COMMANDS.get(name)
    found = [*loads, *command.wrong(raw)]
    wrong = {problem.key for problem in found}  # told once: what is wrong with its value
    return [*found, *(each for each in not_read(name, command.wants, raw) if each.key not in wrong)]


def _quickly(raw: dict[str, Any], overrides: Sequence[str]) -> PreparedRequest:
    prepared = checked(raw, overrides, (), lambda: quick_choices(overrides))
    return PreparedRequest(
        prepared=prepared, config=lambda: dump_yaml(raw), wanted_folder=quick_folder
    )


def _of_hydra(prepared: Prepared, config: DictConfig) -> PreparedRequest:
    from kvpipe.request.compose import as_yaml, run_folder

    return PreparedRequest(
        prepared=prepared,
        config=lambda: as_yaml(config),
        wanted_folder=lambda: run_folder(config, "hydra.run.dir"),
    )
