"""Weights of layers with linear attention: Kimi's and OLMo's delta attention, lightning."""

from __future__ import annotations

from functools import partial

from kvpipe.models.families.base import Config, Weight
from kvpipe.models.families.deepseek import latent_attention
from kvpipe.models.families.experts import dense_then_experts, routed
from kvpipe.models.families.llama import olmo2_block
from kvpipe.models.families.weights import attention, linear, mlp, norm, norms, vector


def kda(config: Config, layer: int) -> list[Weight]:
    """q, k and v with one convolution, gates of low rank, a norm a head (arXiv:2510.26692)."""
    hidden, heads = config.hidden_size, config.count("linear_num_heads")
    size, kernel = config.count("linear_head_dim"), config.count("linear_conv_kernel_dim")
    whole = heads * size
    up = partial(linear, layer=layer, split=0, parts=heads)
    return [
        *(w for part in "qkv" for w in up(f"self_attn.{part}_proj", whole, hidden)),
        vector("self_attn.conv1d.weight", 3 * whole, 1, kernel, layer=layer, split=0),
        *(w for g in "fg" for w in linear(f"self_attn.{g}_a_proj", size, hidden, layer=layer)),
        *(w for g in "fg" for w in up(f"self_attn.{g}_b_proj", whole, size)),
        vector("self_attn.dt_bias", whole, layer=layer, split=0),
        vector("self_attn.A_log", heads, layer=layer, split=0),
        *up("self_attn.b_proj", heads, hidden),
        *norm("self_attn.o_norm", size, layer=layer),
        *linear("self_attn.o_proj", hidden, whole, layer=layer, split=1, parts=heads),
    ]


def kimi_block(config: Config, layer: int, *, is_full: bool) -> list[Weight]:
    """Published files count experts under names of their own."""
    experts = config.having(
        n_routed_experts=config.number("num_experts", config.number("num_local_experts")),
        n_shared_experts=config.number("num_shared_experts", config.number("n_shared_experts")),
        first_k_dense_replace=config.number("first_k_dense_replace", 1),
    )
    return [
        *(latent_attention if is_full else kda)(config, layer),
        *dense_then_experts(experts, layer),
        *norms(config, layer),
    ]


def lightning(config: Config, layer: int) -> list[Weight]:
    """q, k, v in one, an output gate, a norm of all heads (arXiv:2501.08313)."""
    hidden, heads = config.hidden_size, config.num_heads
    whole = heads * config.head_size
    up = partial(linear, layer=layer, split=0, parts=heads)
    return [
        *up("self_attn.qkv_proj", 3 * whole, hidden),
        *up("self_attn.output_gate", whole, hidden),
        *norm("self_attn.norm", whole, layer=layer),
        *linear("self_attn.out_proj", hidden, whole, layer=layer, split=1, parts=heads),
    ]


def minimax_block(config: Config, layer: int, *, is_full: bool) -> list[Weight]:
    number = config.count("num_local_experts")
    return [
        *(attention if is_full else lightning)(config, layer),
        *routed(config, layer, number, config.intermediate_size),
        *norms(config, layer),
    ]


def separate_delta(config: Config, layer: int) -> list[Weight]:
    """A gated delta net whose q, k, v, gate, decay and step are projected each by itself."""
    hidden, values = config.hidden_size, config.count("linear_num_value_heads")
    size = config.count("linear_value_head_dim")
    keys = config.count("linear_num_key_heads") * config.count("linear_key_head_dim")
    wide, kernel = values * size, config.count("linear_conv_kernel_dim")
    rows = {"q": keys, "k": keys, "v": wide, "g": wide, "a": values, "b": values}
    small = partial(vector, layer=layer, split=0)
    return [
        *(
            weight
            for part, width in rows.items()
            for weight in linear(f"linear_attn.{part}_proj", width, hidden, layer=layer, split=0)
        ),
        small("linear_attn.conv1d.weight", 2 * keys + wide, 1, kernel),
        small("linear_attn.A_log", values),
        small("linear_attn.dt_bias", values),
        *norm("linear_attn.o_norm", size, layer=layer),
        *linear("linear_attn.o_proj", hidden, wide, layer=layer, split=1),
    ]


def olmo_hybrid_block(config: Config, layer: int, *, is_full: bool) -> list[Weight]:
    """OLMo 2's layer, or a delta net before the same MLP."""
    if is_full:
        return olmo2_block(config, layer)
    return [
        *separate_delta(config, layer),
        *mlp(config, layer, config.intermediate_size),
        *norms(config, layer),
    ]
