"""Where the shipped YAML lies: beside the package in a checkout, inside it in a wheel."""

from __future__ import annotations

from pathlib import Path
from typing import Any

_HERE = Path(__file__).resolve().parent
CONF_DIR = next(d for d in (_HERE / "conf", _HERE.parent / "conf") if (d / "config.yaml").is_file())


def shipped_option(group: str, name: str) -> dict[str, Any]:
    """The settings of conf/<group>/<name>.yaml: what `auto` gives the plugin that it chooses."""
    import yaml

    text = (CONF_DIR / group / f"{name}.yaml").read_text(encoding="utf-8")
    option: dict[str, Any] = yaml.safe_load(text)
    return option
