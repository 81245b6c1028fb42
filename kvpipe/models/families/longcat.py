"""LongCat-Flash (arXiv:2509.01322): two latent attentions and two MLPs a layer, with experts beside
them of which some are the identity."""

from __future__ import annotations

from functools import partial

from kvpipe.models.base import CacheGeometry
from kvpipe.models.families.base import Config, Family, Weight
from kvpipe.models.families.deepseek import latent_attention, latent_cache
from kvpipe.models.families.weights import decoder, mlp, norms, router, vector

HALVES = (0, 1)


def longcat_caches(config: Config) -> list[CacheGeometry]:
    return [
        latent_cache(config, i, f"self_attn_{half}.attn")
        for i in range(config.num_layers)
        for half in HALVES
    ]


def longcat_block(config: Config, layer: int) -> list[Weight]:
    number, identities = config.count("n_routed_experts"), config.number("zero_expert_num")
    gate = router(config, layer, number + identities, name="mlp.router.classifier")
    if config.flag("router_bias"):
        gate.append(vector("mlp.router.classifier.bias", number + identities, layer=layer))
    return [
        *(w for _ in HALVES for w in latent_attention(config, layer)),
        *(w for _ in HALVES for w in mlp(config, layer, config.count("ffn_hidden_size"))),
        *gate,
        *mlp(config, layer, config.count("expert_ffn_hidden_size"), name="experts", count=number),
        *norms(config, layer, 4),
    ]


FAMILIES = {
    "longcat_flash": Family(
        caches=longcat_caches,
        weights=partial(decoder, block=longcat_block),
        aliases={"num_hidden_layers": "num_layers"},
    ),
}
