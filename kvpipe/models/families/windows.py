"""Types whose windows follow a rule or keys of their own.

Gemma 4, MiMo-V2-Flash, Muse, Beam, Flint, the ModernBERT decoder. A rule says which layers are
full where the file does not list them.
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
    attention_cache,
    attention_caches,
    layer_types,
)
from kvpipe.models.families.deepseek import indexed_layer, latent_cache
from kvpipe.models.families.gemma import sharing_caches

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


# --- Gemma 4 -----------------------------------------------------------------------------------
def gemma4_types(config: Config) -> list[str]:
    """The last layer is full whatever the file says."""
    return [*types_by(config, every_sixth_and_last)[:-1], FULL]


def gemma4_caches(config: Config) -> list[CacheGeometry]:
    """Full layers have heads of global_head_dim, and fewer where K and V are one projection."""
    wide = {"head_dim": config.count("global_head_dim", 512)}
    if config.flag("attention_k_eq_v") and config.number("num_global_key_value_heads"):
        wide["num_key_value_heads"] = config.count("num_global_key_value_heads")
    types = gemma4_types(config)
    caches = [
        attention_cache(config.having(**wide) if kind == FULL else config, i, kind)
        for i, kind in enumerate(types)
    ]
    return sharing_caches(config, types, caches)


def gemma4_window(config: Config) -> Config:
    """Attention in both directions halves the window."""
    if config.word("use_bidirectional_attention") != "all":
        return config
    return config.having(sliding_window=config.count("sliding_window") // 2 + 1)


# --- MiMo ----------------------------------------------------------------------------------------
def mimo_config(config: Config) -> Config:
    """Published files list windows as 0 and 1, and the window without the query."""
    listed = config.numbers("hybrid_layer_pattern")
    changes: dict[str, object] = {}
    if listed is not None and config.words("layer_types") is None:
        changes["layer_types"] = [SLIDING if windowed else FULL for windowed in listed]
    if config.number("sliding_window_size"):
        changes["sliding_window"] = config.count("sliding_window_size") + 1
    return config.having(**changes)


def mimo_caches(config: Config) -> list[CacheGeometry]:
    """Window layers have K/V heads and sizes of their own; V is narrower than K."""
    config = mimo_config(config)
    windowed = config.having(
        num_key_value_heads=config.count("swa_num_key_value_heads", 2 * config.num_kv_heads),
        head_dim=config.count("swa_head_dim", config.head_size),
        v_head_dim=config.count("swa_v_head_dim", config.count("v_head_dim")),
    )
    types = types_by(config, lambda i, n: i == 0 or (i + 1) % 6 == 0)
    parts = [windowed if kind == SLIDING else config for kind in types]
    return [
        attention_cache(part, i, kind, value_size=part.count("v_head_dim"))
        for i, (part, kind) in enumerate(zip(parts, types, strict=True))
    ]


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
    own = config.section("per_layer_config").section(str(layer)).raw
    rope = config.count("swa_head_dim", 256) - config.count("swa_qk_nope_head_dim", 192)
    sized = {
        "kv_lora_rank": config.count("swa_kv_lora_rank", 1024),
        "qk_rope_head_dim": config.number("swa_qk_rope_head_dim", rope),
    }
    row = latent_cache(config.having(**{**sized, **own}), layer)
    window = config.count("sliding_window", config.count("sliding_window_size", 512))
    return [replace(row, spec="sliding_mla", fields={**row.fields, "sliding_window": window})]


# --- ModernBERT decoder --------------------------------------------------------------------------
def modernbert_caches(config: Config) -> list[CacheGeometry]:
    """`local_attention` counts both sides; a decoder has one."""
    every = config.count("global_attn_every_n_layers", 3)
    halved = config.having(sliding_window=config.count("local_attention") // 2)
    return attention_caches(halved, types_by(halved, lambda i, n: i % every == 0))


gemma4 = Family(caches=lambda config: gemma4_caches(gemma4_window(config)))

FAMILIES = {
    "beam": Family(caches=partial(ruled_caches, rule=every_sixth_and_last)),
    "flint": Family(caches=partial(ruled_caches, rule=first_two_every_fourth_and_last)),
    "muse_glimmer_text": Family(caches=partial(ruled_caches, rule=every_fourth_from_the_end)),
    "muse_spark_text": Family(caches=partial(ruled_caches, rule=every_fourth_from_the_end)),
    "gemma4_text": gemma4,
    "gemma4_unified_text": gemma4,
    "diffusion_gemma_text": gemma4,
    "dots3_note_text": Family(caches=dots3_caches),
    "mimo_v2_flash": Family(caches=mimo_caches),
    "modernbert-decoder": Family(caches=modernbert_caches),
}
