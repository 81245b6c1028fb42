"""Where the shipped YAML lies (beside the package in a checkout, inside it in a wheel), and where a
saved run's."""

from __future__ import annotations

import marshal
from functools import lru_cache
from pathlib import Path
from typing import Any

from kvpipe.errors import ConfigError, Problem

CONFIG_NAME = "config"  # of the primary file
_PACKAGE = Path(__file__).resolve().parents[1]
_PLACES = (_PACKAGE / "conf", _PACKAGE.parent / "conf")
CONF_DIR = next(folder for folder in _PLACES if (folder / "config.yaml").is_file())
NO_CARDS = ("auto", "cpu")  # options of device that are none


def shipped_names(group: str) -> list[str]:
    """The option files of a group, in order."""
    return sorted(path.stem for path in (CONF_DIR / group).glob("*.yaml"))


def shipped_cards() -> list[str]:
    return [name for name in shipped_names("device") if name not in NO_CARDS]


def shipped_option(group: str, name: str) -> dict[str, Any]:
    """The settings of conf/<group>/<name>.yaml: what `auto` gives the plugin that it chooses."""
    option: dict[str, Any] = marshal.loads(_shipped(group, name))
    return option


@lru_cache(maxsize=512)
def _shipped(group: str, name: str) -> bytes:
    """Read once: everybody gets a copy of his own, which he may change."""
    from kvpipe.request.plain_yaml import load_yaml

    text = (CONF_DIR / group / f"{name}.yaml").read_text(encoding="utf-8")
    return marshal.dumps(load_yaml(text))


def saved_folder(config_path: str) -> Path:
    """The folder itself, or that of the config inside the folder of a run."""
    try:
        folder = Path(config_path).resolve()
        folder = folder / ".hydra" if (folder / ".hydra").is_dir() else folder
        if folder.is_dir():
            return folder
    except (OSError, ValueError, RuntimeError):  # too long, a null byte, a link to itself
        pass
    raise ConfigError(Problem("--config-path", "a folder", f"'{config_path}'"))
