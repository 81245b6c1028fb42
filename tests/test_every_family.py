"""A reader of config.json is held to something that it did not write: or it is red here."""

from __future__ import annotations

import gzip
import json
from functools import partial
from typing import Any

import engine_classes
from model_facts import FACTS, models
from test_probe import VARIATIONS
from test_remote_families import PUBLISHED, SEARCHED

from kvpipe.models.config_file import config_file
from kvpipe.models.families import families
from kvpipe.models.families.base import Family


def proven() -> set[str]:
    """Model types with a recorded model, with a cache that transformers filled, with a class of
    vLLM's that says what it stores, with a class of transformers whose layers and parameters the
    reader's are compared with, or with published keys whose heads were written down by hand."""
    recorded = {entry["model_type"] for entry in models().values()}
    filled = {kind for path in FACTS.glob("*_types.json.gz") for kind in _keys(path)}
    asked = engine_classes.records()
    classes = {config_file(asked[name]["config"], name).model_type for name in asked}
    published = {SEARCHED, "florence2_text", *(kind for kind, _, _ in PUBLISHED)}
    return recorded | filled | classes | set(VARIATIONS) | published


def _keys(path: Any) -> set[str]:
    """A recorded type, and the type of its text part."""
    types = json.loads(gzip.decompress(path.read_bytes()))
    return {*types, *(str(record.get("text_type")) for record in types.values())}


def reading(family: Family) -> tuple[Any, ...]:
    """The functions that read it: the same for two names of one architecture."""
    weights: Any = family.weights
    if isinstance(weights, partial):
        weights = (weights.func, weights.args, tuple(sorted(weights.keywords.items(), key=str)))
    return family.caches, weights, tuple(family.aliases.items())


def unproven(table: dict[str, Family]) -> set[str]:
    held = proven()
    ways = {reading(table[name]) for name in held & set(table)}
    return {name for name, family in table.items() if name not in held} - {
        name for name, family in table.items() if reading(family) in ways
    }


def test_every_family_is_held_to_facts() -> None:
    assert unproven(families()) == set(), "no recorded model, and no class that it is compared with"


def test_a_family_without_facts_is_noticed() -> None:
    invented = Family(caches=lambda config: [], weights=lambda config: [], defaults={})
    assert unproven({**families(), "invented": invented}) == {"invented"}
