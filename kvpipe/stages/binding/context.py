"""`binding=context`: layers of a forward context get their caches, as an engine does it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from kvpipe.backends.base import Backend
from kvpipe.cache.buffers import KVBuffers
from kvpipe.errors import ConfigError, Problem, did_you_mean
from kvpipe.stages.binding._options import VerifyOptions
from kvpipe.stages.binding._verify import verify
from kvpipe.stages.binding.base import AttentionLayer, Binding, BindingRequest, BoundCache
from kvpipe.stages.binding.order import (
    add_kv_sharing_layers,
    check_one_cache_per_index,
    runner_order,
)


class ContextBinding(Binding):
    class Options(BaseModel):
        """num_attn_module: attention modules a layer. one_cache_per_index: refuse several caches of
        one layer index."""

        model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
        name: str
        num_attn_module: int = Field(ge=1)
        one_cache_per_index: bool
        verify: VerifyOptions

    def __init__(self, options: Options) -> None:
        self.options = options

    def run(self, request: BindingRequest, backend: Backend) -> BoundCache:
        """ConfigError for an unknown layer or target, a layer bound twice, a missing buffer."""
        shared = dict(request.buffers.addresses.shared_layers)
        owners = [name for group in request.config.groups for name in group.layer_names]
        groups = add_kv_sharing_layers(
            [group.layer_names for group in request.config.groups], shared.items()
        )
        _check_names(request.layer_names, owners, shared)
        modules = self.options.num_attn_module
        if self.options.one_cache_per_index:
            check_one_cache_per_index(request.layer_names, modules)
        context = _context(request)
        for name in request.layer_names:
            bind_layer(context, name, request.buffers)
        order = runner_order(request.layer_names, modules)
        report = verify(
            {name: context[name] for name in request.layer_names},
            request.config,
            request.buffers,
            request.limits,
            self.options.verify,
        )
        prefill, notes = _prefill_layers(request, shared)
        return BoundCache(
            forward_context=context,
            groups=tuple(map(tuple, groups)),
            runner_kv_caches=tuple((name, context[name].kv_cache) for name in order),
            runner_only=tuple(shared),
            prefill_layers=prefill,
            buffers=request.buffers,
            verify=report,
            notes=notes,
        )


def bind_layer(context: Mapping[str, AttentionLayer], name: str, buffers: KVBuffers) -> None:
    """Gives one layer its cache."""
    if name not in context:
        raise ConfigError(
            Problem("binding", "a layer of the model", f"'{name}'", did_you_mean(name, context))
        )
    layer = context[name]
    if layer.bound:
        raise ConfigError(Problem("binding", f"{name} to be bound once", "a second cache for it"))
    try:
        views = buffers.addresses.of_layer(name).views
    except KeyError as error:
        raise ConfigError(
            Problem("binding", f"a buffer for {name}", "none in the allocation")
        ) from error
    if any(view.buffer >= len(buffers.buffers) for view in views):
        raise ConfigError(Problem("binding", f"a buffer for {name}", "an allocation without it"))
    layer.views = views
    layer.kv_cache = _cache(buffers, name)


def _cache(buffers: KVBuffers, name: str) -> Any:
    """The backend's tensor, or the arrays where no one tensor is it; None without memory."""
    native = buffers.native(name)
    return native if native is not None else tuple(buffers.arrays(name).values()) or None


def _context(request: BindingRequest) -> Mapping[str, AttentionLayer]:
    if request.forward_context is not None:
        return request.forward_context
    return {name: AttentionLayer(name=name) for name in request.layer_names}


def _check_names(
    layer_names: tuple[str, ...], owners: Iterable[str], shared: Mapping[str, str]
) -> None:
    """Every layer of the plan is the model's, and every layer of the model is in the plan, once."""
    twice = [name for name, count in Counter(layer_names).items() if count > 1]
    if twice:
        raise ConfigError(Problem("binding", f"{twice[0]} to be bound once", "it is listed twice"))
    planned = {*owners, *shared}
    for name in planned.difference(layer_names):
        raise ConfigError(
            Problem("binding", "a layer of the model", f"'{name}'", did_you_mean(name, layer_names))
        )
    for name in layer_names:
        if name not in planned:
            raise ConfigError(Problem("binding", f"a buffer for {name}", "none in the plan"))


def _prefill_layers(
    request: BindingRequest, shared: Mapping[str, str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """With `kv_sharing_fast_prefill` sharing layers need no slots in prefill."""
    if not request.kv_sharing_fast_prefill:
        return request.layer_names, ()
    if not shared:
        note = "cache.kv_sharing_fast_prefill has no effect: no layer shares another's cache"
        return request.layer_names, (note,)
    need = tuple(name for name in request.layer_names if name not in shared)
    note = f"fast prefill: {len(need)} of {len(request.layer_names)} layers need slots in prefill"
    return need, (note,)


PLUGIN = ContextBinding
