"""Laguna: layers of one model differ in their query heads; K/V heads are one number."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from kvpipe.models.families.base import Config, Family, Weight
from kvpipe.models.families.blocks import Block, Experts
from kvpipe.models.families.caches import standard_caches
from kvpipe.models.families.weights import decoder

HEADS = "num_attention_heads_per_layer"
BLOCK = Block(
    bias="attention_bias",
    qk_norm="head",
    experts=Experts(shared_width="shared_expert_intermediate_size", first=1, bias=1),
)


def laguna_block(config: Config, layer: int) -> list[Weight]:
    """gating: true or "per-head", a number a head; anything else, one a number of every head."""
    heads = config.numbers(HEADS)
    if heads is not None and len(heads) != config.num_layers:
        raise config.wrong(HEADS, f"{config.num_layers} entries (num_hidden_layers)", len(heads))
    own = config.having(num_attention_heads=heads[layer]) if heads else config
    a_head = config.get("gating", True) in (True, "per-head")
    return replace(BLOCK, gate="head" if a_head else "whole")(own, layer)


FAMILIES = {
    "laguna": Family(caches=standard_caches, weights=partial(decoder, block=laguna_block)),
}
