"""Jamba (arXiv:2403.19887): Mamba 1, one attention layer in eight, experts in every second."""

from __future__ import annotations

from functools import partial

from kvpipe.models.base import CacheGeometry
from kvpipe.models.families.base import Config, Family, Weight
from kvpipe.models.families.caches import attention_cache, state_cache
from kvpipe.models.families.experts import routed
from kvpipe.models.families.hybrid import (
    attends,
    kinds,
    once_a_file,
)
from kvpipe.models.families.states import mamba1_mixer, time_steps
from kvpipe.models.families.weights import attention, decoder, mlp, norm, norms


@once_a_file
def jamba_kinds(config: Config) -> list[str]:
    period, offset = config.count("attn_layer_period"), config.number("attn_layer_offset")
    derived = ["attention" if i % period == offset else "mamba" for i in range(config.num_layers)]
    return kinds(config, derived)


def jamba_sizes(config: Config) -> tuple[int, int, int, int]:
    channels = config.count("mamba_expand") * config.hidden_size
    steps = time_steps(config, "mamba_dt_rank")
    return channels, config.count("mamba_d_state"), config.count("mamba_d_conv"), steps


def jamba_caches(config: Config) -> list[CacheGeometry]:
    channels, state, kernel, _ = jamba_sizes(config)
    shapes = {"conv": [channels, kernel - 1], "ssm": [channels, state]}
    return [
        attention_cache(config, i) if attends(kind) else state_cache(i, "mamba", "mamba1", shapes)
        for i, kind in enumerate(jamba_kinds(config))
    ]


def jamba_mixer(config: Config, layer: int) -> list[Weight]:
    """Mamba 1 with norms of the time step, B and C."""
    _, state, _, rank = sizes = jamba_sizes(config)
    conv_bias = config.flag("mamba_conv_bias", True)
    named = config.having(use_bias=config.flag("mamba_proj_bias"), use_conv_bias=conv_bias)
    widths = {"dt": rank, "b": state, "c": state}
    return [
        *mamba1_mixer(named, layer, sizes, name="mamba"),
        *(n for part, width in widths.items() for n in norm(f"{part}_norm", width, layer=layer)),
    ]


def jamba_block(config: Config, layer: int) -> list[Weight]:
    period, offset = config.count("expert_layer_period"), config.number("expert_layer_offset")
    experts, width = config.count("num_experts"), config.intermediate_size
    sparse = experts > 1 and layer % period == offset
    return [
        *(
            attention(config, layer)
            if attends(jamba_kinds(config)[layer])
            else jamba_mixer(config, layer)
        ),
        *(routed(config, layer, experts, width) if sparse else mlp(config, layer, width)),
        *norms(config, layer),
    ]


FAMILIES = {
    "jamba": Family(caches=jamba_caches, weights=partial(decoder, block=jamba_block)),
}
