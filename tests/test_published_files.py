"""Real config.json files, as published: parameters and rows are those of transformers' own class.

The class was built on the meta device at full size and read nine tokens there; of engines that
store otherwise (Falcon, DeepSeek-V4) the rows are not compared.
"""

from __future__ import annotations

import gzip
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from kvpipe.models.base import CacheGeometry
from kvpipe.models.config_file import parse_config
from kvpipe.models.reading import read_geometry

FILE = Path(__file__).parent / "facts" / "published_files.json.gz"


@cache
def published() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(gzip.decompress(FILE.read_bytes()))
    return found


# The smallest of each type, where it is no giant: the others only in the full tier.
GIANT = 40_000_000_000
SMALLEST = {
    min(names, key=lambda name: published()[name]["parameters"])
    for kind in {name.split()[0] for name in published()}
    if (names := [name for name in published() if name.split()[0] == kind])
}
NAMES = [
    name
    if name in SMALLEST and published()[name]["parameters"] < GIANT
    else pytest.param(name, marks=pytest.mark.full)
    for name in sorted(published())
]


def numbers(cache: CacheGeometry) -> int:
    """Of one token: K and V of every head, or one latent row."""
    fields = cache.fields
    if "num_kv_heads" not in fields:
        return int(fields["head_size"])
    width = fields["head_size"] + fields.get("head_size_v", fields["head_size"])
    return int(fields["num_kv_heads"] * width)


@pytest.mark.parametrize("name", NAMES)
def test_a_published_file_is_read_as_its_class_reads_it(name: str) -> None:
    known = published()[name]
    model = read_geometry(parse_config(json.dumps(known["config"]), "config.json", name, None))
    assert model.parameter_count == known["parameters"]
    kept = ("full", "sliding", "chunked", "mla", "sliding_mla")
    own = [c for c in model.caches if c.spec in kept and not c.name.endswith(".indexer")]
    stored = {c.layer: numbers(c) for c in reversed(own) if c.shares_with is None}
    assert {int(layer): stored[int(layer)] for layer in known["rows"]} == {
        int(layer): rows for layer, rows in known["rows"].items()
    }


def test_the_files_are_of_many_types() -> None:
    assert len(published()) >= 57
    assert len(SMALLEST) >= 30
