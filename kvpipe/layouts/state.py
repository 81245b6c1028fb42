"""Fixed-size states (convolution, SSM, ring buffers): typed arrays one after another in a page."""

from __future__ import annotations

from math import prod

from kvpipe.layouts.base import ArrayView
from kvpipe.specs.base import DTYPE_BYTES, KVCacheSpec


def contiguous(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Byte strides of a contiguous array."""
    return tuple(prod(shape[i + 1 :]) * itemsize for i in range(len(shape)))


def state_views(
    spec: KVCacheSpec, layer: str, buffer: int, offset: int, block_stride: int, num_blocks: int
) -> tuple[ArrayView, ...]:
    """[B, *state_shape] of each array; page of block b at offset + b * block_stride (bytes)."""
    views = []
    for array in spec.page_arrays():
        views.append(
            ArrayView(
                layer=layer,
                array=array.name,
                buffer=buffer,
                dtype=array.dtype,
                per_token=False,
                offset=offset,
                shape=(num_blocks, *array.shape),
                strides=(block_stride, *contiguous(array.shape, DTYPE_BYTES[array.dtype])),
            )
        )
        offset += array.num_bytes(spec.block_size)
    return tuple(views)
