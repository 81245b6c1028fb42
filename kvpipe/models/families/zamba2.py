"""Zamba2 (arXiv:2411.15242): states everywhere, and one attention block for all hybrid layers."""

from __future__ import annotations

from dataclasses import replace

from kvpipe.models.base import CacheGeometry
from kvpipe.models.families.base import Config, Family, Weight, unreadable
from kvpipe.models.families.caches import attention_cache, state_cache
from kvpipe.models.families.hybrid import (
    attends,
    kinds,
    mamba2_hybrid_caches,
    mixer2,
    once_a_file,
)
from kvpipe.models.families.weights import decoder, linear, mlp, norms, qkv, vector


@once_a_file
def zamba2_kinds(config: Config) -> list[str]:
    hybrid = set(config.numbers("hybrid_layer_ids") or (6, 12, 18, 24, 30, 36, 42, 47, 51))
    return kinds(config, ["hybrid" if i in hybrid else "mamba" for i in range(config.num_layers)])


def zamba2_sizes(config: Config) -> Config:
    """Heads of attention are twice as wide, those of Mamba are what its channels leave."""
    inner, heads = config.count("mamba_expand") * config.hidden_size, config.count("n_mamba_heads")
    derived = {
        "head_dim": config.count("attention_head_dim", 2 * config.hidden_size // config.num_heads),
        "mamba_n_heads": heads,
        "mamba_d_head": config.count("mamba_headdim", inner // heads),
        "mamba_n_groups": config.count("mamba_ngroups"),
    }
    return config.having(**derived)


def zamba2_caches(config: Config) -> list[CacheGeometry]:
    """In the order and by the names that vLLM registers (models/zamba2.py, 0.28.0 to 0.32.0): first
    the shared block, with a cache for every layer that runs it; states are counted on."""
    sized, words = zamba2_sizes(config), zamba2_kinds(config)
    attending = [layer for layer, kind in enumerate(words) if attends(kind)]
    shared = [
        replace(attention_cache(sized, layer), name=f"model.attn.{number}")
        for number, layer in enumerate(attending)
    ]
    states = [
        replace(cache, name=f"{len(attending) + cache.layer}.mixer")
        for cache in mamba2_hybrid_caches(sized, words)
        if cache.name.endswith(".mamba")
    ]
    return [*shared, *states]


def zamba2_block(config: Config, layer: int) -> list[Weight]:
    """A hybrid layer adds a projection and, for each shared block, an adapter of its MLP."""
    hidden, rank = config.hidden_size, config.count("adapter_rank")
    width = config.count("intermediate_size", 4 * config.hidden_size)
    own = [*mixer2(zamba2_sizes(config), layer), *norms(config, layer, 1)]
    if not attends(zamba2_kinds(config)[layer]):
        return own
    return [
        *own,
        *linear("linear", hidden, hidden, layer=layer),
        *linear("adapter.0", rank, hidden, layer=layer),
        *linear("adapter.1", 2 * width, rank, layer=layer),
    ]


def zamba2_shared(config: Config) -> list[Weight]:
    """The block of all hybrid layers; its input is the hidden state beside the embedding."""
    hidden, width = config.hidden_size, config.count("intermediate_size", 4 * config.hidden_size)
    sized = zamba2_sizes(config)
    return [
        *qkv(sized.having(hidden_size=2 * hidden), 0),
        *linear("shared.o_proj", hidden, sized.num_heads * sized.head_size, layer=0, split=1),
        *mlp(config, 0, width, name="shared.mlp"),
        vector("shared.input_layernorm", 2 * hidden, layer=0),
        vector("shared.pre_ff_layernorm", hidden, layer=0),
    ]


def zamba2_weights(config: Config) -> list[Weight]:
    if config.count("num_mem_blocks") != 1 or config.flag("use_shared_attention_adapter"):
        raise unreadable(
            "num_mem_blocks", "1 without attention adapters", config.count("num_mem_blocks")
        )
    return [*decoder(config, zamba2_block), *zamba2_shared(config)]


def zamba_kinds(config: Config) -> list[str]:
    """Zamba 1: the third layer, and then one in a period, attends."""
    period, offset = config.count("attn_layer_period"), config.number("attn_layer_offset")
    later = [i % period == offset for i in range(config.num_layers - 3)]
    attending = [False, False, True, *later][: config.num_layers]
    return kinds(config, ["hybrid" if is_one else "mamba" for is_one in attending])


def zamba_caches(config: Config) -> list[CacheGeometry]:
    """Mamba 1 in heads; attention heads twice as wide as the hidden size gives."""
    channels, heads = (
        config.count("mamba_expand") * config.hidden_size,
        config.count("n_mamba_heads"),
    )
    shapes = {
        "conv": [channels, config.count("mamba_d_conv") - 1],
        "ssm": [heads, channels // heads, config.count("mamba_d_state")],
    }
    width = config.count("attention_hidden_size", 2 * config.hidden_size) // config.num_heads
    sized = config.having(head_dim=config.count("attention_head_dim", width))
    caches = []
    for layer, kind in enumerate(zamba_kinds(config)):
        caches += [attention_cache(sized, layer)] if attends(kind) else []
        caches += [state_cache(layer, "mamba", "mamba1", shapes)]
    return caches


FAMILIES = {
    "zamba": Family(caches=zamba_caches),
    "zamba2": Family(caches=zamba2_caches, weights=zamba2_weights),
}
