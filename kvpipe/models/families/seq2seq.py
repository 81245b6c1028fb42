"""Decoders that attend to an encoder's output: BART's descendants, T5's, speech models, Llama 3.2
Vision.

Rows over `encoders`: which keys say the decoder's layers, heads and head size, and how many tokens
an encoder gives at most. Self attention may follow layer_types (T5Gemma).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from kvpipe.models.base import CacheGeometry
from kvpipe.models.families.base import Config, Family
from kvpipe.models.families.caches import attention_caches, standard_caches
from kvpipe.models.families.encoders import (
    T5_NAMES,
    bart_caches,
    bart_weights,
    t5_caches,
    t5_decoder_layers,
    t5_weights,
)


def crossed(own: list[CacheGeometry], heads: int, head_size: int) -> list[CacheGeometry]:
    """Cross attention beside every self attention."""
    fields = {"num_kv_heads": heads, "head_size": head_size}
    both = []
    for cache in own:
        prefix = cache.name.rsplit(".", 2)[0]
        name = f"{prefix}.encoder_attn.attn"
        both += [cache, CacheGeometry(name=name, layer=cache.layer, spec="cross", fields=fields)]
    return both


def standard_crossed(config: Config) -> list[CacheGeometry]:
    """Both attentions with the standard keys' heads."""
    return crossed(standard_caches(config), config.num_kv_heads, config.head_size)


def all_heads_crossed(config: Config) -> list[CacheGeometry]:
    own = config.having(num_key_value_heads=config.num_heads)
    return crossed(attention_caches(own), own.num_heads, own.head_size)


def decoder_standard(config: Config) -> list[CacheGeometry]:
    """BART's decoder alone: what its class calls heads and layers is the encoder's."""
    own = config.having(
        num_hidden_layers=config.layers("decoder_layers"),
        num_attention_heads=config.count("decoder_attention_heads"),
    )
    return attention_caches(own)


def longest_source(*keys: str) -> partial[int]:
    return partial(_longest_source, keys=keys)


def _longest_source(config: Config, keys: tuple[str, ...]) -> int:
    return next((n for key in keys if (n := config.number(key))), 512)


def bart_layers(config: Config) -> int:
    return config.layers("decoder_layers")


positions = ("max_source_positions", "max_encoder_position_embeddings", "max_position_embeddings")
# Position tables and norms, where they differ from BART's.
_BARTS: Mapping[str, Mapping[str, Any]] = {
    "blenderbot": {"more_rows": 0, "first_norm": False, "last_norm": True},
    "blenderbot-small": {"more_rows": 0},
    "m2m_100": {"more_rows": None, "first_norm": False, "last_norm": True},
    "marian": {"more_rows": 0, "first_norm": False},
    "mbart": {"last_norm": True},
    "mvp": {},
    "pegasus": {"more_rows": 0, "first_norm": False, "last_norm": True},
    "plbart": {},
}
_BARTS_NOT_COUNTED = """
bigbird_pegasus fsmt nllb-moe pegasus_x pp_formulanet_text seamless_m4t seamless_m4t_v2
florence2_text
"""
bart = Family(
    caches=bart_caches,
    num_layers=bart_layers,
    aliases={"num_attention_heads": "decoder_attention_heads"},
    encoder_tokens=longest_source(*positions),
)
t5 = Family(
    caches=t5_caches,
    aliases=T5_NAMES,
    num_layers=t5_decoder_layers,
    defaults={"max_position_embeddings": 512},
    encoder_tokens=longest_source("max_position_embeddings"),
)


def prophet_caches(config: Config) -> list[CacheGeometry]:
    heads = config.count("num_decoder_attention_heads")
    layers = config.layers("num_decoder_layers")
    own = config.having(
        num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=heads
    )
    return crossed(attention_caches(own), heads, config.hidden_size // heads)


def dia_caches(config: Config) -> list[CacheGeometry]:
    heads = config.count("cross_num_key_value_heads")
    return crossed(standard_caches(config), heads, config.count("cross_head_dim"))


# --- images ---------------------------------------------------------------------------------------
def image_patches(config: Config) -> int:
    """Of one image, and the class token: BLIP's vision class has 384 and 16."""
    vision = config.section("vision_config")
    return (vision.count("image_size", 384) // vision.count("patch_size", 16)) ** 2 + 1


# --- Llama 3.2 Vision ----------------------------------------------------------------------------
def mllama_caches(config: Config) -> list[CacheGeometry]:
    """Some layers attend to the images alone, the others to the text."""
    crossing = mllama_crossing(config)
    return [
        replace(cache, name=f"model.layers.{cache.layer}.cross_attn.attn", spec="cross")
        if cache.layer in crossing
        else cache
        for cache in attention_caches(config)
    ]


def mllama_crossing(config: Config) -> list[int]:
    found = config.numbers("cross_attention_layers")
    return [3, 8, 13, 18, 23, 28, 33, 38] if found is None else found


def mllama_image_tokens(config: Config) -> int:
    """Of one image in all its tiles; 448 x 448, 14 and 4 are its class's own sizes."""
    vision = config.section("vision_config")
    patches = vision.count("image_size", 448) // vision.count("patch_size", 14)
    return vision.count("max_num_tiles", 4) * (patches**2 + 1)


plain = Family(caches=all_heads_crossed, encoder_tokens=longest_source(*positions))
grouped = Family(caches=standard_crossed, encoder_tokens=longest_source(*positions))

FAMILIES = {
    "blip_text_model": Family(caches=all_heads_crossed, encoder_tokens=image_patches),
    "canary_decoder": grouped,
    "cohere_asr": grouped,
    "dia_decoder": Family(caches=dia_caches, encoder_tokens=longest_source(*positions)),
    "moonshine": grouped,
    "moonshine_streaming": grouped,
    "musicgen_decoder": plain,
    "t5_gemma_module": grouped,
    "t5gemma2_decoder": grouped,
    "trocr": Family(caches=decoder_standard, num_layers=bart_layers),
    "prophetnet": Family(
        caches=prophet_caches,
        num_layers=lambda config: config.layers("num_decoder_layers"),
        encoder_tokens=longest_source(*positions),
    ),
    "speech_to_text": Family(
        caches=bart_caches,
        num_layers=bart_layers,
        aliases={
            "num_attention_heads": "decoder_attention_heads",
            "max_position_embeddings": "max_target_positions",
        },
        encoder_tokens=longest_source(*positions),
    ),
    "speecht5": Family(
        caches=bart_caches,
        num_layers=bart_layers,
        aliases={"max_position_embeddings": "max_text_positions"},
        encoder_tokens=longest_source("max_speech_positions"),
    ),
    "led": Family(
        caches=bart_caches,
        num_layers=bart_layers,
        aliases={"max_position_embeddings": "max_decoder_position_embeddings"},
        encoder_tokens=longest_source(*positions),
    ),
    **{name: replace(bart, weights=partial(bart_weights, **how)) for name, how in _BARTS.items()},
    **{name: bart for name in _BARTS_NOT_COUNTED.split()},
    **{name: replace(t5, weights=t5_weights) for name in ("longt5", "mt5")},
    "umt5": replace(t5, weights=partial(t5_weights, biases_everywhere=True)),
    **{name: t5 for name in ("switch_transformers", "udop", "pop2piano")},
}
