"""Types whose windows follow a rule or keys of their own.

Muse, Beam, Flint, dots3, the ModernBERT decoder. A rule says which layers are full where the file
does not list them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from kvpipe.models.base import CacheGeometry
from kvpipe.models.families.base import Config, Family, unreadable
from kvpipe.models.families.caches import (
    FULL,
    SLIDING,
    attention_caches,
    layer_types,
)
from kvpipe.models.families.deepseek import indexed_layer, latent_cache

Rule = Callable[[int, int], bool]  # (layer, layers) -> whether it is full


def types_by(config: Config, rule: Rule) -> list[str]:
    layers = config.num_layers
    derived = [FULL if rule(i, layers) else SLIDING for i in range(layers)]
    return layer_types(config, derived)


def ruled_caches(config: Config, *, rule: Rule) -> list[CacheGeometry]:
    return attention_caches(config, types_by(config, rule))


def every_sixth_and_last(layer: int, layers: int) -> bool:
    return (layer + 1) % 6 == 0 or layer == layers - 1


def first_two_every_fourth_and_last(layer: int, layers: int) -> bool:
    return layer < 2 or layer % 4 == 1 or layer == layers - 1


def every_fourth_from_the_end(layer: int, layers: int) -> bool:
    return (layers - 1 - layer) % 4 == 0


# --- dots3: latent rows, wider ones in a window ---------------------------------------------------
def dots3_caches(config: Config) -> list[CacheGeometry]:
    """Full layers keep latent rows with an indexer, window layers latent rows of their own rank."""
    slides = config.flag("use_sliding_window", True)
    indexed, own = "indexed_attention", config.flag("use_dsa", True)
    types = [
        indexed if kind == FULL and own else kind
        for kind in types_by(config, lambda i, n: not slides or i < 2 or i % 4 == 1)
    ]
    return [cache for i, kind in enumerate(types) for cache in dots3_layer(config, i, kind)]


def dots3_layer(config: Config, layer: int, kind: str) -> list[CacheGeometry]:
    if kind == "indexed_attention":
        return indexed_layer(config, layer)
    if kind == FULL:
        return [latent_cache(config, layer)]
    if kind != SLIDING:
        raise unreadable("layer_types", "indexed, full or sliding attention", f"'{kind}'")
    listed = config.section("per_layer_config")  # as the class saves it: what differs from the rest
    own = listed.section(str(layer)).raw
    rope = config.count("swa_head_dim", 256) - config.count("swa_qk_nope_head_dim", 192)
    released = {
        "kv_lora_rank": config.count("swa_kv_lora_rank", 1024),
        "qk_rope_head_dim": config.number("swa_qk_rope_head_dim", rope),
    }
    sized = {} if listed.raw else released
    row = latent_cache(config.having(**{**sized, **own}), layer)
    window = config.count("sliding_window", config.count("sliding_window_size", 512))
    return [replace(row, spec="sliding_mla", fields={**row.fields, "sliding_window": window})]


# --- ModernBERT decoder --------------------------------------------------------------------------
def modernbert_caches(config: Config) -> list[CacheGeometry]:
    """`local_attention` counts both sides; a decoder has one."""
    every = config.count("global_attn_every_n_layers", 3)
    halved = config.having(sliding_window=config.count("local_attention") // 2)
    return attention_caches(halved, types_by(halved, lambda i, n: i % every == 0))


FAMILIES = {
    "beam": Family(caches=partial(ruled_caches, rule=every_sixth_and_last)),
    "flint": Family(caches=partial(ruled_caches, rule=first_two_every_fourth_and_last)),
    "muse_glimmer_text": Family(caches=partial(ruled_caches, rule=every_fourth_from_the_end)),
    "muse_spark_text": Family(caches=partial(ruled_caches, rule=every_fourth_from_the_end)),
    "dots3_note_text": Family(caches=dots3_caches),
    "modernbert-decoder": Family(caches=modernbert_caches),
}
