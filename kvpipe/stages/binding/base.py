"""binding: KVBuffers, the model's layers -> BoundCache: layers that read and write their pages."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvpipe.backends.base import Array, Backend
from kvpipe.cache.buffers import KVBuffers
from kvpipe.cache.plan import KVCacheConfig
from kvpipe.layouts.base import ArrayView
from kvpipe.specs.base import RequestLimits


@dataclass
class AttentionLayer:
    """What a forward context knows of a layer. Mutable on purpose: binding sets it, once.

    kv_cache: the attention backend's tensor; a tuple of arrays where no single tensor is it
    (states, K and V of different widths); None before binding. views: the same bytes, for kernels.
    """

    name: str
    kv_cache: Array | tuple[Array, ...] | None = None
    views: tuple[ArrayView, ...] = ()

    @property
    def bound(self) -> bool:
        return bool(self.views)


@dataclass(frozen=True, kw_only=True)
class BindingRequest:
    """layer_names: the model's layers that keep or read a cache, in the model's order.
    forward_context: the layers to bind, by name (None: one AttentionLayer is made for each).
    model_config: folder, config.json or repository of the model (None: a preset), and model_dtype:
    what it is served in, for targets that build it; num_ranks: that the model is spread over."""

    config: KVCacheConfig
    buffers: KVBuffers
    limits: RequestLimits
    layer_names: tuple[str, ...]
    kv_sharing_fast_prefill: bool = False
    forward_context: Mapping[str, AttentionLayer] | None = None
    model_config: str | None = None
    model_dtype: str = "float32"
    num_ranks: int = 1


@dataclass(frozen=True, kw_only=True)
class VerifyReport:
    """The self-proof: what was written through the block manager and read back in two ways.

    layers, tokens: that were written (a token of one request counts once, whatever the layers;
    states have none). state_pages: blocks of states that were written, each once, whatever the
    layers. rows: read by flat offsets, one a token, head and array, or a piece of a state.
    gathered_rows: the same, read by the backend's gather (states: pack). mismatches: rows of either
    that came back wrong, and layers whose tensors are not where they should be. digest: sha256
    (hex) of `digest_of`, equal on two backends that did the same. reason: why it was not run.
    summary: what was proven, in words, where it is not rows written and read back.
    """

    layers: int = 0
    tokens: int = 0
    state_pages: int = 0
    rows: int = 0
    gathered_rows: int = 0
    mismatches: int = 0
    digest: str = ""
    digest_of: str = ""
    inject: str = "none"
    reason: str = ""
    summary: str = ""

    @property
    def passed(self) -> bool:
        return not self.mismatches

    def to_json(self) -> dict[str, Any]:
        return dict(self.__dict__)


@dataclass(frozen=True, kw_only=True)
class BoundCache:
    """A cache in use.

    groups: layer names a group, sharing layers appended to their target's. runner_kv_caches:
    (name, cache) in layer order. runner_only: layers that own no bytes, they alias another's.
    prefill_layers: layers that need slots in prefill.
    """

    forward_context: Mapping[str, AttentionLayer]
    groups: tuple[tuple[str, ...], ...]
    runner_kv_caches: tuple[tuple[str, Any], ...]
    runner_only: tuple[str, ...]
    prefill_layers: tuple[str, ...]
    buffers: KVBuffers
    verify: VerifyReport
    notes: tuple[str, ...] = ()


class Binding(ABC):
    """A stage plugin also has `Options` and takes them in its constructor."""

    @property
    def takes_scratch(self) -> bool:
        """Whether its layers read prefill chunks through scratch (`cache/scratch.py`)."""
        return False

    @abstractmethod
    def run(self, request: BindingRequest, backend: Backend) -> BoundCache: ...
