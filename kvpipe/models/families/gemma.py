"""Gemma 1 to 3n: tied embeddings, windows among full layers, and in 3n layers that share caches.

Gemma 2 (arXiv:2408.00118) alternates, Gemma 3 (arXiv:2503.19786) has five windows to a full layer,
Gemma 3n four; its last layers read the cache of an earlier layer of their type.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from kvpipe.models.base import CacheGeometry
from kvpipe.models.families.base import Config, Family, Weight, unreadable
from kvpipe.models.families.caches import attention_caches, every_nth_full, layer_types
from kvpipe.models.families.llama import full_caches, llama_block
from kvpipe.models.families.weights import attention, decoder, linear, mlp, norm, norms, vector


# --- caches ----------------------------------------------------------------------------------
def types_of(config: Config, pattern: int) -> list[str]:
    names = ("sliding_window_pattern", "_sliding_window_pattern")
    written = next((n for name in names if (n := config.number(name))), pattern)
    return layer_types(config, every_nth_full(config, written))


def patterned_caches(config: Config, *, pattern: int) -> list[CacheGeometry]:
    return attention_caches(config, types_of(config, pattern))


def gemma3n_caches(config: Config) -> list[CacheGeometry]:
    """The last num_kv_shared_layers read the last cache of their type before them."""
    return sharing_caches(config, types_of(config, 5), patterned_caches(config, pattern=5))


def sharing_caches(
    config: Config, types: list[str], caches: list[CacheGeometry]
) -> list[CacheGeometry]:
    """The last num_kv_shared_layers read the last cache of their type before them."""
    first_shared = config.num_layers - config.number("num_kv_shared_layers")
    stores = {kind: caches[i].name for i, kind in enumerate(types[:first_shared])}
    missing = set(types[first_shared:]) - set(stores)
    if missing:
        expected = f"a layer of {', '.join(sorted(missing))} before the shared ones"
        raise unreadable("num_kv_shared_layers", expected, config.number("num_kv_shared_layers"))
    return [
        replace(cache, shares_with=stores[types[i]]) if i >= first_shared else cache
        for i, cache in enumerate(caches)
    ]


# --- weights ---------------------------------------------------------------------------------
def gemma_block(config: Config, layer: int, *, qk_norm: bool) -> list[Weight]:
    """Norms before and after both sub-layers."""
    return [*llama_block(config, layer, qk_norm=qk_norm), *norms(config, layer, 2, name="post")]


def gemma3n_block(config: Config, layer: int) -> list[Weight]:
    """A layer that shares a cache has no k and v; all have AltUp, LAuReL and per-layer inputs."""
    shares = layer >= config.num_layers - config.number("num_kv_shared_layers")
    own = attention(config, layer, bias=config.flag("attention_bias"), qk_norm=True)
    kv_names = ("self_attn.k_proj", "self_attn.v_proj", "self_attn.k_norm")
    width = width_of_layer(config, layer)
    return [
        *(weight for weight in own if not (shares and weight.name.startswith(kv_names))),
        *mlp(config, layer, width),
        *norms(config, layer, 4),
        *altup(config, layer),
        *low_rank("laurel", config, layer, config.count("laurel_rank")),
        *low_rank("per_layer_input", config, layer, config.count("hidden_size_per_layer_input")),
    ]


def width_of_layer(config: Config, layer: int) -> int:
    """intermediate_size is one number, or a list of one a layer."""
    if not isinstance(config.get("intermediate_size"), list):
        return config.intermediate_size
    widths = config.numbers("intermediate_size") or []
    if len(widths) != config.num_layers or 0 in widths:
        expected = f"{config.num_layers} sizes (num_hidden_layers)"
        raise unreadable("intermediate_size", expected, widths)
    return widths[layer]


def altup(config: Config, layer: int) -> list[Weight]:
    hidden, inputs = config.hidden_size, config.count("altup_num_inputs")
    shapes = {
        "correct_output_scale": (hidden,),
        "correction_coefs": (inputs, inputs),
        "prediction_coefs": (inputs**2, inputs),
        "modality_router": (inputs, hidden),
        "router_norm": (hidden,),
    }
    return [vector(f"altup.{name}", *shape, layer=layer) for name, shape in shapes.items()]


def low_rank(name: str, config: Config, layer: int, rank: int) -> list[Weight]:
    """Down to `rank`, up again, and a norm."""
    hidden = config.hidden_size
    return [
        *linear(f"{name}.left", rank, hidden, layer=layer, quantized=False),
        *linear(f"{name}.right", hidden, rank, layer=layer, quantized=False),
        *norm(f"{name}.norm", hidden, layer=layer),
    ]


def gemma3n_weights(config: Config) -> list[Weight]:
    hidden, per_layer = config.hidden_size, config.count("hidden_size_per_layer_input")
    width = per_layer * config.num_layers
    extra = config.count("altup_num_inputs") - 1
    per_layer_rows = config.count("vocab_size_per_layer_input")
    return [
        *decoder(config, gemma3n_block),
        Weight(name="model.embed_tokens_per_layer.weight", shape=(per_layer_rows, width), split=0),
        *linear("model.per_layer_model_projection", width, hidden),
        *norm("model.per_layer_projection_norm", per_layer),
        *linear("model.altup_projections", hidden, hidden, count=extra),
        *linear("model.altup_unembed_projections", hidden, hidden, count=extra),
    ]


def stretched_already(config: Config) -> int:
    """Tokens: Gemma 3 files count what rope scaling stretched; scaling it again would give 8x."""
    return config.count("max_position_embeddings")


FAMILIES = {
    "gemma": Family(caches=full_caches, weights=partial(decoder, block=llama_block)),
    "gemma2": Family(
        caches=partial(patterned_caches, pattern=2),
        weights=partial(decoder, block=partial(gemma_block, qk_norm=False)),
    ),
    "gemma3_text": Family(
        caches=partial(patterned_caches, pattern=6),
        weights=partial(decoder, block=partial(gemma_block, qk_norm=True)),
        context_length=stretched_already,
    ),
    "gemma3n_text": Family(
        caches=gemma3n_caches,
        weights=gemma3n_weights,
        context_length=stretched_already,
    ),
}
