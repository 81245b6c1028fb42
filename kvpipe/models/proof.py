"""Whether the projections in safetensors headers are those of the planned caches, layer by layer.

The rows of k_proj are K/V heads x head size, those of kv_a_proj a latent row, and a fused qkv_proj
adds the query heads. Packed weights (4 bits in int32) have other shapes and prove nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kvpipe.models._safetensors import TensorTable
from kvpipe.models._values import unreadable
from kvpipe.models.base import CacheGeometry

_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.(\d+)\.(.+)\.weight$")
_TOWERS = re.compile(r"vision|visual|audio|encoder\.layers|vit\.|speech|mtp|draft|talker|code2wav")
_KEYS = re.compile(r"(?:.*\.)?(?:self_attn|attn|attention|self_attention)(?:\.\d+)?\.k_proj")
_VALUES = re.compile(r"(?:.*\.)?(?:self_attn|attn|attention|self_attention)(?:\.\d+)?\.v_proj")
_LATENTS = re.compile(r".*\.kv_a_proj(?:_with_mqa)?")
_FUSED = re.compile(r".*(?:self_attn|attn|attention)\.(?:qkv_proj|W_pack|wqkv)")
_FLOATS = {"F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2"}
_KNOB = "the file and its weights disagree: fetch both again, or write its geometry in conf/model"


@dataclass(frozen=True, kw_only=True)
class Expected:
    """Rows that one layer's projections have if the plan is right; 0 where it has none."""

    key: int = 0
    value: int = 0
    latent: int = 0
    fused: int = 0


def proven_layers(
    caches: Iterable[CacheGeometry], num_query_heads: int, table: TensorTable
) -> tuple[int, int]:
    """Layers whose shapes agree, and layers with attention; ConfigError where one disagrees."""
    expected = {
        cache.layer: rows
        for cache in caches
        if cache.shares_with is None and (rows := _expected(cache, num_query_heads))
    }
    proven = set()
    for name, (dtype, shape) in table.items():
        match = _LAYER.search(name)
        if match is None or dtype not in _FLOATS or len(shape) != 2 or _TOWERS.search(name):
            continue
        layer, part = int(match[1]), match[2]
        wanted = _wanted(part, expected.get(layer))
        if wanted is None:
            continue
        if wanted != shape[0]:
            got = f"{shape[0]:,} ({name})"
            raise unreadable(f"layer {layer}", f"{wanted:,} rows of {part}", got, _KNOB)
        proven.add(layer)
    return len(proven), len(expected)


def _expected(cache: CacheGeometry, num_query_heads: int) -> Expected | None:
    fields: Mapping[str, int] = cache.fields
    if cache.spec in ("mla", "sliding_mla") and "dtype" not in fields:
        return Expected(latent=fields["head_size"])
    if cache.spec not in ("full", "sliding", "chunked"):
        return None
    heads, size = fields["num_kv_heads"], fields["head_size"]
    value = heads * fields.get("head_size_v", size)
    key = heads * size
    return Expected(key=key, value=value, fused=num_query_heads * size + key + value)


def _wanted(part: str, rows: Expected | None) -> int | None:
    """Rows of one projection, or None where it is no projection of this layer's cache."""
    if rows is None:
        return None
    kinds = {_KEYS: rows.key, _VALUES: rows.value, _LATENTS: rows.latent, _FUSED: rows.fused}
    return next((n for pattern, n in kinds.items() if n and pattern.fullmatch(part)), None)
