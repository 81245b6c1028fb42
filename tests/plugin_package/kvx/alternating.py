"""model_type kvx_alternating: every other layer is an MLP alone; Llama's names for the sizes."""

from kvpipe.models.families.base import Family
from kvpipe.models.families.caches import attention_caches
from kvpipe.models.families.weights import attention, decoder, mlp, norms


def caches(config):
    return [cache for cache in attention_caches(config) if cache.layer % 2 == 0]


def block(config, layer):
    if layer % 2:
        return [*mlp(config, layer, config.intermediate_size), *norms(config, layer, 1)]
    return [*attention(config, layer), *norms(config, layer, 1)]


def weights(config):
    return decoder(config, block=block)


ALTERNATING = Family(caches=caches, weights=weights, aliases={"num_hidden_layers": "depth"})
