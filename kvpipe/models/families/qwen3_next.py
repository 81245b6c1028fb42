"""Qwen3-Next: three gated delta nets (arXiv:2412.06464) to a gated attention layer; experts."""

from __future__ import annotations

from functools import partial

from kvpipe.models.base import CacheGeometry
from kvpipe.models.families.base import Config, Family, Weight
from kvpipe.models.families.caches import FULL, attention_cache, state_cache
from kvpipe.models.families.experts import is_sparse, routed, shared_expert
from kvpipe.models.families.hybrid import (
    attends,
    kinds,
    once_a_file,
)
from kvpipe.models.families.weights import decoder, linear, mlp, norm, norms, qkv, vector


def delta_net_sizes(config: Config) -> tuple[int, int, int, int]:
    """Channels of q and k together, of v, value heads, value head size."""
    keys = config.count("linear_num_key_heads") * config.count("linear_key_head_dim")
    heads, size = config.count("linear_num_value_heads"), config.count("linear_value_head_dim")
    return 2 * keys, heads * size, heads, size


@once_a_file
def qwen3_next_kinds(config: Config) -> list[str]:
    every = config.count("full_attention_interval")
    derived = [
        FULL if (i + 1) % every == 0 else "linear_attention" for i in range(config.num_layers)
    ]
    return kinds(config, derived)


def qwen3_next_caches(config: Config) -> list[CacheGeometry]:
    qk, v, heads, size = delta_net_sizes(config)
    shapes = {
        "conv": [qk + v, config.count("linear_conv_kernel_dim") - 1],
        "ssm": [heads, config.count("linear_key_head_dim"), size],
    }
    return [
        attention_cache(config, i)
        if attends(kind)
        else state_cache(i, "linear_attn", "gdn_attention", shapes)
        for i, kind in enumerate(qwen3_next_kinds(config))
    ]


def delta_net(config: Config, layer: int) -> list[Weight]:
    (qk, v, heads, size), hidden = delta_net_sizes(config), config.hidden_size
    small = partial(vector, layer=layer, split=0)
    return [
        *linear("linear_attn.in_proj_qkvz", qk + 2 * v, hidden, layer=layer, split=0),
        *linear("linear_attn.in_proj_ba", 2 * heads, hidden, layer=layer, split=0),
        small("linear_attn.conv1d.weight", qk + v, 1, config.count("linear_conv_kernel_dim")),
        small("linear_attn.dt_bias", heads),
        small("linear_attn.A_log", heads),
        vector("linear_attn.norm.weight", size, layer=layer),
        *linear("linear_attn.out_proj", hidden, v, layer=layer, split=1),
    ]


def gated_attention(config: Config, layer: int) -> list[Weight]:
    """q comes with a gate of its own size."""
    rows, bias = 2 * config.num_heads * config.head_size, config.flag("attention_bias")
    columns = config.num_heads * config.head_size
    return [
        *qkv(config, layer, q_rows=rows, bias=bias),
        *linear("self_attn.o_proj", config.hidden_size, columns, layer=layer, split=1, bias=bias),
        *norm("self_attn.q_norm", config.head_size, layer=layer),
        *norm("self_attn.k_norm", config.head_size, layer=layer),
    ]


def qwen3_next_block(config: Config, layer: int) -> list[Weight]:
    mixer = gated_attention if attends(qwen3_next_kinds(config)[layer]) else delta_net
    return [*mixer(config, layer), *feed_forward(config, layer), *norms(config, layer)]


def feed_forward(config: Config, layer: int) -> list[Weight]:
    if not is_sparse(config, layer):
        return mlp(config, layer, config.intermediate_size)
    number, width = config.count("num_experts"), config.count("moe_intermediate_size")
    return [*routed(config, layer, number, width), *shared_expert(config, layer)]


FAMILIES = {
    "qwen3_next": Family(
        caches=qwen3_next_caches,
        weights=partial(decoder, block=qwen3_next_block),
        defaults={"full_attention_interval": 4},
    ),
}
