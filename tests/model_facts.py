"""The recorded models, and their layers one by one (see tests/facts/README.md)."""

from __future__ import annotations

import gzip
import json
from functools import cache
from pathlib import Path
from typing import Any

from kvpipe.models.base import ModelGeometry

FACTS = Path(__file__).parent / "facts"


def _load(name: str) -> Any:
    return json.loads(gzip.decompress((FACTS / name).read_bytes()))


@cache
def models() -> dict[str, dict[str, Any]]:
    """Entry of each model by its full name; "(text)" stays part of it."""
    return {entry["name"]: entry for entry in _load("model_facts.json.gz")}


@cache
def configs() -> dict[str, dict[str, Any]]:
    """config.json by folder name."""
    configs: dict[str, dict[str, Any]] = _load("configs.json.gz")
    return configs


def layer_indices(text: str) -> list[int]:
    """ "0-2,5" -> [0, 1, 2, 5]."""
    ends = [part.split("-") for part in text.split(",")]
    return [i for first, *last in ends for i in range(int(first), int((last or [first])[0]) + 1)]


def recorded_layers(entry: dict[str, Any]) -> dict[int, set[str]]:
    """What an engine stores in each layer, as comparable words."""
    stored: dict[int, set[str]] = {}
    for group in entry["engine_specs"]:
        for layer in layer_indices(group["layers"]):
            stored.setdefault(layer, set()).update(_words(group))
    return stored


def _words(group: dict[str, Any]) -> set[str]:
    words = set()
    if group["kind"] == "mla":
        words.add(f"mla {group['head_size']}")
    elif group["kind"] != "state":
        window = f" {group['window']}" if group.get("window") else ""
        words.add(f"{group['kind']} {group['kv_heads']}x{group['k_dim']}/{group['v_dim']}{window}")
    states = [tuple(s) for s in group.get("conv") or []] + [
        tuple(s) for s in group.get("rec") or []
    ]
    if states:
        words.add(f"state {states}")
    return words


def stored_layers(model: ModelGeometry) -> dict[int, set[str]]:
    """The same words from a geometry: caches that own their bytes, per layer."""
    stored: dict[int, set[str]] = {}
    for cache_ in model.caches:
        if cache_.shares_with is None and cache_.spec != "encoder_only":
            stored.setdefault(cache_.layer, set()).add(_word(cache_.spec, cache_.fields))
    return stored


def _word(spec: str, fields: Any) -> str:
    if spec == "mla":
        return f"mla {fields['head_size']}"
    if spec == "mamba":
        return f"state {[tuple(state['shape']) for state in fields['states']]}"
    window = fields.get("sliding_window") or fields.get("attention_chunk_size")
    sizes = f"{fields['head_size']}/{fields.get('head_size_v', fields['head_size'])}"
    return f"{spec} {fields['num_kv_heads']}x{sizes}" + (f" {window}" if window else "")


def logical_bytes(model: ModelGeometry, tokens: int, ssm_bytes: int = 2) -> int:
    """Bytes one request of `tokens` stores without any rounding to blocks, 2 bytes a number
    (ssm_bytes for recurrent states): written here from the definition, not from the specs."""
    return sum(
        _cache_bytes(c.spec, c.fields, min(tokens, model.context_length), model, ssm_bytes)
        for c in model.caches
        if c.shares_with is None
    )


def _cache_bytes(spec: str, fields: Any, tokens: int, model: ModelGeometry, ssm_bytes: int) -> int:
    if spec == "mamba":
        (conv, *rest) = (state["shape"] for state in fields["states"])
        return _product(conv) * 2 + sum(_product(shape) for shape in rest) * ssm_bytes
    if spec == "mla":
        return tokens * fields["head_size"] * 2
    held = {
        "full": tokens,
        "sliding": min(tokens, fields.get("sliding_window", 0)),
        "chunked": min(tokens, fields.get("attention_chunk_size", 0)),
        "cross": model.encoder_tokens,
        "encoder_only": 0,
    }[spec]
    widths = fields["head_size"] + fields.get("head_size_v", fields["head_size"])
    return held * int(fields["num_kv_heads"]) * widths * 2


def _product(shape: list[int]) -> int:
    total = 1
    for size in shape:
        total *= size
    return total
