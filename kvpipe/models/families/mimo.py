"""MiMo-V2-Flash: window layers with K/V heads of their own and sinks; V is narrower than K."""

from __future__ import annotations

from functools import partial

from kvpipe.models.base import CacheGeometry
from kvpipe.models.families.base import Config, Family, Weight
from kvpipe.models.families.caches import FULL, SLIDING, attention_cache
from kvpipe.models.families.experts import routed
from kvpipe.models.families.weights import decoder, linear, mlp, norms, vector
from kvpipe.models.families.windows import types_by


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
    return [
        attention_cache(part, i, kind, value_size=part.count("v_head_dim"))
        for i, (part, kind) in enumerate(mimo_layers(config))
    ]


def mimo_layers(config: Config) -> list[tuple[Config, str]]:
    """The file as each layer reads it, and the layer's kind."""
    config = mimo_config(config)
    windowed = config.having(
        num_attention_heads=config.count("swa_num_attention_heads", config.num_heads),
        num_key_value_heads=config.count("swa_num_key_value_heads", 2 * config.num_kv_heads),
        head_dim=config.count("swa_head_dim", config.head_size),
        v_head_dim=config.count("swa_v_head_dim", config.count("v_head_dim")),
    )
    types = types_by(config, lambda i, n: i == 0 or (i + 1) % 6 == 0)
    return [(windowed if kind == SLIDING else config, kind) for kind in types]


# --- weights -------------------------------------------------------------------------------------
def mimo_block(config: Config, layer: int) -> list[Weight]:
    part, kind = mimo_layers(config)[layer]
    return [
        *mimo_attention(part, layer, sinks=kind == SLIDING),
        *mimo_feed_forward(config, layer),
        *norms(config, layer),
    ]


def mimo_attention(part: Config, layer: int, *, sinks: bool) -> list[Weight]:
    hidden, heads, kv = part.hidden_size, part.num_heads, part.num_kv_heads
    size, value = part.head_size, part.count("v_head_dim")
    up = partial(linear, layer=layer, split=0, bias=part.flag("attention_bias"))
    found = [
        *up("self_attn.q_proj", heads * size, hidden, parts=heads),
        *up("self_attn.k_proj", kv * size, hidden, parts=kv),
        *up("self_attn.v_proj", kv * value, hidden, parts=kv),
        *linear("self_attn.o_proj", hidden, heads * value, layer=layer, split=1, parts=heads),
    ]
    return [*found, vector("self_attn.sinks", heads, layer=layer, split=0)] if sinks else found


def mimo_feed_forward(config: Config, layer: int) -> list[Weight]:
    """Published files list experts as 0 and 1; the class has one dense layer in front."""
    listed, kinds = config.numbers("moe_layer_freq"), config.words("mlp_layer_types")
    sparse = kinds[layer] == "sparse" if kinds else bool(listed[layer] if listed else layer)
    if not sparse:
        return mlp(config, layer, config.intermediate_size)
    number, width = config.count("n_routed_experts"), config.count("moe_intermediate_size")
    return routed(config, layer, number, width)


FAMILIES = {
    "mimo_v2_flash": Family(caches=mimo_caches, weights=partial(decoder, block=mimo_block)),
}
