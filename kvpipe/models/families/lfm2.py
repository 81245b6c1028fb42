"""LFM2: short convolutions, whose state is a few columns, among attention layers."""

from __future__ import annotations

from functools import partial
from math import ceil

from kvpipe.models.base import CacheGeometry
from kvpipe.models.families.base import Config, Family, Weight, unreadable
from kvpipe.models.families.caches import FULL, attention_cache, state_cache
from kvpipe.models.families.experts import routed
from kvpipe.models.families.hybrid import (
    attends,
    kinds,
    once_a_file,
)
from kvpipe.models.families.weights import attention, decoder, linear, mlp, norms, vector


@once_a_file
def lfm2_kinds(config: Config) -> list[str]:
    full = config.numbers("full_attn_idxs")
    layers = range(config.num_layers)
    return kinds(config, [FULL if full is None or i in full else "conv" for i in layers])


def lfm2_caches(config: Config) -> list[CacheGeometry]:
    shapes = {"conv": [config.hidden_size, config.count("conv_L_cache") - 1]}
    return [
        attention_cache(config, i)
        if attends(kind)
        else state_cache(i, "short_conv", "short_conv", shapes)
        for i, kind in enumerate(lfm2_kinds(config))
    ]


def lfm2_width(config: Config) -> int:
    """Two thirds of the named width, rounded up to a multiple, unless told to leave it."""
    width, multiple = config.intermediate_size, config.count("block_multiple_of")
    if not config.flag("block_auto_adjust_ff_dim", True):
        return width
    multiplier = config.ratio("block_ffn_dim_multiplier", 1.0) or 1.0
    adjusted = int(multiplier * int(2 * width / 3))
    return multiple * ceil(adjusted / multiple)


def short_conv(config: Config, layer: int) -> list[Weight]:
    hidden, kernel, bias = (
        config.hidden_size,
        config.count("conv_L_cache"),
        config.flag("conv_bias"),
    )
    return [
        *linear("conv.in_proj", 3 * hidden, hidden, layer=layer, split=0, bias=bias),
        vector("conv.conv.weight", hidden, 1, kernel, layer=layer, split=0),
        *([vector("conv.conv.bias", hidden, layer=layer, split=0)] if bias else []),
        *linear("conv.out_proj", hidden, hidden, layer=layer, split=1, bias=bias),
    ]


def lfm2_block(config: Config, layer: int) -> list[Weight]:
    attending = attends(lfm2_kinds(config)[layer])
    return [
        *(attention(config, layer, qk_norm=True) if attending else short_conv(config, layer)),
        *mlp(config, layer, lfm2_width(config)),
        *norms(config, layer),
    ]


# --- with experts --------------------------------------------------------------------------------
def lfm2_moe_caches(config: Config) -> list[CacheGeometry]:
    """The class derives no kinds: without the list it cannot be built."""
    if config.words("layer_types") is None and config.numbers("full_attn_idxs") is None:
        raise unreadable("layer_types", f"{config.num_layers} kinds of layers", "nothing")
    return lfm2_caches(config)


def lfm2_moe_block(config: Config, layer: int) -> list[Weight]:
    """Dense MLPs first, of the width as it is named; the experts' bias is no parameter."""
    attending = attends(lfm2_kinds(config)[layer])
    dense = layer < config.number("num_dense_layers", 2)
    number, width = config.count("num_experts"), config.count("moe_intermediate_size")
    return [
        *(attention(config, layer, qk_norm=True) if attending else short_conv(config, layer)),
        *(
            mlp(config, layer, config.intermediate_size)
            if dense
            else routed(config, layer, number, width)
        ),
        *norms(config, layer),
    ]


FAMILIES = {
    "lfm2": Family(caches=lfm2_caches, weights=partial(decoder, block=lfm2_block)),
    "lfm2_moe": Family(caches=lfm2_moe_caches, weights=partial(decoder, block=lfm2_moe_block)),
}
