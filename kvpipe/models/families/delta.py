"""Linear attention among attention layers, with states under each class's own keys.

Gated delta nets (arXiv:2412.06464: Qwen3.5, OLMo Hybrid, Lara), Kimi delta attention
(arXiv:2510.26692: Kimi Linear), lightning attention (arXiv:2501.08313: MiniMax-01),
short convolutions (LFM3), the RG-LRU (arXiv:2402.19427), Inkling's convolutions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from kvpipe.models.base import CacheGeometry
from kvpipe.models.families.base import Config, Family, Weight, unreadable
from kvpipe.models.families.caches import (
    FULL,
    SLIDING,
    attention_cache,
    derived_types,
    layer_types,
    state_cache,
)
from kvpipe.models.families.deepseek import (
    latent_cache,
)
from kvpipe.models.families.linear_weights import (
    kimi_block,
    minimax_block,
    olmo_hybrid_block,
)
from kvpipe.models.families.qwen3_next import (
    delta_net,
    gated_attention,
    qwen3_next_block,
    qwen3_next_caches,
    qwen3_next_kinds,
)
from kvpipe.models.families.weights import decoder, mlp, norms

LINEAR, CONV = "linear_attention", "conv"
Store = Callable[[Config, int], CacheGeometry]  # what a linear or full layer stores
ATTENTION = {FULL, SLIDING}


def types_of(config: Config) -> list[str]:
    listed = config.words("layer_types") is not None
    return layer_types(config, () if listed else derived_types(config))


def mixed_caches(config: Config, state: Store, full: Store | None = None) -> list[CacheGeometry]:
    """A state where a layer is linear or a convolution, else attention of its kind."""
    caches = []
    for layer, kind in enumerate(types_of(config)):
        if kind in (LINEAR, CONV):
            caches.append(state(config, layer))
        elif kind == FULL and full is not None:
            caches.append(full(config, layer))
        else:
            caches.append(attention_cache(config, layer, kind))
    return caches


# --- delta nets ----------------------------------------------------------------------------------
def delta_state(config: Config, layer: int) -> CacheGeometry:
    key_heads, heads = (config.count(f"linear_num_{n}_heads") for n in ("key", "value"))
    key, value = (config.count(f"linear_{n}_head_dim") for n in ("key", "value"))
    channels = 2 * key_heads * key + heads * value
    shapes = {
        "conv": [channels, config.count("linear_conv_kernel_dim") - 1],
        "ssm": [heads, key, value],
    }
    return state_cache(layer, "linear_attn", "gdn_attention", shapes)


def qwen3_5_block(config: Config, layer: int) -> list[Weight]:
    """Qwen3-Next's mixers before a dense MLP."""
    attending = qwen3_next_kinds(config)[layer] == FULL
    return [
        *(gated_attention if attending else delta_net)(config, layer),
        *mlp(config, layer, config.intermediate_size),
        *norms(config, layer),
    ]


def olmo_hybrid_config(config: Config) -> Config:
    """Heads of K are three quarters of what divides the hidden size, those of V twice as wide."""
    heads = config.num_heads
    key_heads = config.count("linear_num_key_heads", heads)
    key = config.count("linear_key_head_dim", int(0.75 * config.hidden_size / key_heads))
    return config.having(
        linear_num_key_heads=key_heads,
        linear_num_value_heads=config.count("linear_num_value_heads", heads),
        linear_key_head_dim=key,
        linear_value_head_dim=config.count("linear_value_head_dim", 2 * key),
    )


def olmo_hybrid_caches(config: Config) -> list[CacheGeometry]:
    return mixed_caches(olmo_hybrid_config(config), delta_state)


def olmo_hybrid_weights(config: Config) -> list[Weight]:
    types = types_of(config)

    def block(config: Config, layer: int) -> list[Weight]:
        return olmo_hybrid_block(config, layer, is_full=types[layer] in ATTENTION)

    return decoder(olmo_hybrid_config(config), block)


# --- Kimi delta attention ------------------------------------------------------------------------
def kda_state(config: Config, layer: int) -> CacheGeometry:
    """q, k and v are convolved alike; the recurrent state of a head is square."""
    heads, size = config.count("linear_num_heads"), config.count("linear_head_dim")
    shapes = {
        "conv": [3 * heads * size, config.count("linear_conv_kernel_dim") - 1],
        "ssm": [heads, size, size],
    }
    return state_cache(layer, "self_attn", "gdn_attention", shapes)


def kimi_config(config: Config) -> Config:
    """The checkpoint's linear_attn_config counts layers from 1."""
    config = kimi_sizes(config)
    if config.words("layer_types") is not None:
        return config
    return config.having(layer_types=kimi_types(config))


def kimi_sizes(config: Config) -> Config:
    own = config.section("linear_attn_config")
    changes: dict[str, object] = {
        standard: own.count(key)
        for key, standard in (
            ("head_dim", "linear_head_dim"),
            ("num_heads", "linear_num_heads"),
            ("short_conv_kernel_size", "linear_conv_kernel_dim"),
        )
        if own.get(key) is not None
    }
    return config.having(**changes)


def kimi_types(config: Config) -> list[str]:
    own, layers = config.section("linear_attn_config"), config.num_layers
    full, linear = own.numbers("full_attn_layers"), own.numbers("kda_layers")
    if full is None or linear is None:
        return [FULL if i and i % 4 == 0 else LINEAR for i in range(layers)]
    if sorted(full + linear) != list(range(1, layers + 1)):
        raise own.wrong("full_attn_layers", f"with kda_layers, each of 1 to {layers} once", full)
    return [FULL if i + 1 in full else LINEAR for i in range(layers)]


def kimi_linear_caches(config: Config) -> list[CacheGeometry]:
    return mixed_caches(kimi_config(config), kda_state, latent_cache)


def kimi_linear_weights(config: Config) -> list[Weight]:
    config = kimi_config(config)
    types = types_of(config)
    return decoder(config, lambda own, i: kimi_block(own, i, is_full=types[i] == FULL))


# --- lightning attention -------------------------------------------------------------------------
def lightning_state(config: Config, layer: int) -> CacheGeometry:
    shapes = {"ssm": [config.num_heads, config.head_size, config.head_size]}
    return state_cache(layer, "self_attn", "linear_attention", shapes)


def minimax_config(config: Config) -> Config:
    """Published files say 1 for full and 0 for linear."""
    listed = config.numbers("attn_type_list")
    if listed is not None and config.words("layer_types") is None:
        if len(listed) != config.num_layers or not set(listed) <= {0, 1}:
            raise unreadable("attn_type_list", f"{config.num_layers} of 0 and 1", listed)
        return config.having(layer_types=[FULL if kind else LINEAR for kind in listed])
    return config


def minimax_caches(config: Config) -> list[CacheGeometry]:
    return mixed_caches(minimax_config(config), lightning_state)


def minimax_weights(config: Config) -> list[Weight]:
    types = types_of(minimax_config(config))
    return decoder(config, lambda own, i: minimax_block(own, i, is_full=types[i] == FULL))


# --- convolutions --------------------------------------------------------------------------------
def short_conv_state(config: Config, layer: int) -> CacheGeometry:
    """LFM3 keeps the whole kernel but the newest column."""
    shapes = {"conv": [config.hidden_size, config.count("conv_L_cache") - 1]}
    return state_cache(layer, "short_conv", "short_conv", shapes)


def lfm3_caches(config: Config) -> list[CacheGeometry]:
    kinds = {2: FULL, 0: SLIDING}
    derived = [kinds.get(i % 4, CONV) if i else CONV for i in range(config.num_layers)]
    listed = layer_types(config, derived)
    return mixed_caches(config.having(layer_types=listed), short_conv_state)


# vLLM 0.28 to 0.33, models/inkling: a cache of blocks of kernel_size tokens, K/V heads wide.
_PACKED_COLUMNS = "a window of the kernel's tokens, packed by K/V head"


def inkling_caches(config: Config) -> list[CacheGeometry]:
    """Every layer has K/V, and convolves K, V and the inputs of attention and MLP."""
    windowed = config.having(
        num_key_value_heads=config.count("swa_num_key_value_heads"),
        head_dim=config.count("swa_head_dim"),
    )
    columns = config.count("conv_kernel_size") - 1
    kinds = {"hybrid": FULL, "hybrid_sliding": SLIDING}
    caches = []
    for layer, kind in enumerate(inkling_types(config)):
        if kind not in kinds:
            raise unreadable("layer_types", "hybrid or hybrid_sliding", f"'{kind}'")
        part = windowed if kinds[kind] == SLIDING else config
        width = part.num_kv_heads * part.head_size
        sizes = {"k": width, "v": width, "attn": config.hidden_size, "mlp": config.hidden_size}
        shapes = {f"conv_{name}": [size, columns] for name, size in sizes.items()}
        caches.append(attention_cache(part, layer, kinds[kind]))
        state = state_cache(layer, "sconv", "short_conv", shapes)
        caches.append(replace(state, stored_otherwise=_PACKED_COLUMNS))
    return caches


def inkling_types(config: Config) -> list[str]:
    """As listed; or local_layer_ids are the layers with a window."""
    local = config.numbers("local_layer_ids")
    if local is None or config.words("layer_types") is not None:
        return types_of(config)
    return ["hybrid_sliding" if i in local else "hybrid" for i in range(config.num_layers)]


def zaya_caches(config: Config) -> list[CacheGeometry]:
    """Compressed convolutional attention: K/V, the columns of two convolutions of q and k, and
    half a V of the last token."""
    kv = config.num_kv_heads * config.head_size
    columns = config.count("cca_time0") + config.count("cca_time1") - 2
    channels = config.num_heads * config.head_size + kv
    shapes = {"qk": [channels, columns], "ssm": [kv // 2]}
    kinds = {"hybrid": FULL, "hybrid_sliding": SLIDING}
    caches = []
    for layer, kind in enumerate(types_of(config)):
        if kind not in kinds:
            raise unreadable("layer_types", "hybrid or hybrid_sliding", f"'{kind}'")
        caches.append(attention_cache(config, layer, kinds[kind]))
        caches.append(state_cache(layer, "cca", "short_conv", shapes))
    return caches


# --- recurrent Gemma -----------------------------------------------------------------------------
def recurrent_gemma_caches(config: Config) -> list[CacheGeometry]:
    """Two RG-LRU layers to one with a window, which has a convolution of conv1d_width."""
    width = config.count("lru_width", config.hidden_size)
    shapes = {"conv": [width, config.count("conv1d_width") - 1], "ssm": [width]}
    kinds = config.words("block_types") or ["recurrent", "recurrent", "attention"]
    if not set(kinds) <= {"recurrent", "attention"}:
        raise unreadable("block_types", "recurrent or attention", kinds)
    caches = []
    for layer in range(config.num_layers):
        if kinds[layer % len(kinds)] == "attention":
            caches.append(attention_cache(config, layer, SLIDING))
        else:
            caches.append(state_cache(layer, "temporal_block", "rg_lru", shapes))
    return caches


every_fourth = {"full_attention_interval": 4}
inkling = Family(caches=inkling_caches)

FAMILIES = {
    "qwen3_5_text": Family(
        caches=qwen3_next_caches,
        weights=partial(decoder, block=qwen3_5_block),
        defaults=every_fourth,
    ),
    "qwen3_5_moe_text": Family(
        caches=qwen3_next_caches,
        weights=partial(decoder, block=qwen3_next_block),
        defaults=every_fourth,
    ),
    "olmo_hybrid": Family(caches=olmo_hybrid_caches, weights=olmo_hybrid_weights),
    "lara_mini": Family(caches=partial(mixed_caches, state=delta_state)),
    "kimi_linear": Family(
        caches=kimi_linear_caches, weights=kimi_linear_weights, ssm_dtype="float32"
    ),
    "minimax": Family(caches=minimax_caches, weights=minimax_weights),
    "lfm3": Family(caches=lfm3_caches),
    "inkling_text": inkling,
    "inkling2_text": inkling,
    "recurrent_gemma": Family(
        caches=recurrent_gemma_caches,
        defaults={"max_position_embeddings": 8192},  # what it was trained on
        ssm_dtype="float32",
    ),
    "zaya": Family(caches=zaya_caches),
}
