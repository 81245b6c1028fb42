"""The shipped model presets, and those of them that differ in kind: one a set of kinds of caches.

Most presets are the same four kinds of cache in other sizes. What walks layouts, placements or
stages takes one of each shape on every commit, and all of them in the full tier.
"""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from kvpipe.request.confdir import CONF_DIR
from kvpipe.request.plain_yaml import load_yaml

PRESETS = sorted(p.stem for p in (CONF_DIR / "model").glob("*.yaml") if p.stem != "hf")


def _shape(preset: str) -> str:
    """Kinds of caches with the names of their numbers, and how layers alternate."""
    text = (CONF_DIR / "model" / f"{preset}.yaml").read_text(encoding="utf-8")
    layers: dict[str, Any] = load_yaml(text[text.index("\nlayers:") :])["layers"]
    kinds = sorted(
        str(sorted((cache.get("spec", ""), *cache) for cache in caches.values()))
        for caches in layers["kinds"].values()
    )
    return yaml.safe_dump([kinds, len(layers["pattern"]) > 1])


DISTINCT = sorted({_shape(preset): preset for preset in reversed(PRESETS)}.values())
SOME_AND_ALL = [
    preset if preset in DISTINCT else pytest.param(preset, marks=pytest.mark.full)
    for preset in PRESETS
]
