"""Hydra's config loader with the guard in it: every config of a request is composed here.

A single run, a help page, a sweep and each of its jobs, in this process or a launcher's: all get
their config from a loader's `load_configuration`, so what is checked and settled here holds for
each of them. Nothing has been imported, opened or written when it raises.
"""

from __future__ import annotations

import os
from copy import copy, deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.object_type import ObjectType
from hydra.errors import ConfigCompositionException, HydraException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from kvpipe.errors import ConfigError, Problem
from kvpipe.request.bounded_yaml import check_yaml
from kvpipe.request.confdir import CONF_DIR
from kvpipe.request.guard import (
    IN_FILES,
    SETTLED,
    chosen_in_a_file,
    leaves,
    named_code,
    refused_folders,
    refused_override,
)
from kvpipe.request.hydra_private import ConfigLoaderImpl, ConfigRepository
from kvpipe.request.own_values import own_values_only

# Where Hydra's settings may be read from: ours, Hydra's own, and its installed plugins.
_TRUSTED = (f"file://{CONF_DIR}", "pkg://hydra.conf", "structured://")
_TRUSTED_UNDER = "pkg://hydra_plugins."
MAX_LOADS = 800  # of files, one composition; an ordinary one asks some 130 times


class GuardedLoader(ConfigLoaderImpl):
    """Composes what a request may say; ConfigError, with every problem of its kind, otherwise."""

    def __init__(self, config_search_path: ConfigSearchPath) -> None:
        self.config_search_path = config_search_path
        self.repository = BoundedRepository(config_search_path)
        self._said: list[Problem] = []

    def load_configuration(self, *args: Any, **kwargs: Any) -> DictConfig:
        try:
            with own_values_only():
                config: DictConfig = super().load_configuration(*args, **kwargs)
        except (HydraException, OmegaConfBaseException, ConfigError):
            raise
        except RecursionError:
            raise _endless("lists of defaults or values that end", "nesting without end") from None
        except Exception as error:  # Hydra's parts raise anything at all on odd requests
            line = " ".join(f"{type(error).__name__}: {error}".split())
            raise ConfigCompositionException(line) from error
        hydra = config.hydra
        said = {line.lstrip("+~").partition("=")[0] for line in hydra.overrides.hydra}
        plain = OmegaConf.to_container(hydra, resolve=False)
        if problems := chosen_in_a_file(hydra.runtime.choices, said) + named_code(plain):
            raise ConfigError(problems)
        with open_dict(hydra):
            for key, value in SETTLED.items():
                OmegaConf.update(hydra, key, value, merge=False)
        return config

    def _process_config_searchpath(
        self, config_name: Any, parsed_overrides: Any, repo: Any
    ) -> None:
        """The first step of composing: the folders to search, which Hydra would import."""
        repo.load_config = _bounded_loads(repo.load_config)
        problems = [p for item in parsed_overrides if (p := refused_override(item))]
        for item in parsed_overrides:
            if item.key_or_group == "hydra.searchpath":
                problems += refused_folders("hydra.searchpath", item.value())
        primary = repo.load_config(config_path=config_name) if config_name else None
        if primary is not None and primary.path not in _TRUSTED:
            problems += _of_hydra(primary, primary.path)
        if problems:
            raise ConfigError(problems)
        super()._process_config_searchpath(config_name, parsed_overrides, repo)

    def _compose_config_from_defaults_list(self, defaults: Any, repo: Any) -> DictConfig:
        self._said = []
        config: DictConfig = super()._compose_config_from_defaults_list(defaults, repo)
        if self._said:
            raise ConfigError(dict.fromkeys(self._said))
        return config

    def _load_single_config(self, default: Any, repo: Any) -> Any:
        shared = repo.load_config(default.config_path).config
        loaded = super()._load_single_config(default, repo)
        path = default.config_path
        expected = (
            path == "hydra/config"
            or default.primary
            or default.package == os.path.dirname(path).replace("/", ".")
            or path == "hydra/output/default"
        )
        if loaded.config is shared:  # Hydra merges a copy of what has a package, else the file's
            loaded = replace(loaded, config=deepcopy(shared))
        trusted = loaded.path in _TRUSTED or loaded.path.startswith(_TRUSTED_UNDER)
        if not (trusted and expected):
            self._said += _of_hydra(loaded, f"{loaded.path}/{path}.yaml")
        return loaded


class BoundedRepository(ConfigRepository):
    """Config files of the search path, each within its own folder and within bounds.

    Looking for mistakes composes a request several times, and a sweep once a job. What ships is
    read once a process, the rest once a request: what was measured is what is composed, whoever
    writes to the file meanwhile. (`GuardedLoader._load_single_config` gives out copies.)
    """

    _shipped: ClassVar[dict[tuple[str, str], Any]] = {}

    def __init__(self, config_search_path: ConfigSearchPath) -> None:
        super().__init__(config_search_path)
        self._theirs: dict[tuple[str, str], Any] = {}

    def __deepcopy__(self, memo: Any) -> BoundedRepository:
        """Hydra copies a repository to give the copy sources of its own, and changes nothing else
        of it."""
        other = copy(self)
        other.sources = list(self.sources)
        return other

    def load_config(self, config_path: str) -> Any:
        parts = config_path.split("/")
        if ".." in parts or os.path.isabs(config_path):
            raise ConfigError(
                Problem(config_path, "a config inside the folders that are searched", "a way out")
            )
        source = self._find_object_source(config_path, ObjectType.CONFIG)
        if source is None:
            return super().load_config(config_path)
        where = source.full_path()
        read = self._shipped if where in _TRUSTED else self._theirs
        if (where, config_path) not in read:
            if source.scheme() == "file" and where not in _TRUSTED:
                check_yaml(Path(source.path, source._normalize_file_name(config_path)))
            read[where, config_path] = super().load_config(config_path)
        loaded = read[where, config_path]
        if not OmegaConf.is_dict(loaded.config):
            raise ConfigError(Problem(config_path, "a config of settings", "another kind of YAML"))
        return loaded


def _bounded_loads(load: Any) -> Any:
    """Hydra asks for a file each time that a list of defaults names it: twenty files that each name
    the next one twice are a million."""
    asked = 0

    def bounded(config_path: str) -> Any:
        nonlocal asked
        asked += 1
        if asked > MAX_LOADS:
            got = f"more than {MAX_LOADS:,} files named by one another, the last '{config_path}'"
            raise _endless("lists of defaults that end", got)
        return load(config_path=config_path)

    return bounded


def _endless(expected: str, got: str) -> ConfigError:
    return ConfigError(Problem("configuration", expected, got))


def _of_hydra(loaded: Any, where: str) -> list[Problem]:
    """What a file says under `hydra`."""
    try:
        said = OmegaConf.to_container(loaded.config, resolve=False)
    except OmegaConfBaseException as error:
        return [Problem(where, "a config of settings", " ".join(str(error).split()))]
    if not isinstance(said, dict) or "hydra" not in said:
        return []
    return [
        Problem(key, IN_FILES, f"{value!r} in {where.removeprefix('file://')}")
        for key, value in leaves(said["hydra"], "hydra")
    ]
