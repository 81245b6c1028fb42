"""Real transformers models generating through a planned, allocated, block-managed cache.

    layers = layers_of(model, block_size=16)
    made = kvpipe.plan(layers, limits, memory)
    cache = bind(model, made)
    model.generate(**inputs, cache=cache)              # past_key_values= up to transformers 5.23

The model is not changed: its cache layers write through slot mapping into pages and return what
they gather from them (mode `gather`, right for every model that `bind` takes), or a registered
attention function reads the pages through block tables (mode `direct`, for models whose attention
can be replaced). A module that is no transformers model: `kvpipe.integrations.own_module`.
"""

from __future__ import annotations

from kvpipe.models.probe.releases import cache_keyword as cache_keyword
from kvpipe.stages.binding.transformers_cache.bind import bind as bind
from kvpipe.stages.binding.transformers_cache.bind import layers_of as layers_of
from kvpipe.stages.binding.transformers_cache.bound import BoundModel as BoundModel

__all__ = ["BoundModel", "bind", "cache_keyword", "layers_of"]
