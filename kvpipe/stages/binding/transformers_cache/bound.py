"""The model's layers meet the plan's, memory is allocated, a cache made."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from kvpipe.backends.base import Backend
from kvpipe.blocks import BlockManager
from kvpipe.cache.buffers import KVBuffers
from kvpipe.errors import ConfigError, KvpipeError, Problem
from kvpipe.models.probe.needs import LayerNeeds
from kvpipe.stages.allocation.addresses import address_map
from kvpipe.stages.allocation.base import AllocationRequest
from kvpipe.stages.allocation.buffers import Buffers
from kvpipe.stages.binding.served_requests import shuffle_free_blocks
from kvpipe.stages.binding.transformers_cache.match import LayerMatch, PlannedCache, match_layers


@dataclass(frozen=True, kw_only=True)
class Mode:
    """name: gather or direct. reason: why not direct, where it was not. no_padding: why a batch
    with padding is refused ("" where it is right)."""

    name: str
    reason: str = ""
    no_padding: str = ""


@dataclass(frozen=True)
class BoundModel:
    """mode: gather or direct; reason: why not direct where `auto` chose gather ("" otherwise)."""

    mode: str
    reason: str
    store: Any
    buffers: KVBuffers
    manager: BlockManager
    hooks: Any
    restore: Callable[[], object]

    def unbind(self) -> None:
        """The model as it was before; the memory goes with the last reference to the cache."""
        self.hooks.remove()
        self.restore()


def bind_needs(
    model: Any,
    needs: Sequence[LayerNeeds],
    planned: PlannedCache,
    *,
    mode: Mode,
    buffers: KVBuffers | None = None,
    prefix_caching: bool = False,
    max_num_seqs: int = 256,
    shuffle: int | None = None,
) -> Any:
    """A cache for `model.generate` over the pages of `planned`, in a mode that is known to work."""
    from kvpipe.models.probe.read import decoder_of
    from kvpipe.stages.binding.transformers_cache._cache import (
        PagedCache,
        PagedCrossCache,
        PagedEncoderDecoderCache,
        StepHooks,
    )
    from kvpipe.stages.binding.transformers_cache._direct import ACTIVE
    from kvpipe.stages.binding.transformers_cache._store import PagedStore

    matches = match_layers(needs, planned)
    _refuse_direct(planned, mode.name)
    buffers = buffers or allocate(planned, backend_of(model))
    manager = _manager(planned, prefix_caching, max_num_seqs, shuffle)
    store = PagedStore(manager, buffers, prefix_caching)
    layers = [_layer(store, match, mode.name == "direct") for match in matches]
    store.shared = {n.index: layers[n.shares_with] for n in needs if n.shares_with is not None}
    cache: Any = PagedCache(store, layers)
    decoder = decoder_of(model)
    hooks = StepHooks(model, decoder, cache, ACTIVE.set, mode.no_padding)
    if any(match.cross for match in matches):
        crossing = PagedCrossCache(layers=[_cross(store, match) for match in matches])
        cache = PagedEncoderDecoderCache(cache, crossing)
    cache.bound = BoundModel(
        mode=mode.name,
        reason=mode.reason,
        store=store,
        buffers=buffers,
        manager=manager,
        hooks=hooks,
        restore=_changed(model, decoder, mode.name == "direct"),
    )
    return cache


def _manager(
    planned: PlannedCache, prefix_caching: bool, max_num_seqs: int, shuffle: int | None
) -> BlockManager:
    if prefix_caching and any(planned.config.scratch):
        raise ConfigError(
            Problem(
                "prefix_caching",
                "false with a plan that uses scratch, in which no prefix is found",
                "true",
                "plan without scratch",
            )
        )
    manager = BlockManager(
        planned.config,
        planned.limits,
        max_num_requests=max_num_seqs,
        prefix_caching=prefix_caching,
        shared_layers=planned.shared_layers,
    )
    _refuse_lost_prefixes(manager, prefix_caching)
    if shuffle is not None:
        shuffle_free_blocks(manager, shuffle)
    return manager


def _changed(model: Any, decoder: Any, direct: bool) -> Callable[[], object]:
    """Make the model use the cache that it is given; returns how to undo it."""
    give_up = use_direct(decoder) if direct else lambda: None
    options = getattr(model, "generation_config", None)
    if options is None or options.use_cache is not False:
        return give_up
    options.use_cache = True  # MPT's config says false: each step would compute every token anew

    def restore() -> None:
        options.use_cache = False
        give_up()

    return restore


# Decoder -> its own attention implementation, and how many direct caches it is bound to.
_DIRECT: WeakKeyDictionary[Any, tuple[str, int]] = WeakKeyDictionary()


def use_direct(decoder: Any) -> Callable[[], object]:
    """Switch the decoder's attention function (an encoder's as well where they share a config)
    until the last direct cache is unbound; returns how to give up this one."""
    from kvpipe.stages.binding.transformers_cache._direct import NAME, register

    before, users = _DIRECT.get(decoder, (decoder.config._attn_implementation, 0))
    register()
    decoder.set_attn_implementation(NAME)
    _DIRECT[decoder] = (before, users + 1)

    held = [True]

    def give_up() -> None:
        if not held:
            return
        held.clear()
        own, now = _DIRECT.pop(decoder)
        if now > 1:
            _DIRECT[decoder] = (own, now - 1)
        else:
            decoder.set_attn_implementation(own)

    return give_up


def allocate(planned: PlannedCache, backend: Backend) -> KVBuffers:
    """Addresses and memory, as the pipeline's own allocation stage makes them."""
    where = address_map(planned.config, planned.shared_layers)
    options = Buffers.Options(name="buffers", init="zero")
    request = AllocationRequest(config=planned.config, addresses=where)
    return Buffers(options).run(request, backend)


def backend_of(model: Any) -> Backend:
    """The kernels where the model is on a CPU and they can be compiled here, else torch."""
    from kvpipe.backends.host import HostBackend
    from kvpipe.backends.torch_ import TorchBackend

    if model.device.type == "cpu" and not HostBackend.problems():
        with suppress(KvpipeError):  # a cache folder that is not ours, a compiler that fails
            return HostBackend()
    return TorchBackend(TorchBackend.Options(name="torch", device=str(model.device)))


def _refuse_direct(planned: PlannedCache, mode: str) -> None:
    if mode == "direct" and any(planned.config.scratch):
        raise ConfigError(
            Problem(
                "mode",
                "gather, which reads chunks through scratch",
                "direct, with a plan that uses scratch",
                "mode=gather, or plan without",
            )
        )


def _refuse_lost_prefixes(manager: BlockManager, asked: bool) -> None:
    if asked and not manager.prefix_caching:
        kinds = [t.spec.kind for t in manager.tables if not t.caches_prefixes]
        raise ConfigError(
            Problem(
                "prefix_caching",
                "groups that can all serve a prefix",
                f"a group of kind {kinds[0]}" if kinds else "a plan without groups",
                "prefix_caching=False",
            )
        )


# --- one layer ---------------------------------------------------------------------------------
def _layer(store: Any, match: LayerMatch, direct: bool) -> Any:
    from transformers.cache_utils import DummyLayer

    from kvpipe.stages.binding.transformers_cache._states import PagedHybridLayer

    attention = _attention(store, match, direct) if match.attention else None
    state = _state(store, match) if match.state else None
    if attention is not None and state is not None:
        return PagedHybridLayer(state, attention)
    return attention or state or DummyLayer()


def _attention(store: Any, match: LayerMatch, direct: bool) -> Any:
    from kvpipe.stages.binding.transformers_cache._layers import PagedArrays, PagedAttentionLayer

    need = match.needs.attention
    assert need is not None and match.attention is not None
    arrays = PagedArrays(store, match.attention, (need.head_size, need.head_size_v))
    scratch = store.manager.scratch.groups[arrays.group]
    if scratch is None:
        return PagedAttentionLayer(arrays, need.dtype, need.window, direct)
    from kvpipe.stages.binding.transformers_cache._scratch import ScratchedArrays

    sizes = (need.head_size, need.head_size_v)
    scratched = ScratchedArrays(store, match.attention, sizes, scratch)
    return PagedAttentionLayer(arrays, need.dtype, need.window, direct, scratched)


def _cross(store: Any, match: LayerMatch) -> Any:
    from transformers.cache_utils import DummyLayer

    from kvpipe.stages.binding.transformers_cache._layers import PagedArrays, PagedCrossLayer

    need = match.needs.cross
    if need is None or match.cross is None:
        return DummyLayer()
    arrays = PagedArrays(store, match.cross, (need.head_size, need.head_size_v))
    return PagedCrossLayer(arrays, need.dtype)


def _state(store: Any, match: LayerMatch) -> Any:
    import torch

    from kvpipe.stages.binding.transformers_cache._states import PagedStateLayer, StateTensors

    assert match.state is not None
    pages: Mapping[str, Any] = store.buffers.arrays(match.state)
    kinds: dict[bool, list[tuple[Any, Any]]] = {True: [], False: []}
    for state, array in zip(match.needs.states, pages.values(), strict=True):
        kinds[state.name.startswith("conv")].append((array, getattr(torch, state.dtype)))
    conv, recurrent = (
        StateTensors(store, match.state, [a for a, _ in each], [d for _, d in each])
        for each in (kinds[True], kinds[False])
    )
    return PagedStateLayer(conv, recurrent, match.needs.num_states)
