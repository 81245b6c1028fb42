"""What transformers' own cache held for a tiny model of each type (tests/facts/README.md)."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

from kvpipe.models.base import CacheGeometry, ModelGeometry

FILE = Path(__file__).parent / "facts" / "transformers_types.json.gz"
TIES = FILE.with_name("transformers_ties.json.gz")
TOKENS = (9, 10, 64)
FLOAT32 = 4


@cache
def records() -> dict[str, dict[str, Any]]:
    loaded: dict[str, dict[str, Any]] = json.loads(gzip.decompress(FILE.read_bytes()))
    return loaded


@cache
def ties() -> dict[str, list[tuple[bool | None, bool | None, dict[str, int]]]]:
    """Type -> tie_word_embeddings of the file, of its text part, and parameters by part."""
    loaded: dict[str, list[Any]] = json.loads(gzip.decompress(TIES.read_bytes()))
    return {name: [tuple(row) for row in rows] for name, rows in loaded.items()}


def differences(model: ModelGeometry, record: Mapping[str, Any]) -> list[str]:
    """Where the plan's bytes are not those of the measured cache; windows keep W - 1 tokens."""
    said = []
    for tokens, own, cross in zip(TOKENS, record["self"], record["cross"], strict=True):
        planned = planned_bytes(model, tokens)
        if own not in planned:
            said.append(f"{tokens} tokens: planned {sorted(planned)}, own cache {own}")
        crossed = sum(_one(c, record["encoded"]) for c in model.caches if c.spec == "cross")
        if crossed != cross:
            said.append(f"cross attention: planned {crossed}, own cache {cross}")
    return said


def planned_bytes(model: ModelGeometry, tokens: int) -> set[int]:
    """Two answers: a convolution keeps kernel - 1 columns in an engine, kernel in transformers."""
    own = [c for c in model.caches if c.shares_with is None and c.spec != "cross"]
    kept = sum(_one(cache, tokens) for cache in own)
    columns = sum(_newest_columns(cache) for cache in own)
    return {kept, kept + columns}


def _one(cache: CacheGeometry, tokens: int) -> int:
    fields = cache.fields
    if cache.spec == "mamba":
        return sum(prod(state["shape"]) for state in fields["states"]) * FLOAT32
    window = fields.get("sliding_window") or fields.get("attention_chunk_size")
    held = min(tokens, window - 1) if window else tokens
    if cache.name.endswith(".state_cache"):
        return _in_no_row(fields, tokens) * FLOAT32
    if cache.spec in ("mla", "sliding_mla"):
        return held // fields.get("tokens_per_state", 1) * _numbers(fields) * FLOAT32
    held = 0 if cache.spec == "encoder_only" else held
    widths = fields["head_size"] + fields.get("head_size_v", fields["head_size"])
    return int(held * fields["num_kv_heads"] * widths * FLOAT32)


def _in_no_row(fields: Mapping[str, Any], tokens: int) -> int:
    """Numbers of what is not compressed yet, where an engine keeps a window: projections of tokens
    whose group is not full; where groups overlap, half of those of the last full one."""
    groups = 2 if fields["sliding_window"] == 8 else 1
    rate, size = fields["sliding_window"] // groups, int(fields["head_size"])
    overlap = rate * size // 2 if groups == 2 and tokens >= rate else 0
    return tokens % rate * size + overlap


def _numbers(fields: Mapping[str, Any]) -> int:
    """Of a row. An indexer's has a float32 scale for each 128 bytes, which transformers has not."""
    size = int(fields["head_size"])
    return size - size // 132 * 4 if fields.get("dtype") == "uint8" else size


def _newest_columns(cache: CacheGeometry) -> int:
    """One column of each convolution."""
    states = cache.fields.get("states", ())
    return sum(prod(s["shape"][:-1]) * FLOAT32 for s in states if s["name"].startswith("conv"))
