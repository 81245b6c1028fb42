"""Command R7B and its kin, whose windows newer engines read as one token wider than the file."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from kvpipe.models.base import CacheGeometry
from kvpipe.models.families.base import Config, Family, Weight
from kvpipe.models.families.blocks import Block, Experts
from kvpipe.models.families.caches import FULL, SLIDING, standard_caches
from kvpipe.models.families.llama import cohere2, every_fourth_full_caches
from kvpipe.models.families.weights import decoder

# vLLM's commandr.py and cohere2_moe.py: not in 0.28, there in 0.32. What lies between was not read;
# a token more is never too little.
ONE_TOKEN_MORE_SINCE = "0.29.0"


def one_token_more(caches: list[CacheGeometry]) -> list[CacheGeometry]:
    """A window layer sees `sliding_window` tokens before its own."""
    return [
        replace(c, since={ONE_TOKEN_MORE_SINCE: {"sliding_window": c.fields["sliding_window"] + 1}})
        if c.spec == "sliding"
        else c
        for c in caches
    ]


def cohere2_caches(config: Config) -> list[CacheGeometry]:
    return one_token_more(every_fourth_full_caches(config))


def cohere2_moe_caches(config: Config) -> list[CacheGeometry]:
    return one_token_more(standard_caches(dense_first(config)))


def dense_first(config: Config) -> Config:
    """The first layers, where they have no experts, have a round of windows of their own."""
    dense = min(config.number("first_k_dense_replace"), config.num_layers)
    if config.words("layer_types") is not None or not dense:
        return config
    own = config.count("prefix_dense_sliding_window_pattern", 1)
    every = config.count("sliding_window_pattern", 4)
    rounds = [(i, own) for i in range(dense)]
    rounds += [(i, every) for i in range(config.num_layers - dense)]
    return config.having(layer_types=[SLIDING if (i + 1) % n else FULL for i, n in rounds])


EXPERTS = Experts(
    width="intermediate_size", shared="num_shared_experts", first="first_k_dense_replace"
)
BLOCK = Block(bias="attention_bias", norms=1, experts=EXPERTS)


def cohere2_moe_block(config: Config, layer: int) -> list[Weight]:
    """Dense layers in front may be of a width of their own."""
    own = config.number("prefix_dense_intermediate_size")
    if own and not EXPERTS.has(config, layer):
        return BLOCK(config.having(intermediate_size=own), layer)
    return BLOCK(config, layer)


FAMILIES = {
    "cohere2": Family(caches=cohere2_caches, weights=cohere2),
    "cohere2_moe": Family(
        caches=cohere2_moe_caches, weights=partial(decoder, block=cohere2_moe_block)
    ),
}
