"""What transformers' classes supply where a file leaves out keys of a tower.

    python tools/tower_defaults.py      # writes kvpipe/models/towers/class_defaults.json

types: model_type of a tower -> its defaults. wholes: model_type -> section -> the type of the tower
there ("": the file must name it). absent: type -> sections that a file may leave out. parts: type
of a tower -> section inside it -> its type. No whole gives a tower whose type the file names other
values than the tower's class does.
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import transformers
from class_defaults import defaults_of, is_plain
from transformers.models.auto.configuration_auto import CONFIG_MAPPING, AutoConfig

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from kvpipe.models.towers.table import JOINTS  # noqa: E402

OUT = ROOT / "kvpipe" / "models" / "towers" / "class_defaults.json"


def towers_of(config: Any) -> dict[str, Any]:
    """Sections that are no text; one that the class leaves out has its own class's values."""
    text = config.get_text_config(decoder=True)
    parts = {key: getattr(config, key, None) for key in sorted(config.sub_configs)}
    found = {k: part for k, part in parts.items() if part is not None and part is not text}
    return found | {
        key: config.sub_configs[key]()
        for key, part in parts.items()
        if part is None and hasattr(config.sub_configs[key], "__dataclass_fields__")
    }


def lists_of(config: Any) -> dict[str, Any]:
    """Numbers of layers that a class makes anew for each file."""
    values = type(config)().to_dict()
    return {k: v for k, v in values.items() if isinstance(v, list) and is_plain(v) and v}


def describe(config: Any, types: dict[str, Any], parts: dict[str, dict[str, str]]) -> None:
    """A tower's defaults, and those of sections inside it."""
    types[config.model_type] = {**lists_of(config), **defaults_of(type(config))}
    for key in sorted(config.sub_configs):
        if (inner := getattr(config, key, None)) is not None:
            parts.setdefault(config.model_type, {})[key] = inner.model_type
            describe(inner, types, parts)


def main() -> None:
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    types: dict[str, Any] = {}
    wholes: dict[str, Any] = {}
    absent: dict[str, list[str]] = {}
    parts: dict[str, dict[str, str]] = {}
    for kind in sorted(JOINTS):
        config = CONFIG_MAPPING[kind]()
        for key, inner in sorted(towers_of(config).items()):
            inner.model_type = inner.model_type or f"{kind}.{key}"
            describe(inner, types, parts)
            fixed = type(config).sub_configs[key] is not AutoConfig
            wholes.setdefault(kind, {})[key] = inner.model_type if fixed else ""
            if getattr(config, key, None) is None:
                absent.setdefault(kind, []).append(key)
    table = {"types": dict(sorted(types.items())), "wholes": wholes, "absent": absent}
    table["parts"] = parts
    OUT.write_text(json.dumps(table, separators=(",", ":")).replace('},"', '},\n"') + "\n")
    print(len(types), len(wholes), OUT.stat().st_size)


if __name__ == "__main__":
    main()
