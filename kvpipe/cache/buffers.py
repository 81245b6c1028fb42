"""The memory of a rank's cache, and the arrays of each layer in it."""

from __future__ import annotations

from dataclasses import dataclass

from kvpipe.backends.base import Array, Backend, Buffer
from kvpipe.cache.addresses import AddressMap


@dataclass(frozen=True, kw_only=True)
class KVBuffers:
    """The memory. buffers is empty of data on a backend that owns none. init_byte: what every byte
    of an unused slot holds."""

    addresses: AddressMap
    backend: Backend
    buffers: tuple[Buffer, ...]
    init_byte: int = 0

    def arrays(self, layer: str) -> dict[str, Array]:
        """Name -> typed strided tensor ([B', N', H, D], or [B, *state_shape]) of a layer; a layer
        that shares gets its target's. Empty on meta."""
        if not self.backend.owns_memory:
            return {}
        views = self.addresses.of_layer(layer).views
        return {v.array: self.backend.array(self.buffers[v.buffer], v) for v in views}

    def native(self, layer: str) -> Array | None:
        """The one tensor that this layer's attention backend expects, or None."""
        view = self.addresses.of_layer(layer).native
        if view is None or not self.backend.owns_memory:
            return None
        return self.backend.array(self.buffers[view.buffer], view)

    @property
    def allocated_bytes(self) -> int:
        """Bytes really obtained, asked of the storage; 0 on meta."""
        return sum(
            buffer.data.untyped_storage().nbytes()
            for buffer in self.buffers
            if buffer.data is not None
        )
