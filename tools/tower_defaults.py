"""What transformers' classes supply where a file leaves out keys of a tower.

    python tools/tower_defaults.py      # writes kvpipe/models/towers/class_defaults.json

types: model_type of a tower -> its defaults. wholes: model_type -> section -> the type of the tower
there ("": the file must name it). No whole gives a tower whose type the file names other values
than the tower's class does.
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

from kvpipe.models.towers.joints import JOINTS  # noqa: E402

OUT = ROOT / "kvpipe" / "models" / "towers" / "class_defaults.json"


def tower_keys(config: Any) -> list[str]:
    """Sections that are no text."""
    text = config.get_text_config(decoder=True)
    parts = {key: getattr(config, key, None) for key in config.sub_configs}
    return [key for key, part in sorted(parts.items()) if part is not None and part is not text]


def lists_of(config: Any) -> dict[str, Any]:
    """Numbers of layers that a class makes anew for each file."""
    values = type(config)().to_dict()
    return {k: v for k, v in values.items() if isinstance(v, list) and is_plain(v) and v}


def main() -> None:
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    types: dict[str, Any] = {}
    wholes: dict[str, Any] = {}
    for kind in sorted(JOINTS):
        config = CONFIG_MAPPING[kind]()
        for key in tower_keys(config):
            inner = getattr(config, key)
            types[inner.model_type] = {**lists_of(inner), **defaults_of(type(inner))}
            fixed = type(config).sub_configs[key] is not AutoConfig
            wholes.setdefault(kind, {})[key] = inner.model_type if fixed else ""
    table = {"types": dict(sorted(types.items())), "wholes": wholes}
    OUT.write_text(json.dumps(table, separators=(",", ":")).replace('},"', '},\n"') + "\n")
    print(len(types), len(wholes), OUT.stat().st_size)


if __name__ == "__main__":
    main()
