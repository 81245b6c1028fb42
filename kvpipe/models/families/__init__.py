"""From a config.json to caches and weights: one module a group of families, each with `FAMILIES`.

A family is found by the file's `model_type`; a module is found by being here. A third party's is
an entry point of the group `kvpipe.families`: its name is the model_type, what it loads a `Family`.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import cache
from importlib import import_module
from pathlib import Path

from kvpipe.errors import ConfigError, Problem
from kvpipe.files.entry_points import entry_points
from kvpipe.models.families.base import Family
from kvpipe.models.families.classes import facts_of
from kvpipe.registry import load_entry_point

GROUP = "kvpipe.families"
_NOT_FAMILIES = {
    "__init__",
    "base",
    "blocks",
    "by_keys",
    "caches",
    "classes",
    "linear_weights",
    "refused",
    "ties",
    "weights",
}


@cache
def families() -> dict[str, Family]:
    """Every readable model_type. Two modules that claim one are our mistake."""
    found: dict[str, Family] = {}
    for path in sorted(Path(__file__).parent.glob("*.py")):
        if path.stem not in _NOT_FAMILIES:
            table: dict[str, Family] = import_module(f"{__name__}.{path.stem}").FAMILIES
            assert not found.keys() & table.keys(), path.stem
            found.update(table)
    found.update(_theirs(found.keys()))
    return {name: row.of_class(facts_of(row.like or name)) for name, row in found.items()}


def _theirs(ours: Collection[str]) -> dict[str, Family]:
    """ConfigError where a package claims a type that is read here, or brings no Family."""
    found: dict[str, Family] = {}
    for point in entry_points(group=GROUP):
        if point.name in ours or point.name in found:
            raise _refused("one family a model_type", f"'{point.name}' twice ({point.value})")
        family = load_entry_point("model.config", point)
        if not isinstance(family, Family):
            raise _refused(f"a Family of '{point.name}'", f"{point.value}, {type(family).__name__}")
        found[point.name] = family
    return found


def _refused(expected: str, got: str) -> ConfigError:
    return ConfigError(Problem("model.config", expected, got))
