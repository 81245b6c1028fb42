"""Parameters of a file's towers, where its class is known; what it leaves out, its class supplies.

`class_defaults.json` is written by tools/tower_defaults.py from transformers' classes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from kvpipe.models._values import Values
from kvpipe.models.config_file import ConfigFile
from kvpipe.models.families.base import Config
from kvpipe.models.families.classes import facts_of
from kvpipe.models.towers.audio import TOWERS as HEARING
from kvpipe.models.towers.joints import JOINTS
from kvpipe.models.towers.vision import TOWERS as SEEING
from kvpipe.models.weight import Weight

_TOWERS = {**SEEING, **HEARING}
_PIECES = 5040  # divisible by every number of ranks that people use


@cache
def _facts() -> Mapping[str, Any]:
    """types: model_type of a tower -> its defaults. wholes: type -> section -> the tower's
    type ("": the file must name it)."""
    table = json.loads(Path(__file__).with_name("class_defaults.json").read_text("utf-8"))
    assert isinstance(table, dict)
    return table


def tower_parameters(file: ConfigFile, text: Config) -> int | None:
    """Of everything beside the text part; None where that is not known. ConfigError where a key of
    a tower is wrong."""
    whole = _whole(file)
    kind = str(whole.get("model_type"))
    sections = _facts()["wholes"].get(kind, {})
    if kind not in JOINTS or any(not isinstance(whole.get(key), Mapping) for key in sections):
        return None
    said = Config(whole, facts_of(kind).defaults)
    towers = [_tower(whole, key, name) for key, name in sections.items()]
    if not towers or any(name not in _TOWERS for name, _ in towers):
        return None
    return sum(_TOWERS[name](values) for name, values in towers) + JOINTS[kind](
        said, towers[0][1], text
    )


def as_weight(parameters: int) -> Weight:
    """All of it as one tensor on the first stage, which no quantiser touches. Engines divide most
    of a tower over tensor-parallel ranks."""
    return Weight(name="towers", shape=(parameters, 1), split=0, parts=_PIECES)


def _whole(file: ConfigFile) -> Mapping[str, Any]:
    """What holds the towers: the innermost whole, or the file where it is flat."""
    return file.wholes[-1] if file.is_nested else file.raw


def _tower(whole: Mapping[str, Any], key: str, kind: str) -> tuple[str, Values]:
    """The tower's type, and its values over those of its class."""
    written: Mapping[str, Any] = whole[key]
    name = written.get("model_type", kind)
    name = kind if name == whole.get("model_type") else str(name)
    config = Config(written, _facts()["types"].get(name, {}))
    config.where = f"{key}."
    return name, config
