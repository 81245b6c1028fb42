"""Parameters of a file's towers, where its class is known; what it leaves out, its class supplies.

`class_defaults.json` is written by tools/tower_defaults.py from transformers' classes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from kvpipe.models.config_file import ConfigFile
from kvpipe.models.families.base import Config
from kvpipe.models.families.classes import facts_of
from kvpipe.models.towers.table import GIVEN, JOINTS, SUPPLIED, TOWERS, UNCOUNTED
from kvpipe.models.weight import Weight

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
    whole = _supplied(_whole(file))
    kind = str(whole.get("model_type"))
    if kind not in JOINTS or not _has_all(whole, kind):
        return None
    towers = {
        k: _tower(whole, k, name) for k, name in _sections(kind).items() if whole.get(k) is not None
    }
    if any(name not in TOWERS for name, _ in towers.values()):
        return None
    said = _with_sections(whole, kind, {key: values for key, (_, values) in towers.items()})
    if kind in GIVEN:
        for key, values in GIVEN[kind](said, text).items():
            towers[key] = (towers[key][0], towers[key][1].having(**values))
        said = _with_sections(whole, kind, {key: values for key, (_, values) in towers.items()})
    first = next((values for _, values in towers.values()), said)
    counts = [TOWERS[name](values) for name, values in towers.values()]
    known = [count for count in counts if count is not None]
    return None if len(known) < len(counts) else sum(known) + JOINTS[kind](said, first, text)


def _with_sections(whole: Mapping[str, Any], kind: str, sections: Mapping[str, Config]) -> Config:
    """The whole, its sections with what their classes supply."""
    filled = {key: {**values.defaults, **values.raw} for key, values in sections.items()}
    return Config({**whole, **filled}, facts_of(kind).defaults)


def _sections(kind: str) -> Mapping[str, str]:
    found = _facts()["wholes"].get(kind, {})
    assert isinstance(found, dict)
    return found


def _has_all(whole: Mapping[str, Any], kind: str) -> bool:
    """Whether the file has every section, but for those that its class leaves out, too, and none
    that is not counted."""
    absent = _facts()["absent"].get(kind, ())
    if any(whole.get(key) is not None for key in UNCOUNTED.get(kind, ())):
        return False
    return all(
        isinstance(whole.get(key), Mapping) or (key in absent and whole.get(key) is None)
        for key in _sections(kind)
    )


def as_weight(parameters: int) -> Weight:
    """All of it as one tensor on the first stage, which no quantiser touches. Engines divide most
    of a tower over tensor-parallel ranks."""
    return Weight(name="towers", shape=(parameters, 1), split=0, parts=_PIECES)


def _whole(file: ConfigFile) -> Mapping[str, Any]:
    """What holds the towers: the innermost whole, or the file where it is flat."""
    return file.wholes[-1] if file.is_nested else file.raw


def _supplied(whole: Mapping[str, Any]) -> Mapping[str, Any]:
    """The whole, with sections that its class builds where the file has none."""
    sections = SUPPLIED.get(str(whole.get("model_type")), {})
    return {**whole, **{k: v for k, v in sections.items() if whole.get(k) is None}}


def _tower(whole: Mapping[str, Any], key: str, kind: str) -> tuple[str, Config]:
    """The tower's type, and its values over those of its class."""
    written: Mapping[str, Any] = whole[key]
    name = written.get("model_type") or kind
    name = kind if name == whole.get("model_type") else str(name)
    config = Config(_with_parts(written, name), _facts()["types"].get(name, {}))
    config.where = f"{key}."
    return name, config


def _with_parts(written: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """The section, and in the sections inside it what their classes supply."""
    filled = {}
    for key, kind in _facts()["parts"].get(name, {}).items():
        inside = written.get(key) or {}
        if isinstance(inside, Mapping):
            filled[key] = {**_facts()["types"].get(kind, {}), **_with_parts(inside, kind)}
    return {**written, **filled}
