"""A torch.nn.Module of your own over a planned, allocated, block-managed cache.

    layers = layers_of(module, block_size=16)      # module.kv_cache_layers(16), or a list by hand
    made = kvpipe.plan(layers, limits, memory)
    cache = bind(made, device="cpu")
    cache.add("a")                                 # a request
    cache.step({"a": 5})                           # room for five tokens of it
    cache.write("layers.0", k, v)                  # [T, H, D] each: into their slots
    seen = cache.gather("layers.0", "a")           # seen.keys [n, H, D], seen.values, seen.first

Attention may as well read the pages where they lie: `pages`, `block_table` and `seq_lens` are what
a paged attention kernel takes. T new tokens of a step, request after request; R requests; H KV
heads; D head size; N tokens of a block.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import signature
from typing import Any, Protocol, runtime_checkable

import numpy as np

from kvpipe.backends.base import Backend
from kvpipe.blocks import BlockManager
from kvpipe.blocks.transfer import BlockMover
from kvpipe.cache.addresses import LayerAddresses
from kvpipe.cache.buffers import KVBuffers
from kvpipe.cache.plan import Plan
from kvpipe.cache.scratch import refuse_scratch
from kvpipe.errors import ConfigError, Problem
from kvpipe.layouts.kernel_ids import KernelIds
from kvpipe.specs.base import CacheLayer
from kvpipe.stages.binding.transformers_cache.bound import allocate
from kvpipe.stages.binding.transformers_cache.match import PlannedCache

__all__ = ["KVCacheModule", "OwnCache", "Seen", "bind", "layers_of"]


@runtime_checkable
class KVCacheModule(Protocol):
    """What a module says of itself: one CacheLayer for each layer that keeps K and V, under the
    name by which its attention will ask for it."""

    def kv_cache_layers(self, block_size: int) -> Sequence[CacheLayer]: ...


def layers_of(module: Any, block_size: int = 16) -> list[CacheLayer]:
    """What the module says that it caches. block_size: tokens. ConfigError where it says nothing,
    or something else than CacheLayers."""
    kind = type(module).__name__
    if not isinstance(module, KVCacheModule):
        expected = "a module with kv_cache_layers(block_size)"
        raise ConfigError(Problem("module", expected, f"{kind}, which has none", _KNOB))
    layers, got = _listed(module.kv_cache_layers, block_size)
    if got := got or _amiss(layers):
        expected = "a method of one argument, block_size, that lists CacheLayers of different names"
        raise ConfigError(Problem(f"{kind}.kv_cache_layers", expected, got, _KNOB))
    return layers


_KNOB = "define it, or write the list of CacheLayers yourself: docs/own_model.md"


def _listed(method: Any, block_size: int) -> tuple[list[Any], str]:
    """What the module answers, or what it has instead of an answer."""
    try:
        signature(method).bind(block_size)
    except TypeError as error:  # no method, or one of other arguments
        return [], f"{type(method).__name__}: {error}"
    answer = method(block_size)
    return (list(answer), "") if isinstance(answer, Iterable) else ([], type(answer).__name__)


def _amiss(layers: list[Any]) -> str:
    if wrong := [layer for layer in layers if not isinstance(layer, CacheLayer)]:
        return type(wrong[0]).__name__
    names = [layer.name for layer in layers]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        return f"'{twice[0]}' twice"
    unknown = [layer.shares_with for layer in layers if layer.shares_with not in (None, *names)]
    if unknown:
        return f"one that shares with '{unknown[0]}', which is not there"
    return "" if names else "none"


def bind(
    plan: Plan,
    *,
    device: str = "cpu",
    backend: Backend | None = None,
    buffers: KVBuffers | None = None,
    rank: int = 0,
    max_num_seqs: int = 256,
    prefix_caching: bool = False,
) -> OwnCache:
    """Memory for one rank of the plan, and who holds which block of it. backend: what owns the
    memory (torch on `device`). buffers: memory that is allocated already. max_num_seqs: requests
    at a time, at most."""
    from kvpipe.backends.torch_ import TorchBackend

    refuse_scratch(plan.ranks[rank].config.scratch, "a module of one's own")
    if buffers is None:
        owner = backend or TorchBackend(TorchBackend.Options(name="torch", device=device))
        buffers = allocate(PlannedCache.of(plan, rank), owner)
    options = {"max_num_requests": max_num_seqs, "prefix_caching": prefix_caching}
    return OwnCache(manager=BlockManager.from_plan(plan, rank, **options), buffers=buffers)


@dataclass(frozen=True, kw_only=True)
class Seen:
    """K and V of tokens [first, first + n) of a request, [n, H, D] each (a latent row alone is
    `keys`); first is above 0 where a window has passed and blocks were freed."""

    first: int
    keys: Any
    values: Any = None


@dataclass(frozen=True, kw_only=True)
class OwnCache:
    """manager: fork, swap and prefix statistics are its own. requests: of the step, in order."""

    manager: BlockManager
    buffers: KVBuffers
    requests: list[Hashable] = field(default_factory=list)

    # --- life of a request -------------------------------------------------------------------
    def add(self, request: Hashable, prompt: Sequence[int] | None = None) -> int:
        """A new request; its first tokens that are cached already (with prefix caching)."""
        return self.manager.add_request(request, prompt)

    def free(self, request: Hashable) -> None:
        self.manager.free(request)

    def step(
        self,
        new_tokens: Mapping[Hashable, int],
        token_ids: Mapping[Hashable, Sequence[int]] | None = None,
    ) -> None:
        """Room for the next tokens of some requests. token_ids: those beyond the prompt, needed
        with prefix caching. OutOfBlocks: the requests before have theirs."""
        self.manager.begin_step()
        self.requests[:] = new_tokens
        mover = BlockMover(self.buffers)
        for request, count in new_tokens.items():
            ids = (token_ids or {}).get(request, ())
            mover.copy(self.manager.allocate(request, count, token_ids=ids))

    # --- K and V -----------------------------------------------------------------------------
    def write(self, layer: str, *new: Any) -> None:
        """The step's K and V (of latent attention its one row), [T, H, D], into their slots."""
        address, backend = self._address(layer), self.buffers.backend
        slots = self.slot_mapping(layer)
        self._check(address, new, len(slots))
        for view, rows in zip(address.views, new, strict=True):
            backend.write_kv(self.buffers.buffers[view.buffer], view, rows.contiguous(), slots)

    def gather(self, layer: str, request: Hashable) -> Seen:
        """What a request has stored in a layer, this step's tokens included."""
        address, backend = self._address(layer), self.buffers.backend
        size = self.manager.config.groups[address.group].block_spec.block_size
        ids = self.manager.block_table(layer, [request])[0]
        length = self.manager.num_tokens(request)
        first = int((ids > 0).argmax()) * size
        kernel = self._kernel_ids(address)
        table = self._tensor(kernel.table(ids, np.arange(kernel.held, dtype=ids.dtype)))
        buffers, rows = self.buffers.buffers, kernel.table_rows
        found = [
            backend.gather(buffers[view.buffer], view, table, length, rows)[first:]
            for view in address.views
        ]
        return Seen(first=first, keys=found[0], values=found[1] if len(found) > 1 else None)

    # --- what a paged attention kernel takes -------------------------------------------------
    def pages(self, layer: str) -> tuple[Any, ...]:
        """Views of the memory, [B, N, H, D]: K and V, a latent row, or states [B, ...]."""
        return tuple(self.buffers.arrays(layer).values())

    def slot_mapping(self, layer: str) -> Any:
        """[T] int64: kernel block * N + position in it, of each new token, N as `pages` has it."""
        kernel = self._kernel_ids(self._address(layer))
        return self._tensor(kernel.slots(self.manager.slot_mapping(layer)))

    def block_table(self, layer: str) -> Any:
        """[R, W] int32 of the step's requests; below 1 where no block is held. An entry is a block
        of the plan, or a kernel block where these lie apart (`ArrayView.kernel_ids`)."""
        kernel = self._kernel_ids(self._address(layer))
        blocks = self.manager.block_table(layer, self.requests)
        return self._tensor(kernel.table(blocks, np.arange(kernel.held, dtype=blocks.dtype)))

    @property
    def seq_lens(self) -> Any:
        """[R] int32: tokens of the step's requests, new ones included."""
        return self._tensor(self.manager.seq_lens(self.requests))

    @property
    def bytes_held(self) -> int:
        pool = self.manager.pool
        held: int = (pool.num_blocks - 1 - pool.num_free) * self.manager.config.bytes_per_block
        return held

    def _kernel_ids(self, address: LayerAddresses) -> KernelIds:
        return address.views[0].kernel_ids(self.buffers.addresses.blocks_of(address.group))

    def _address(self, layer: str) -> LayerAddresses:
        addresses = self.buffers.addresses
        known = [each.layer for each in addresses.layers] + [
            own for own, _ in addresses.shared_layers
        ]
        if layer not in known:
            raise ConfigError(Problem("layer", f"one of {', '.join(known)}", f"'{layer}'"))
        return addresses.of_layer(layer)

    def _tensor(self, array: Any) -> Any:
        import torch

        return torch.from_numpy(np.array(array)).to(self.buffers.buffers[0].data.device)

    def _check(self, address: LayerAddresses, new: Sequence[Any], num_tokens: int) -> None:
        expected = [[num_tokens, *view.shape[2:]] for view in address.views]
        if [list(rows.shape) for rows in new] != expected:
            got = ", ".join(str(list(rows.shape)) for rows in new)
            words = " and ".join(map(str, expected))
            raise ConfigError(Problem(address.layer, f"rows of {words}", got or "none"))
