"""Command line -> composed values, with every mistake found, not the first one.

Hydra composes; it also stops at its first error. So when a request does not compose, each override
is tried by itself: group choices first (one bad group makes every key look bad), then keys; what is
left is composed and checked for the rest. Settings come from YAML and the command line only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.metadata import entry_points
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

from kvpipe.confdir import CONF_DIR, shipped_option
from kvpipe.errors import ConfigError, Problem, did_you_mean

CONFIG_NAME = "config"
_COMPOSE_ERRORS = (HydraException, OmegaConfBaseException)
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
    use_search_path([config_dir] if config_dir else [])
    folder = Path(config_path).resolve() if config_path else CONF_DIR
    if not folder.is_dir():
        raise ConfigError(Problem("--config-path", "a folder", f"'{config_path}'"))
    with initialize_config_dir(str(folder), job_name="kvpipe", version_base="1.3"):
        yield


def use_search_path(folders: Sequence[str]) -> None:
    """Third-party YAML and these folders are searched from now on, after the shipped ones."""
    for folder in folders:
        if not Path(folder).is_dir():
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
    try:
        parsed = _parse(overrides)
        config = _compose(config_name, overrides)
        raw = plain(config)
        problems: list[Problem] = []
    except (*_COMPOSE_ERRORS, ConfigError):
        problems, overrides = _find_problems(config_name, overrides, groups)
        parsed = _parse(overrides)
        try:
            config = _compose(config_name, overrides)
            raw = plain(config)
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
    container: Any = OmegaConf.to_container(values, resolve=True, throw_on_missing=True)
    return dict(container)


def _compose(config_name: str, overrides: Sequence[str]) -> DictConfig:
    return compose(config_name=config_name, overrides=list(overrides), return_hydra_config=True)


def _parse(overrides: Sequence[str]) -> list[Override]:
    return OverridesParser.create().parse_overrides(list(overrides))


def _groups() -> set[str]:
    return set(GlobalHydra.instance().config_loader().list_groups("")) - {"hydra"}


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
        except _COMPOSE_ERRORS:
            problems.append(Problem(override, "key=value or group=choice", f"'{override}'"))
            continue
        if item.is_sweep_override():
            problems.append(_sweep_without_m(item))
        elif item.key_or_group not in groups:
            values.append(override)
        elif wrong := _wrong_choice(item):
            problems.append(wrong)
        else:
            kept.append(override)
    base = _compose(config_name, kept)
    for override in values:
        try:
            plain(_compose(config_name, [*kept, override]))
            kept.append(override)
        except _COMPOSE_ERRORS as error:
            problems.append(_wrong_key(override, base, groups, error))
    return problems, kept


def _sweep_without_m(item: Override) -> Problem:
    key = item.key_or_group
    return Problem(key, "one value", item.get_value_string(), "add -m to run a sweep over them")


def _wrong_choice(item: Override) -> Problem | None:
    group, choice = item.key_or_group, item.value()
    options = GlobalHydra.instance().config_loader().get_group_options(group)
    if item.is_delete() or choice in options:
        return None
    return Problem(
        group, "a choice of this group", f"'{choice}'", did_you_mean(str(choice), options)
    )


def _wrong_key(override: str, base: DictConfig, groups: set[str], error: Exception) -> Problem:
    (item,) = _parse([override])
    key = item.key_or_group
    known = list(_keys(OmegaConf.to_container(base, resolve=False)))
    if key in known or item.is_add():
        return Problem(key, "a value that composes", _one_line(error))
    return Problem(key, "a known key", f"'{override}'", _nearest(key, known, groups))


def _nearest(key: str, known: Sequence[str], groups: set[str]) -> str:
    """The key that was meant: a sibling in the same section, else any key, else the sections."""
    section, _, last = key.rpartition(".")
    if section in groups and (owners := _options_with(section, last)):
        return f"{last} belongs to {' and '.join(f'{section}={name}' for name in owners)}"
    siblings = [name for name in known if name.rpartition(".")[0] == section]
    if section and siblings:
        close = get_close_matches(key, siblings, n=1)
        return f"did you mean '{close[0]}'?" if close else f"valid: {', '.join(sorted(siblings))}"
    close = get_close_matches(key, known, n=1)
    return f"did you mean '{close[0]}'?" if close else f"sections: {', '.join(sorted(groups))}"


def _options_with(group: str, key: str) -> list[str]:
    """The shipped choices of a group that have this key, when the chosen one does not."""
    shipped = sorted(path.stem for path in (CONF_DIR / group).glob("*.yaml"))
    return [name for name in shipped if key in (shipped_option(group, name) or {})]


def _keys(values: Any, prefix: str = "") -> Iterator[str]:
    """Every dotted key, hydra's left out."""
    for key, value in values.items():
        if prefix or key != "hydra":
            yield f"{prefix}{key}"
            if isinstance(value, dict):
                yield from _keys(value, f"{prefix}{key}.")


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
