"""allocation: KVCacheConfig, backend -> KVBuffers: the first stage that owns memory.

`AddressMap` (kvpipe/cache/addresses.py) is the pure half, `KVBuffers` (kvpipe/cache/buffers.py) the
memory.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from kvpipe.backends.base import Backend
from kvpipe.cache.addresses import AddressMap
from kvpipe.cache.buffers import KVBuffers
from kvpipe.cache.plan import KVCacheConfig


@dataclass(frozen=True, kw_only=True)
class AllocationRequest:
    """One rank's config and where its bytes go (`address_map(config, ...)`)."""

    config: KVCacheConfig
    addresses: AddressMap


class Allocation(ABC):
    """A stage plugin also has `Options` and takes them in its constructor."""

    @abstractmethod
    def run(self, request: AllocationRequest, backend: Backend) -> KVBuffers: ...
