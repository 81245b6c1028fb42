"""One probe, two views: what an engine stores and what transformers keeps of the same tiny models
are the same numbers, but for the differences that are written down here."""

from __future__ import annotations

import json
from typing import Any

import pytest
from test_equality import tiers
from tiny_models import FAMILIES, config_of

from kvpipe.integrations.transformers import layers_of
from kvpipe.models.base import CacheGeometry
from kvpipe.models.config_file import parse_config
from kvpipe.models.probe.as_engine import probe
from kvpipe.specs.base import CacheLayer

WINDOWS = ("sliding_window", "attention_chunk_size")
# Falcon-40B repeats its K/V heads before it caches them: 2 heads in an engine, 4 in transformers.
REPEATED = {"falcon": 2}


def as_stored(cache: CacheGeometry) -> dict[str, Any]:
    """An engine's cache of one layer, in the words of the spec's own fields."""
    fields = dict(cache.fields)
    if cache.spec == "mamba":
        return {state["name"]: list(state["shape"]) for state in fields["states"]}
    fields.setdefault("num_kv_heads", 1)
    fields.setdefault("head_size_v", 0 if cache.spec == "mla" else fields["head_size"])
    return {"kind": cache.spec, "shares": bool(cache.shares_with), **fields}


def as_kept(layer: CacheLayer, engine: CacheGeometry) -> dict[str, Any]:
    """transformers' cache of the same layer, in the same words. The one difference of every model:
    an engine keeps one column less of a convolution."""
    spec: Any = layer.spec
    if engine.spec == "mamba":
        return {
            s.name: [*s.shape[:-1], s.shape[-1] - 1] if s.name.startswith("conv") else [*s.shape]
            for s in spec.states
        }
    windows = {key: value for key in WINDOWS if (value := getattr(spec, key, None))}
    return {
        "kind": spec.kind,
        "shares": bool(layer.shares_with),
        "num_kv_heads": getattr(spec, "num_kv_heads", 1),
        "head_size": spec.head_size,
        "head_size_v": 0 if spec.kind == "mla" else spec.head_size_v,
        **windows,
    }


@pytest.mark.parametrize("family", tiers(FAMILIES, ("deepseek_v3", "jamba", "gemma3n", "whisper")))
def test_an_engine_and_transformers_keep_the_same_numbers(family: str) -> None:
    config = config_of(family)
    raw = {**config.to_dict(), "model_type": config.model_type}
    engine = probe(parse_config(json.dumps(raw), "config.json", family, None)).caches
    own = layers_of(config)
    assert len(engine) == len(own)
    for stored, kept in zip(engine, own, strict=True):
        assert stored.name.rpartition("layers.")[2] == kept.name.rpartition("layers.")[2]
        expected = as_kept(kept, stored)
        if family in REPEATED and "num_kv_heads" in expected:
            assert expected["num_kv_heads"] != REPEATED[family]
            expected["num_kv_heads"] = REPEATED[family]
        assert as_stored(stored) == expected
