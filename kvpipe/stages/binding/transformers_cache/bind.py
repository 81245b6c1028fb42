"""bind(model, plan) and layers_of(model): the two calls that a user makes."""

from __future__ import annotations

from typing import Any

from kvpipe.backends.base import Backend
from kvpipe.cache.buffers import KVBuffers
from kvpipe.cache.plan import Plan
from kvpipe.errors import ConfigError, Problem
from kvpipe.models.probe.as_transformers import cache_layers, needs_of
from kvpipe.specs.base import CacheLayer
from kvpipe.stages.binding.transformers_cache.bound import allocate, backend_of, bind_needs
from kvpipe.stages.binding.transformers_cache.match import PlannedCache, match_layers
from kvpipe.stages.binding.transformers_cache.trial import choose_mode as choose_mode

MODES = ("gather", "direct", "auto")


def layers_of(model: Any, block_size: int = 16, cache_dtype: str | None = None) -> list[CacheLayer]:
    """What `model` (a transformers model, or its config) caches, as layers to plan.

    block_size: tokens. cache_dtype: storage of K and V, a key of DTYPE_BYTES (None: as the model's
    own). A sharing layer carries its target's name."""
    return cache_layers(needs_of(model), block_size, cache_dtype)


def bind(
    model: Any,
    plan: Plan,
    *,
    mode: str = "gather",
    backend: Backend | None = None,
    buffers: KVBuffers | None = None,
    rank: int = 0,
    prefix_caching: bool = False,
    max_num_seqs: int = 256,
    shuffle: int | None = None,
) -> Any:
    """A cache for `model.generate`, over the pages of one rank of the plan; `cache.bound` is the
    BoundModel, whose `unbind()` takes the hooks off the model.

    mode: gather, direct, or auto (direct where the model can, which is tried). backend: what owns
    the memory (host on a CPU with a compiler, else torch on the model's device). buffers: memory
    that is allocated already.
    max_num_seqs: rows of a batch, at most. shuffle: seed of a random order in which block ids are
    handed out. ConfigError names what the plan and the model disagree on."""
    if mode not in MODES:
        raise ConfigError(Problem("mode", f"one of {', '.join(MODES)}", f"'{mode}'"))
    needs, planned = needs_of(model), PlannedCache.of(plan, rank)
    match_layers(needs, planned)  # before anything is allocated
    return bind_needs(
        model,
        needs,
        planned,
        mode=choose_mode(model, needs, mode, any(planned.config.scratch)),
        buffers=buffers or allocate(planned, backend or backend_of(model)),
        prefix_caching=prefix_caching,
        max_num_seqs=max_num_seqs,
        shuffle=shuffle,
    )
