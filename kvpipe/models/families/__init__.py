"""From a config.json to caches and weights: one module a group of families, each with `FAMILIES`.

A family is found by the file's `model_type`; a module is found by being here.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pathlib import Path

from kvpipe.models.families.base import Family
from kvpipe.models.families.classes import facts_of

_NOT_FAMILIES = {
    "__init__",
    "base",
    "blocks",
    "by_keys",
    "caches",
    "classes",
    "linear_weights",
    "refused",
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
    return {name: row.of_class(facts_of(row.like or name)) for name, row in found.items()}
