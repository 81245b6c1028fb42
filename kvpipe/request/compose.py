"""Command line -> composed values, with every mistake found, not the first one.

Hydra composes; it also stops at its first error. So when a request does not compose, each override
is tried by itself: group choices first (one bad group makes every key look bad), then keys; what is
left is composed and checked for the rest. Settings come from YAML and the command line only.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from os.path import isdir
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.errors import HydraException
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from kvpipe.errors import LONGEST_GOT, ConfigError, Problem, did_you_mean
from kvpipe.files.entry_points import entry_points
from kvpipe.request.confdir import (
    CONF_DIR,
    CONFIG_NAME,
    saved_folder,
    shipped_names,
    shipped_option,
)
from kvpipe.request.guard import ALLOWED_GROUPS, refused_override
from kvpipe.request.guarded_loader import GuardedLoader
from kvpipe.request.launchers import not_installed
from kvpipe.request.own_values import own_values_only

# ValueError: a group that is given a number. RecursionError: brackets in brackets.
_COMPOSE_ERRORS = (HydraException, OmegaConfBaseException, ValueError, RecursionError)
_extra_dirs: list[str] = []


class KvpipeSearchPath(SearchPathPlugin):
    """Third parties' YAML (entry points `kvpipe.conf`, value: a package) and --config-dir."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        for point in entry_points(group="kvpipe.conf"):
            search_path.append(provider=point.name, path=f"pkg://{point.value}")
        for folder in _extra_dirs:
            search_path.append(provider="command-line", path=f"file://{folder}")


@contextmanager
def configuration(config_dir: str | None = None, config_path: str | None = None) -> Iterator[None]:
    """Hydra set up on conf/ (or on config_path instead, to run a saved config again)."""
    _check_current_folder()
    use_search_path([config_dir] if config_dir else [])
    folder = saved_folder(config_path) if config_path else CONF_DIR
    with initialize_config_dir(str(folder), job_name="kvpipe", version_base="1.3"):
        hydra = GlobalHydra.instance().hydra
        assert hydra is not None
        hydra.config_loader = GuardedLoader(hydra.config_loader.get_search_path())
        yield


def _check_current_folder() -> None:
    """Hydra asks for it, and would say of every setting that it is not there."""
    try:
        os.getcwd()
    except OSError as error:
        got = error.strerror or str(error)
        raise ConfigError(Problem("current folder", "one that is there", got)) from error


def use_search_path(folders: Sequence[str]) -> None:
    """Third-party YAML and these folders are searched from now on, after the shipped ones."""
    for folder in folders:
        if not isdir(folder):
            raise ConfigError(Problem("--config-dir", "a folder", f"'{folder}'"))
    _extra_dirs[:] = [str(Path(folder).resolve()) for folder in folders]
    Plugins.instance().register(KvpipeSearchPath)


@dataclass(frozen=True, kw_only=True)
class Composed:
    """A composed request: Hydra's config, the plain values, and the problems met on the way.

    choices: the overrides that compose, groups only; `fallback()` composes the request with them.
    """

    config: DictConfig
    raw: dict[str, Any]
    problems: tuple[Problem, ...]
    choices: tuple[str, ...]
    config_name: str

    def fallback(self) -> dict[str, Any]:
        return plain(_compose(self.config_name, self.choices))


def compose_request(overrides: Sequence[str], config_name: str = CONFIG_NAME) -> Composed:
    """Compose inside `configuration()`. Problems are returned; ConfigError if nothing composes."""
    groups = _groups()
    problems: list[Problem] = []
    try:
        parsed = _parse(overrides)
        config = _compose(config_name, overrides)
        raw = plain(config)
    except (*_COMPOSE_ERRORS, ConfigError):
        problems, overrides = _find_problems(config_name, overrides, groups)
        try:
            parsed = _parse(overrides)
            config = _compose(config_name, overrides)
            raw = plain(config)
        except ConfigError as error:
            raise ConfigError([*problems, *error.problems]) from error
        except _COMPOSE_ERRORS as error:
            # Each override composes by itself, but not together.
            problems.append(Problem("overrides", "settings that compose", _one_line(error)))
            raise ConfigError(problems) from error
    choices = tuple(item.input_line or "" for item in parsed if item.key_or_group in groups)
    return Composed(
        config=config, raw=raw, problems=tuple(problems), choices=choices, config_name=config_name
    )


def plain(config: DictConfig) -> dict[str, Any]:
    """The run's own values, interpolations resolved, Hydra's left out."""
    values: Any = OmegaConf.masked_copy(config, [str(k) for k in config if k != "hydra"])
    OmegaConf.set_readonly(values, True)
    try:
        with own_values_only():
            container: Any = OmegaConf.to_container(values, resolve=True, throw_on_missing=True)
    except RecursionError:
        problem = Problem("configuration", "interpolations that end", "one that refers to itself")
        raise ConfigError(problem) from None
    return dict(container)


def as_yaml(config: DictConfig) -> str:
    """The run's own values as YAML, interpolations resolved, Hydra's left out."""
    own = OmegaConf.masked_copy(config, [str(key) for key in config if key != "hydra"])
    return OmegaConf.to_yaml(own, resolve=True)


def run_folder(config: DictConfig, key: str) -> Path:
    """The folder that hydra.run.dir or hydra.sweep.dir names; ConfigError where it names none."""
    try:
        wanted = OmegaConf.select(config, key, throw_on_resolution_failure=True)
    except OmegaConfBaseException as error:
        raise ConfigError(Problem(key, "a folder", _one_line(error))) from error
    if not isinstance(wanted, str) or not wanted.strip():
        raise ConfigError(Problem(key, "a folder", repr(wanted)))
    return Path(wanted)


def _compose(config_name: str, overrides: Sequence[str]) -> DictConfig:
    """Nobody changes what is returned: looking for mistakes asks for the same several times."""
    made = _composed(GlobalHydra.instance().config_loader(), config_name, tuple(overrides))
    if isinstance(made, Exception):
        raise made
    return made


@lru_cache(maxsize=8)
def _composed(loader: Any, config_name: str, overrides: tuple[str, ...]) -> DictConfig | Exception:
    try:
        return compose(config_name, list(overrides), return_hydra_config=True)
    except (*_COMPOSE_ERRORS, ConfigError) as error:
        return error


def _parse(overrides: Sequence[str]) -> list[Override]:
    loader = GlobalHydra.instance().config_loader()
    return OverridesParser.create(config_loader=loader).parse_overrides(list(overrides))


def _groups() -> set[str]:
    """Ours, and those of Hydra's that a request may choose from."""
    own = set(GlobalHydra.instance().config_loader().list_groups("")) - {"hydra"}
    return own | set(ALLOWED_GROUPS)


def _find_problems(
    config_name: str, overrides: Sequence[str], groups: set[str]
) -> tuple[list[Problem], list[str]]:
    """The problem of each override that does not compose, and the overrides that do."""
    problems: list[Problem] = []
    kept: list[str] = []
    values: list[str] = []
    for override in overrides:
        try:
            (item,) = _parse([override])
        except _COMPOSE_ERRORS as error:
            problems.append(_unreadable(override, error))
            continue
        if not item.key_or_group:
            problems.append(_unreadable(override, ValueError()))
        elif refused := refused_override(item):
            problems.append(refused)
        elif item.is_sweep_override():
            problems.append(_sweep_without_m(item))
        elif item.key_or_group not in groups:
            values.append(override)
        elif wrong := _wrong_choice(item):
            problems.append(wrong)
        else:
            kept.append(override)
    base = _base(config_name, kept, problems)
    known = list(_keys(OmegaConf.to_container(base, resolve=False)))
    for override in values:
        if _is_unknown(override, known):  # without composing: a request may have many
            problems.append(_wrong_key(override, known, groups, ValueError()))
            continue
        try:
            plain(_compose(config_name, [*kept, override]))
            kept.append(override)
        except ConfigError as error:
            problems += error.problems
        except _COMPOSE_ERRORS as error:
            problems.append(_wrong_key(override, known, groups, error))
    return problems, kept


def _base(config_name: str, kept: list[str], problems: list[Problem]) -> DictConfig:
    """What composes of the group choices. Those that do not (`+cache=full`) become problems."""
    try:
        return _compose(config_name, kept)
    except _COMPOSE_ERRORS:
        pass
    for override in list(kept):
        try:
            _compose(config_name, [override])
        except _COMPOSE_ERRORS as error:
            kept.remove(override)
            problems.append(Problem(override, "a choice that composes", _one_line(error)))
    try:
        return _compose(config_name, kept)
    except _COMPOSE_ERRORS as error:
        problem = Problem("configuration", "files that compose", _one_line(error))
        raise ConfigError([*problems, problem]) from error


def _unreadable(override: str, error: Exception) -> Problem:
    """Not Hydra's grammar: what it stumbled over, and that quotes help, where they do."""
    key, _, value = override.partition("=")
    reason = _one_line(error).partition(" See https")[0]
    if key.strip() and value:
        shows = len(value) <= LONGEST_GOT and not set(value) & {'"', "'", "\\"}
        quoted = value if shows else "..."
        knob = f"quote it: {key}='\"{quoted}\"'"
        no_choice = _no_choice(key, value) if key in _groups() else None
        return no_choice or Problem(key, "a value in Hydra's grammar", reason, knob)
    return Problem("command line", "key=value or group=choice", f"'{override}'")


def _sweep_without_m(item: Override) -> Problem:
    key = item.key_or_group
    return Problem(key, "one value", item.get_value_string(), "add -m to run a sweep over them")


def _wrong_choice(item: Override) -> Problem | None:
    return None if item.is_delete() else _no_choice(item.key_or_group, item.value())


def _no_choice(group: str, choice: Any) -> Problem | None:
    options = GlobalHydra.instance().config_loader().get_group_options(group)
    if choice in options:
        return None
    return not_installed(group, choice) or Problem(
        group,
        "a choice of this group",
        f"'{choice}'",
        f"{did_you_mean(str(choice), options)}; `kvpipe --help {group}` lists them",
    )


def _is_unknown(override: str, known: Sequence[str]) -> bool:
    """Whether it sets a key of the run's that is in no section."""
    (item,) = _parse([override])
    plain = not (item.is_add() or item.is_force_add() or item.is_delete() or item.package)
    return plain and item.key_or_group not in known and not item.is_hydra_override()


def _wrong_key(override: str, known: Sequence[str], groups: set[str], error: Exception) -> Problem:
    (item,) = _parse([override])
    key = item.key_or_group
    if key.startswith("hydra."):  # allowed, or the guard had refused it
        if key.endswith(".dir"):
            return Problem(key, "a folder", f"'{item.get_value_string()}'")
        return Problem(key, "a value", _one_line(error))
    if key in known or item.is_add():
        return Problem(key, "a value that composes", _one_line(error))
    return Problem(key, "a known key", f"'{override}'", _nearest(key, known, groups))


def _nearest(key: str, known: Sequence[str], groups: set[str]) -> str:
    """The key that was meant: a sibling in the same section, else any key, else the sections."""
    from difflib import get_close_matches  # only when something went wrong

    section, _, last = key.rpartition(".")
    if section in groups and (owners := _options_with(section, last)):
        return f"{last} belongs to {' and '.join(f'{section}={name}' for name in owners)}"
    siblings = [name for name in known if name.rpartition(".")[0] == section]
    if section and siblings:
        close = get_close_matches(key, siblings, n=1)
        return f"did you mean '{close[0]}'?" if close else f"valid: {', '.join(sorted(siblings))}"
    close = get_close_matches(key, known, n=1)
    if close:
        return f"did you mean '{close[0]}'?"
    return f"sections: {', '.join(sorted(name for name in groups if '/' not in name))}"


def _options_with(group: str, key: str) -> list[str]:
    """The shipped choices of a group that have this key, when the chosen one does not."""
    return [name for name in shipped_names(group) if key in (shipped_option(group, name) or {})]


def _keys(values: Any, prefix: str = "") -> Iterator[str]:
    """Every dotted key, hydra's left out."""
    for key, value in values.items():
        if prefix or key != "hydra":
            yield f"{prefix}{key}"
            if isinstance(value, dict):
                yield from _keys(value, f"{prefix}{key}.")


def _one_line(error: BaseException) -> str:
    """Hydra raises some of OmegaConf's errors anew, without a word."""
    said = " ".join(str(error).split())
    return said or (_one_line(error.__cause__) if error.__cause__ else type(error).__name__)
