"""Llama and what descends from it: full or sliding attention, gated MLPs, RMS norms.

Llama (arXiv:2302.13971), Mistral (arXiv:2310.06825), Qwen2/3, Granite, GLM-4, Phi-3, OLMo 2/3,
Command-R. Where they differ is biases, norms and which layers slide.
"""

from __future__ import annotations

from functools import partial

from kvpipe.models.base import CacheGeometry
from kvpipe.models.families.base import Config, Family, Weight, unreadable
from kvpipe.models.families.caches import (
    FULL,
    SLIDING,
    attention_caches,
    every_nth_full,
    layer_types,
)
from kvpipe.models.families.weights import attention, decoder, mlp, norm, norms


# --- caches ----------------------------------------------------------------------------------
def full_caches(config: Config) -> list[CacheGeometry]:
    """Full attention, unless the file lists windows: the class knows of none, and yet vLLM's and
    the cache that transformers makes by the file obey it."""
    return attention_caches(config, layer_types(config, [FULL] * config.num_layers))


def one_window_caches(config: Config) -> list[CacheGeometry]:
    """Every layer slides where sliding_window is set."""
    return attention_caches(config, layer_types(config, [SLIDING] * config.num_layers))


def optional_window_caches(config: Config) -> list[CacheGeometry]:
    """Qwen: no window unless use_sliding_window; then the FIRST max_window_layers are full."""
    first = config.number("max_window_layers", 28) if config.flag("use_sliding_window") else None
    derived = [
        SLIDING if first is not None and i >= first else FULL for i in range(config.num_layers)
    ]
    types = layer_types(config, derived)
    if other := next((kind for kind in types if kind not in (FULL, SLIDING)), None):
        raise unreadable("layer_types", "full or sliding attention", f"'{other}'")
    return attention_caches(config, types if first is not None else [FULL] * len(types))


def every_fourth_full_caches(config: Config) -> list[CacheGeometry]:
    pattern = config.count("sliding_window_pattern", 4)
    return attention_caches(config, layer_types(config, every_nth_full(config, pattern)))


# --- weights ---------------------------------------------------------------------------------
Biases = tuple[str, ...]
NO_BIAS: Biases = ()
ATTENTION_BIAS: Biases = ("attention_bias",)
ANY_BIAS: Biases = ("attention_bias", "mlp_bias")


def llama_block(
    config: Config, layer: int, *, biases: Biases = ATTENTION_BIAS, qk_norm: bool = False
) -> list[Weight]:
    """biases: the keys that the class knows; the others it ignores, whatever the file says."""
    attention_bias, mlp_bias = (
        key in biases and config.flag(key) for key in ("attention_bias", "mlp_bias")
    )
    return [
        *attention(config, layer, bias=attention_bias, qk_norm=qk_norm),
        *mlp(config, layer, config.intermediate_size, bias=mlp_bias),
        *norms(config, layer),
    ]


def qkv_bias_block(config: Config, layer: int) -> list[Weight]:
    """Biases on q, k and v whatever the file says, none on o (Qwen2; GLM-4 by default)."""
    bias = config.flag("attention_bias", True)
    return [
        *attention(config, layer, bias=bias, o_bias=False),
        *mlp(config, layer, config.intermediate_size),
        *norms(config, layer),
    ]


def starcoder2_block(config: Config, layer: int) -> list[Weight]:
    bias = config.flag("use_bias", True)
    return [
        *attention(config, layer, bias=bias),
        *mlp(config, layer, config.intermediate_size, gated=False, bias=bias),
        *norms(config, layer, bias=True),
    ]


def cohere_block(config: Config, layer: int, *, may_norm: bool = True) -> list[Weight]:
    """Attention and MLP side by side under one norm; Command-R+ norms every head of q, k."""
    kv, size = config.num_kv_heads, config.head_size
    widths = {"q_norm": config.num_heads * size, "k_norm": kv * size}  # a weight a head
    whole = [n for name, width in widths.items() for n in norm(name, width, layer=layer)]
    return [
        *attention(config, layer, bias=config.flag("attention_bias")),
        *mlp(config, layer, config.intermediate_size),
        *norms(config, layer, 1),
        *(whole if may_norm and config.flag("use_qk_norm") else []),
    ]


def olmo2_block(config: Config, layer: int) -> list[Weight]:
    """Norms of the whole q and k, and two after the sub-layers."""
    q_width, kv_width = (n * config.head_size for n in (config.num_heads, config.num_kv_heads))
    return [
        *llama_block(config, layer),
        *norm("self_attn.q_norm", q_width, layer=layer),
        *norm("self_attn.k_norm", kv_width, layer=layer),
    ]


llama = partial(decoder, block=partial(llama_block, biases=ANY_BIAS))
mistral = partial(decoder, block=partial(llama_block, biases=NO_BIAS))
qk_normed = partial(decoder, block=partial(llama_block, qk_norm=True))
qkv_biased = partial(decoder, block=qkv_bias_block)
cohere = partial(decoder, block=cohere_block)
cohere2 = partial(decoder, block=partial(cohere_block, may_norm=False))
olmo2 = partial(decoder, block=olmo2_block)


FAMILIES = {
    "llama": Family(caches=full_caches, weights=llama),
    "granite": Family(caches=full_caches, weights=llama),
    "mistral": Family(caches=one_window_caches, weights=mistral),
    "ministral3": Family(
        caches=one_window_caches,
        weights=mistral,
    ),
    "qwen2": Family(caches=optional_window_caches, weights=qkv_biased),
    "qwen3": Family(caches=optional_window_caches, weights=qk_normed),
    "phi3": Family(caches=one_window_caches, weights=mistral),
    "glm": Family(caches=full_caches, weights=qkv_biased),
    "starcoder2": Family(
        caches=one_window_caches,
        weights=partial(decoder, block=starcoder2_block, norm_bias=True),
    ),
    "cohere": Family(caches=full_caches, weights=cohere),
    "olmo2": Family(caches=full_caches, weights=olmo2),
    "olmo3": Family(caches=every_fourth_full_caches, weights=olmo2),
}
