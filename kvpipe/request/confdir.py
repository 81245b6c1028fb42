"""Where the shipped YAML lies: beside the package in a checkout, inside it in a wheel."""

from __future__ import annotations

from pathlib import Path
from typing import Any

CONFIG_NAME = "config"  # of the primary file
_PACKAGE = Path(__file__).resolve().parents[1]
_PLACES = (_PACKAGE / "conf", _PACKAGE.parent / "conf")
CONF_DIR = next(folder for folder in _PLACES if (folder / "config.yaml").is_file())


def shipped_option(group: str, name: str) -> dict[str, Any]:
    """The settings of conf/<group>/<name>.yaml: what `auto` gives the plugin that it chooses."""
    import yaml

    text = (CONF_DIR / group / f"{name}.yaml").read_text(encoding="utf-8")
    option: dict[str, Any] = yaml.safe_load(text)
    return option
