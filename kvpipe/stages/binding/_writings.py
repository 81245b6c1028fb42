"""How the self-proof writes: bytes of rows into the pages of an array, by the backend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvpipe.backends.base import Array
from kvpipe.cache.buffers import KVBuffers
from kvpipe.layouts.base import ArrayView


def write_tokens(view: ArrayView, new: Array, slots: Sequence[int], buffers: KVBuffers) -> None:
    """new: uint8, one row a slot; slots: -1 where a row is not written."""
    import torch

    typed = new.view(_dtype(view.dtype)).reshape(len(slots), *view.shape[2:])
    where = torch.as_tensor(slots, device=new.device)
    buffers.backend.write_kv(buffers.buffers[view.buffer], view, typed, where)


def write_states(view: ArrayView, new: Array, blocks: list[int], buffers: KVBuffers) -> None:
    """The same of whole states; blocks: one a state."""
    kept = [i for i, block in enumerate(blocks) if block >= 0]
    packed = new.reshape(len(blocks), -1)[kept].reshape(-1).cpu()
    buffers.backend.unpack(buffers.buffers, [view], [blocks[i] for i in kept], packed)


def _dtype(name: str) -> Any:
    import torch

    return getattr(torch, {"fp8_e4m3": "float8_e4m3fn", "fp8_e5m2": "float8_e5m2"}.get(name, name))
