"""Mixtures of experts: the cache is that of their attention, the weights are mostly experts.

Mixtral (arXiv:2401.04088), Qwen2/3-MoE, GLM-4.5, gpt-oss (arXiv:2508.10925), Llama 4.
"""

from __future__ import annotations

from functools import partial

from kvpipe.models.base import CacheGeometry
from kvpipe.models.families.base import Config, Family, Weight, unreadable
from kvpipe.models.families.caches import (
    CHUNKED,
    FULL,
    attention_caches,
    every_nth_full,
    layer_types,
)
from kvpipe.models.families.llama import (
    full_caches,
    one_window_caches,
    optional_window_caches,
)
from kvpipe.models.families.weights import attention, decoder, linear, mlp, norms, router, vector


# --- caches ----------------------------------------------------------------------------------
def alternating_caches(config: Config) -> list[CacheGeometry]:
    return attention_caches(config, layer_types(config, every_nth_full(config, 2)))


def llama4_caches(config: Config) -> list[CacheGeometry]:
    """A layer with rope attends in chunks, one without to everything."""
    rope = config.numbers("no_rope_layers")  # 1: this layer HAS rope; [] in published files
    interval = config.count("no_rope_layer_interval")
    rope = rope or [int((i + 1) % interval != 0) for i in range(config.num_layers)]
    if len(rope) != config.num_layers:
        raise unreadable("no_rope_layers", f"{config.num_layers} entries", len(rope))
    return attention_caches(config, layer_types(config, [CHUNKED if r else FULL for r in rope]))


# --- weights ---------------------------------------------------------------------------------
def routed(config: Config, layer: int, number: int, width: int) -> list[Weight]:
    """A router and `number` gated experts of `width`."""
    return [
        *router(config, layer, number),
        *mlp(config, layer, width, name="mlp.experts", count=number),
    ]


def mixtral_block(config: Config, layer: int) -> list[Weight]:
    return [
        *attention(config, layer),
        *routed(config, layer, config.count("num_local_experts"), config.intermediate_size),
        *norms(config, layer),
    ]


def is_sparse(config: Config, layer: int) -> bool:
    """Qwen: every decoder_sparse_step-th layer has experts, but for mlp_only_layers."""
    step = config.count("decoder_sparse_step", 1)
    return layer not in (config.numbers("mlp_only_layers") or []) and (layer + 1) % step == 0


def shared_expert(config: Config, layer: int) -> list[Weight]:
    """Qwen's expert that every token visits, weighed by a gate of its own."""
    width = config.count("shared_expert_intermediate_size")
    return [
        *mlp(config, layer, width, name="mlp.shared_expert"),
        *linear("mlp.shared_expert_gate", 1, config.hidden_size, layer=layer, quantized=False),
    ]


def qwen_experts(config: Config, layer: int, *, shared: bool) -> list[Weight]:
    if not is_sparse(config, layer):
        return mlp(config, layer, config.intermediate_size)
    number, width = config.count("num_experts"), config.count("moe_intermediate_size")
    return [
        *routed(config, layer, number, width),
        *(shared_expert(config, layer) if shared else []),
    ]


def qwen2_moe_block(config: Config, layer: int) -> list[Weight]:
    bias = config.flag("qkv_bias", True)
    return [
        *attention(config, layer, bias=bias, o_bias=False),
        *qwen_experts(config, layer, shared=True),
        *norms(config, layer),
    ]


def qwen3_moe_block(config: Config, layer: int) -> list[Weight]:
    return [
        *attention(config, layer, bias=config.flag("attention_bias"), qk_norm=True),
        *qwen_experts(config, layer, shared=False),
        *norms(config, layer),
    ]


def glm4_moe_block(config: Config, layer: int) -> list[Weight]:
    """Dense layers first; the router's correction bias is a buffer, not a parameter."""
    bias, qk_norm = config.flag("attention_bias"), config.flag("use_qk_norm")
    return [
        *attention(config, layer, bias=bias, o_bias=False, qk_norm=qk_norm),
        *dense_then_experts(config, layer),
        *norms(config, layer),
    ]


def dense_then_experts(config: Config, layer: int) -> list[Weight]:
    """DeepSeek's way: first_k_dense_replace dense layers, then routed and shared experts."""
    kinds = config.words("mlp_layer_types") or []
    dense = (
        kinds[layer] == "dense"
        if layer < len(kinds)
        else layer < config.number("first_k_dense_replace")
    )
    if dense or not config.number("n_routed_experts"):
        return mlp(config, layer, config.intermediate_size)
    width, shared = config.count("moe_intermediate_size"), config.number("n_shared_experts")
    return [
        *routed(config, layer, config.count("n_routed_experts"), width),
        *(mlp(config, layer, width * shared, name="mlp.shared_experts") if shared else []),
    ]


def gpt_oss_block(config: Config, layer: int) -> list[Weight]:
    """Biases everywhere, and a learnt sink a head. Experts are stored [experts, in, out]."""
    number = config.count("num_local_experts")
    return [
        *attention(config, layer, bias=config.flag("attention_bias", True)),
        vector("self_attn.sinks", config.num_heads, layer=layer, split=0),
        *router(config, layer, number, name="mlp.router"),
        vector("mlp.router.bias", number, layer=layer),
        *mlp(config, layer, config.intermediate_size, name="mlp.experts", count=number, bias=True),
        *norms(config, layer),
    ]


def llama4_block(config: Config, layer: int) -> list[Weight]:
    """Experts beside one shared expert, every interleave_moe_layer_step-th layer."""
    number, width = config.count("num_local_experts"), config.intermediate_size
    listed = config.numbers("moe_layers")
    step = config.count("interleave_moe_layer_step")
    sparse = layer in listed if listed else (layer + 1) % step == 0
    dense = mlp(config, layer, config.count("intermediate_size_mlp"))
    experts = [
        *routed(config, layer, number, width),
        *mlp(config, layer, width, name="mlp.shared_expert"),
    ]
    return [
        *attention(config, layer, bias=config.flag("attention_bias")),
        *(experts if sparse else dense),
        *norms(config, layer),
    ]


FAMILIES = {
    "mixtral": Family(caches=one_window_caches, weights=partial(decoder, block=mixtral_block)),
    "qwen2_moe": Family(
        caches=optional_window_caches,
        weights=partial(decoder, block=qwen2_moe_block),
    ),
    "qwen3_moe": Family(
        caches=optional_window_caches,
        weights=partial(decoder, block=qwen3_moe_block),
        defaults={"max_window_layers": 28},
        aliases={"num_experts": "num_local_experts"},
    ),
    "glm4_moe": Family(caches=full_caches, weights=partial(decoder, block=glm4_moe_block)),
    "gpt_oss": Family(
        caches=alternating_caches,
        weights=partial(decoder, block=gpt_oss_block),
        aliases={"num_local_experts": "num_experts"},
    ),
    "llama4_text": Family(caches=llama4_caches, weights=partial(decoder, block=llama4_block)),
}
